"""What tests of weights share: a server of files, which can cut connections, and a pickle that tells when it is run."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

HUB_COMMIT = "c" * 40


class PickleBomb:
    """Makes a file as soon as it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (str(self.path), "w")


class Served(NamedTuple):
    """What the server says for a path."""

    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = {}  # noqa: RUF012
    cut_after: int | None = None
    length: bool = True


class Asked(NamedTuple):
    """What it was asked for."""

    command: str
    path: str
    authorization: str | None


class FileServer(ThreadingHTTPServer):
    """A server of files on this machine.

    Attributes:
        files: What it says for each path; queries are left out.
        missing: What it says for all others.
        asked: In order of arrival.
        stall: Set to an event that each answer waits for, 5 s at most.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, Served] = {}
        self.missing = Served(b"", 404)
        self.asked: list[Asked] = []
        self.stall: threading.Event | None = None
        self.url = f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that hang up are part of the tests."""

    def encrypt(self, certificate: Path) -> None:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(certificate)
        self.socket = tls.wrap_socket(self.socket, server_side=True)
        self.url = self.url.replace("http:", "https:")


@contextmanager
def serving_files() -> Iterator[FileServer]:
    server = FileServer()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: FileServer
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None: ...

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.server.asked.append(Asked(self.command, path, self.headers.get("Authorization")))
        served = self.server.files.get(path, self.server.missing)
        if self.server.stall is not None:
            self.server.stall.wait(5)
        self.send_response(served.status)
        for name, value in served.headers.items():
            self.send_header(name, value)
        if served.length:
            self.send_header("Content-Length", str(len(served.body)))
        else:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(served.body[: served.cut_after])
        if served.cut_after is not None or not served.length:
            self.close_connection = True
