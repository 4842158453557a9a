"""Pages in a real Chromium, and real servers for them; `browser_fixtures` makes them for tests."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from tests.live_servers import free_port, wait_for

playwright = pytest.importorskip("playwright.sync_api", reason="the package playwright is missing")
pytest.importorskip("fastapi", reason="the extra `web` is missing")
pytest.importorskip("uvicorn", reason="the extra `web` is missing")

PATIENCE_MS = 30_000
SOURCE = "lavfi:testsrc2=size=320x180:rate=15"

CARD = "[data-testid=stream-card]"
VIDEO = "[data-testid=video-canvas]"


class Page:
    """A page of the browser with what it complained about; see `playwright.sync_api.Page`.

    Attributes:
        complaints: Errors on its console, exceptions, and requests that failed.
        expected: Complaints with one of these texts in them are the point of a test.
    """

    def __init__(self, context: Any, server: Server) -> None:
        self.server = server
        self.complaints: list[str] = []
        self.expected: list[str] = []
        self.page = context.new_page()
        self.page.set_default_timeout(PATIENCE_MS)
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self.complaints.append(f"exception: {error}"))
        self.page.on("requestfailed", lambda request: self.complaints.append(f"{request.url}: {request.failure}"))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.page, name)

    def _on_console(self, message: Any) -> None:
        if message.type == "error":
            self.complaints.append(f"console: {message.text}")

    @property
    def unexpected(self) -> list[str]:
        return [line for line in self.complaints if not any(text in line for text in self.expected)]

    def open(self, path: str = "/") -> None:
        self.page.goto(self.server.address + path)

    def connected(self) -> None:
        self.page.wait_for_selector("#link[data-state=open]")

    def card(self, id: str) -> str:
        return f'{CARD}[data-stream-id="{id}"]'

    def frames(self, id: str) -> int:
        return int(self.page.get_attribute(self.card(id), "data-frames") or 0)

    def sees_pictures(self, id: str, count: int = 3) -> None:
        """Wait for so many more pictures of a stream."""
        self.page.wait_for_selector(self.card(id))
        enough = self.frames(id) + count
        wait_for(lambda: self.frames(id) >= enough, f"{count} pictures of {id} on the page")

    def in_state(self, id: str, state: str) -> None:
        self.page.wait_for_selector(f'{self.card(id)}[data-state="{state}"]')

    def in_card(self, id: str, test_id: str) -> Any:
        return self.page.locator(f"{self.card(id)} [data-testid={test_id}]")

    def pixels(self, id: str, test_id: str = "video-canvas") -> list[list[list[int]]]:
        """Nine rows of sixteen RGB samples from a canvas."""
        script = """(canvas) => {
          const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
          const at = (row, column) => 4 * (Math.floor(((row + 0.5) * canvas.height) / 9) * canvas.width
            + Math.floor(((column + 0.5) * canvas.width) / 16));
          const samples = (row) => [...Array(16).keys()].map((k) => [...data.slice(at(row, k), at(row, k) + 3)]);
          return [...Array(9).keys()].map(samples);
        }"""
        return list(self.in_card(id, test_id).evaluate(script))


class Server:
    """`arr-stream serve` in a process of its own.

    Attributes:
        address: Of the page, without a slash at the end.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        self.port = free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        self._command = [sys.executable, "-m", "arr_stream", "serve", *arguments, "--port", str(self.port)]
        self._process: subprocess.Popen[bytes] | None = None
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the server

    def start(self) -> None:
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.DEVNULL, stdout=self._said, stderr=subprocess.STDOUT
        )
        wait_for(self._answers, "the server")

    def stop(self) -> None:
        """As Ctrl-C does; it must end within seconds, with sockets open."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            pytest.fail("the server did not end within 15 s")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """A request to the interface; the answer's values."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.address + path, data=data, method=method, headers=headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def status(self, id: str) -> dict[str, Any]:
        found = self.ask("GET", f"/api/streams/{id}")
        assert isinstance(found, dict)
        return found

    def add(self, source: str = SOURCE, **more: object) -> str:
        """Add a stream; its id."""
        return str(self.ask("POST", "/api/streams", {"source": source, **more})["id"])

    def remove_all(self) -> None:
        for status in self.ask("GET", "/api/streams"):
            self.ask("DELETE", f"/api/streams/{status['id']}")

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            self._said.seek(0)
            pytest.fail(f"the server ended: {self._said.read().decode(errors='replace')}")
        try:
            urllib.request.urlopen(self.address + "/healthz", timeout=5).close()
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False
        return True


@contextmanager
def serving(*arguments: str) -> Iterator[Server]:
    server = Server(arguments)
    try:
        server.start()
        yield server
        server.stop()
    finally:
        server.kill()


def settled(read: Callable[[], object], seconds: float = 0.7) -> bool:
    """Whether a value stays what it is for a while."""
    before = read()
    time.sleep(seconds)
    return read() == before
