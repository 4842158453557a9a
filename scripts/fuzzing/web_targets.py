"""Fuzzing of what comes over the network: requests, socket messages, pictures; no socket is opened."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fuzzing import media_seeds
from fuzzing.structure import Plain, json_value
from fuzzing.target import CORPUS, Run, Target

_BODIES: dict[str, Any] = json.loads((CORPUS / "bodies.json").read_text(encoding="utf-8"))
"""What clients say, by the model that checks it."""
_NAMES = tuple(_BODIES)
_MOST_PIXELS = 1_000_000


def _messages() -> list[bytes]:
    return [bytes([index]) + json.dumps(body).encode() for index, body in enumerate(_BODIES.values())]


def _open_messages(scratch: Path) -> Run:
    from arr_stream.config import Settings
    from arr_stream.live.live_stream import PointerGaze
    from arr_stream.relevance.query import RegionQuery, parse_text
    from arr_stream.web import routes
    from arr_stream.web.feeds import VideoSocket
    from arr_stream.web.settings import checked_changes

    gaze = PointerGaze()
    runner = SimpleNamespace(set_gaze=gaze.set_gaze, publisher=SimpleNamespace(age=lambda seconds: None))

    def socket_says(text: str) -> str:
        # No event loop runs here, and this part of a socket needs none.
        socket: Any = VideoSocket.__new__(VideoSocket)
        socket._runner, socket._wake_up, socket._under_way = runner, SimpleNamespace(ring=lambda: None), {3: 0.0}
        socket._views, socket._cells = ("source",), False
        socket.on_message(text)
        return "socket"

    def run(data: bytes) -> str:
        name, text = _NAMES[data[0] % len(_NAMES)], data[1:]
        if name == "ClientMessage":
            return socket_says(text.decode("utf-8", "replace"))
        body = getattr(routes, name).model_validate_json(text)
        if name in ("NewStream", "StreamChange"):
            Settings().with_values(checked_changes(body.settings))
        for asked in [*getattr(body, "texts", ()), *getattr(body, "query", ())]:
            parse_text(asked)
        if getattr(body, "region", None) is not None:
            RegionQuery(body.region.xywh).checked((640, 360))
        return name

    return run


def _requests() -> list[bytes]:
    def request(line: str, headers: str = "", body: bytes = b"") -> bytes:
        head = f"{line}\nhost: localhost:8080\nauthorization: Bearer secret-token\n{headers}"
        return head.encode() + b"\n" + body

    stream, one = "/api/streams", "/api/streams/1"
    posted = (f"POST {stream}", f"PATCH {one}", f"PUT {one}/query", f"POST {one}/questions")
    return [
        *(
            request(line, "content-type: application/json\n", json.dumps(body).encode())
            for line, body in zip(posted, _BODIES.values(), strict=False)
        ),
        request(f"GET {stream}"),
        request(f"PUT {one}/example", "content-type: image/png\ncontent-length: 9\n", media_seeds.pictures()[0]),
        request(f"GET {one}/answers?search=a%20b&format=markdown"),
        request(f"GET {one}/records?from=0", "range: bytes=0-9\nif-none-match: *\n"),
        request("GET /?token=secret-token", "cookie: a=b; arr_stream_8080=x\n"),
        request("GET /static/..%2f..%2fpyproject.toml", "origin: http://localhost:8080\nsec-fetch-site: same-origin\n"),
        request("GET /metrics"),
        request("GET /api/info", "accept: */*\n"),
    ]


def _open_requests(scratch: Path) -> Run:
    from arr_stream.config import Settings
    from arr_stream.live.publishing import EventHub
    from arr_stream.live.registry import LiveStreams
    from arr_stream.live.runner import RunnerParts
    from arr_stream.web.access import AllowedSources, make_access
    from arr_stream.web.server import create_app
    from arr_stream.web.serving import Serving

    runner = asyncio.Runner()
    hub = EventHub()
    unexpected: list[Exception] = []
    streams = LiveStreams(Settings(), parts=RunnerParts(hub))
    access = make_access("127.0.0.1", token="secret-token")
    serving = Serving(streams, access, AllowedSources())
    app = create_app(serving, unexpected.append)

    def run(data: bytes) -> str:
        head, _, body = data.partition(b"\n\n")
        unexpected.clear()
        status, said = runner.run(_exchange(app, _scope(head), body))
        if unexpected:
            raise unexpected[0]
        if status >= 500 and status != 503:
            raise AssertionError(f"status {status}: {said[:300]!r}")
        return f"{status} {said[:60] if status >= 400 else ''}"

    return run


def _scope(head: bytes) -> dict[str, Any]:
    """Return the ASGI scope of a request."""
    first, *rest = head.split(b"\n")
    method, _, target = first.partition(b" ")
    path, _, query = target.partition(b"?")
    headers = (line.partition(b":")[::2] for line in rest)
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "scheme": "http",
        "state": {},
        "method": method.decode("latin-1").upper() or "GET",
        "path": path.decode("utf-8", "replace"),
        "raw_path": path,
        "query_string": query,
        "root_path": "",
        "client": ("127.0.0.1", 9),
        "server": ("127.0.0.1", 8080),
        "headers": [(name.strip().lower(), value.strip()) for name, value in headers],
    }


async def _exchange(app: Any, scope: dict[str, Any], body: bytes) -> tuple[int, str]:
    """Status and beginning of the body of an answer; an endless one is left after its first part."""
    messages = [{"type": "http.request", "body": body, "more_body": False}]
    status, said, done = 0, b"", asyncio.Event()

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop()
        await done.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        nonlocal status, said
        if message["type"] == "http.response.start":
            status = message["status"]
        else:
            said += message.get("body", b"")[: 500 - len(said)]
            done.set()

    await app(scope, receive, send)
    return status, said.decode("utf-8", "replace")


def _browser_pictures() -> list[bytes]:
    return [picture for picture in media_seeds.pictures() if picture.startswith(b"\xff\xd8")]


def _open_browser_pictures(scratch: Path) -> Run:
    from arr_stream.sources.live.browser import decode_jpeg

    def run(data: bytes) -> str:
        height, width, _ = decode_jpeg(data, "camera", _MOST_PIXELS).shape
        if width * height > _MOST_PIXELS:
            raise AssertionError(f"a picture of {width}x{height} pixels")
        return "picture"

    return run


def _json_after_kind(rng: random.Random, data: bytes, plain: Plain) -> bytes:
    return data[:1] + json_value(rng, data[1:], plain)


TARGETS = (
    Target(
        *("messages", "bodies of requests, socket messages", _messages, _open_messages, "json", _json_after_kind),
        refusals=("ValidationError", "MalformedMessage"),
    ),
    Target("requests", "whole requests to the server", _requests, _open_requests, "http", share=0.6),
    Target(
        *("browser-pictures", "JPEG pictures of a browser's camera", _browser_pictures, _open_browser_pictures),
        *("media", None, 0.6),
    ),
)
