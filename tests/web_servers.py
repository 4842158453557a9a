"""A real server on a loopback port, in a thread of the test's own process."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from arr_stream.config import Settings
from arr_stream.live.publishing import EventHub
from arr_stream.live.registry import LiveStreams
from arr_stream.live.runner import RunnerParts
from arr_stream.vlm import ModelSession
from arr_stream.web.access import AllowedSources, make_access
from arr_stream.web.server import listen, run_server
from arr_stream.web.serving import Serving

PATIENCE_SECONDS = 40.0
PICTURE = "lavfi:testsrc2=size=160x96:rate=30"
SETTINGS = Settings().with_values({"keyframes.text": "none", "keyframes.clusters": "grid"})


class RunningServer:
    """What tests need of a server that runs."""

    def __init__(self, serving: Serving, port: int, stop: Callable[[], None]) -> None:
        self.serving = serving
        self.port = port
        self.stop = stop
        self.address = f"http://127.0.0.1:{port}"
        self.http = httpx.Client(base_url=self.address, timeout=PATIENCE_SECONDS)

    def socket(self, path: str, **kwargs: Any) -> ClientConnection:
        kwargs = {"proxy": None, "open_timeout": PATIENCE_SECONDS, "max_size": None} | kwargs
        return connect(f"ws://127.0.0.1:{self.port}{path}", **kwargs)

    def tcp(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), PATIENCE_SECONDS)

    def add(self, source: str = PICTURE, **kwargs: Any) -> str:
        """Add a stream that is allowed anyway, and wait for its first frame; its id."""
        runner = self.serving.streams.add(source, **kwargs)
        until(lambda: self.status(runner.id)["frames"] > 0)
        return runner.id

    def status(self, id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.http.get(f"/api/streams/{id}").json()
        return found


@contextlib.contextmanager
def running(
    *,
    allowed: AllowedSources | None = None,
    token: str | None = None,
    host: str = "127.0.0.1",
    names: tuple[str, ...] = (),
    rules: tuple[str, ...] = (),
    presets: dict[str, Settings] | None = None,
    make_session: Callable[[Settings], ModelSession] | None = None,
    model: str = "a model",
    most: int = 4,
    port: int = 0,
) -> Iterator[RunningServer]:
    """A server until the end of the block; whatever it did not expect fails the test."""
    listener = listen("127.0.0.1", port)
    port = listener.getsockname()[1]
    hub = EventHub()
    parts = RunnerParts(hub, rules=rules, make_session=make_session)
    streams = LiveStreams(SETTINGS, presets=presets, parts=parts, most_streams=most)
    access = make_access(host, token=token, names=names, port=port)
    serving = Serving(
        streams,
        access,
        allowed or AllowedSources(named=(PICTURE,)),
        {name: f"about {name}" for name in presets or {}},
        model if make_session is not None else None,
    )
    stop, ready, errors = threading.Event(), threading.Event(), list[Exception]()
    thread = threading.Thread(
        target=run_server,
        args=(serving, listener),
        kwargs={"stop": stop, "on_ready": ready.set, "on_error": errors.append},
    )
    thread.start()
    assert ready.wait(PATIENCE_SECONDS)

    def end() -> None:
        stop.set()
        thread.join(PATIENCE_SECONDS)

    server = RunningServer(serving, port, end)
    try:
        yield server
    finally:
        end()
        server.http.close()
    assert not thread.is_alive()
    assert not errors, errors


def until(condition: Callable[[], Any], patience_seconds: float = PATIENCE_SECONDS) -> Any:
    """Wait for a condition to hold; what it then is."""
    deadline = time.monotonic() + patience_seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)
    return found


def close_code(client: ClientConnection) -> int | None:
    """The code that the server closes a socket with, after whatever it still sends."""
    try:
        while True:
            client.recv(timeout=PATIENCE_SECONDS)
    except ConnectionClosed as exc:
        return exc.rcvd.code if exc.rcvd is not None else None


def mute(server: RunningServer, path: str, *, websocket: bool = True) -> socket.socket:
    """A client that asks for a path, as a WebSocket unless told otherwise, and never reads the answer."""
    upgrade = (
        "Upgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
    )
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(PATIENCE_SECONDS)
    client.connect(("127.0.0.1", server.port))
    client.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{upgrade if websocket else ''}\r\n".encode())
    return client


def unpack(message: str | bytes) -> tuple[dict[str, Any], list[bytes]]:
    """Header and pictures of a message of a video socket."""
    assert isinstance(message, bytes), message
    (length,) = struct.unpack_from("<I", message)
    header = json.loads(message[4 : 4 + length])
    pictures, at = [], 4 + length
    for picture in header["pictures"]:
        pictures.append(message[at : at + picture["bytes"]])
        at += picture["bytes"]
    assert at == len(message)
    return header, pictures


def write_picture(path: Path, size_wh: tuple[int, int] = (32, 24)) -> bytes:
    """A red PNG."""
    from PIL import Image

    Image.new("RGB", size_wh, (220, 20, 20)).save(path)
    return path.read_bytes()
