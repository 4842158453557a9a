"""A small HTTP server on loopback that behaves as badly as a test asks it to."""

from __future__ import annotations

import base64
import io
import json
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from PIL import Image

from arr_stream.vlm.qwen3_vl.carrier import carried


class Exchange(BaseHTTPRequestHandler):
    """One request, and what a behaviour does to answer it."""

    protocol_version = "HTTP/1.1"
    server: _Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fake, request = self.server.fake, json.loads(body)
        if "stream" not in request:
            fake.prefilled.append(request)
            self.count(request)
            return
        with fake.lock:
            number = len(fake.requests)
            fake.requests.append(request)
            fake.bodies.append(body)
            fake.headers.append({name.lower(): value for name, value in self.headers.items()})
            fake.arrivals.append(time.monotonic())
        try:
            fake.behaviours[min(number, len(fake.behaviours) - 1)](self)
        except OSError:
            fake.hung_up.set()
        self.close_connection = True

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/metrics" else 404)
        self.send_header("Content-Length", str(len(self.server.fake.metrics)))
        self.end_headers()
        self.wfile.write(self.server.fake.metrics)

    def log_message(self, format: str, *args: Any) -> None: ...

    def count(self, request: dict[str, Any]) -> None:
        """How many tokens a request has: what a client asks to find out whether cells are placed."""
        usage = {"prompt_tokens": tokens_of(request, places=self.server.fake.places), "completion_tokens": 1}
        message = {"role": "assistant", "content": "a"}
        choices = [{"index": 0, "message": message, "finish_reason": "length"}]
        whole = {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": choices, "usage": usage}
        if self.server.fake.mute:
            self.body(b"{}", 503)
            return
        self.body(json.dumps(whole).encode())

    def body(self, data: bytes, status: int = 200, **headers: str) -> None:
        """A whole answer; underscores in names of headers stand for dashes."""
        self.send_response(status)
        for name, value in ({"Content_Type": "application/json"} | headers).items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)

    def begin(self, **headers: str) -> None:
        """The head of a stream that ends when the connection does."""
        self.send_response(200)
        for name, value in ({"Content_Type": "text/event-stream"} | headers).items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.flush()

    def event(self, data: object) -> None:
        self.wfile.write(b"data: " + (data if isinstance(data, bytes) else json.dumps(data).encode()) + b"\n\n")
        self.wfile.flush()

    def hang(self) -> None:
        """Say nothing until the client hangs up or the server ends."""
        self.connection.settimeout(0.02)
        while not self.server.fake.ending.is_set():
            try:
                if not self.connection.recv(1):
                    self.server.fake.hung_up.set()
                    return
            except TimeoutError:
                continue


Behaviour = Callable[[Exchange], None]


def piece(text: str | None = None, finish: str | None = None, **more: object) -> dict[str, object]:
    """One event of a stream."""
    delta: dict[str, object] = {} if text is None else {"content": text}
    choices = [{"index": 0, "delta": delta | more, "finish_reason": finish}]
    return {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices}


def says(*texts: str, finish: str | None = "stop", usage: dict[str, int] | None = None) -> Behaviour:
    """Streams an answer in pieces; without a `finish`, the stream is cut off."""

    def behave(exchange: Exchange) -> None:
        exchange.begin()
        exchange.event(piece("", role="assistant"))
        for text in texts:
            exchange.event(piece(text))
        if finish is not None:
            exchange.event(piece(None, finish))
            if usage is not None:
                exchange.event(piece() | {"choices": [], "usage": usage})
            exchange.event(b"[DONE]")

    return behave


def status(code: int, message: str = "no", **headers: str) -> Behaviour:
    """Refuses in the way that OpenAI's server does."""
    return lambda exchange: exchange.body(json.dumps({"error": {"message": message}}).encode(), code, **headers)


def body(data: bytes, kind: str) -> Behaviour:
    return lambda exchange: exchange.body(data, Content_Type=kind)


def hangs(*texts: str) -> Behaviour:
    """Goes silent after some pieces of a stream; with none, before any answer."""

    def behave(exchange: Exchange) -> None:
        if texts:
            exchange.begin()
        for text in texts:
            exchange.event(piece(text))
        exchange.hang()

    return behave


def tokens_of(request: dict[str, Any], *, places: bool) -> int:
    """As Qwen3-VL counts them: a picture's cells, 64 at least; what a picture carries where that is placed."""
    total = 12
    for part in [part for message in request["messages"] for part in message["content"] if isinstance(part, dict)]:
        if part["type"] == "text":
            total += len(part["text"]) // 4 + 1
            continue
        image = Image.open(io.BytesIO(base64.b64decode(part["image_url"]["url"].split(",", 1)[1])))
        cells = carried(image) if places else None
        total += 2 + (max(64, image.width * image.height // 1024) if cells is None else len(cells))
    return total


class _Server(ThreadingHTTPServer):
    daemon_threads = False
    block_on_close = True
    fake: FakeServer

    def handle_error(self, request: object, client_address: object) -> None: ...


class FakeServer:
    """Meets each request with the next behaviour, the last one for ever; a context manager.

    Attributes:
        requests: Bodies as JSON values, in order of arrival.
        bodies: The same as they came, in bytes.
        headers: Their headers, names in lower case.
        arrivals: When they came, in seconds of the monotonic clock.
        hung_up: The client closed a connection before its answer was whole.
        places: It takes cells as the plugin does.
        mute: It is too busy to say how many.
        metrics: Body of `/metrics`.
        prefilled: Requests that ask for no answer, which no behaviour meets.
    """

    def __init__(
        self, *behaviours: Behaviour, tls: ssl.SSLContext | None = None, places: bool = False, port: int = 0
    ) -> None:
        self.places, self.mute = places, False
        self.behaviours: Sequence[Behaviour] = behaviours
        self.requests: list[dict[str, Any]] = []
        self.bodies: list[bytes] = []
        self.metrics, self.prefilled = b"", list[dict[str, Any]]()
        self.headers: list[dict[str, str]] = []
        self.arrivals: list[float] = []
        self.lock, self.ending, self.hung_up = threading.Lock(), threading.Event(), threading.Event()
        self._server = _Server(("127.0.0.1", port), Exchange)
        self._server.fake = self
        self._scheme = "http"
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
            self._scheme = "https"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self._server.server_address[1]}"

    @property
    def url(self) -> str:
        return f"{self._scheme}://{self.host}/v1"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ending.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
