"""A page in a real Chromium, for tests of it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.live_servers import wait_for
from tests.web_servers import RunningServer

pytest.importorskip("playwright.sync_api", reason="the package playwright is missing")

PATIENCE_MS = 30_000
CARD = "[data-testid=stream-card]"

SAMPLES = """(canvas) => {
  const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const at = (row, column) => 4 * (Math.floor(((row + 0.5) * canvas.height) / 9) * canvas.width
    + Math.floor(((column + 0.5) * canvas.width) / 16));
  const samples = (row) => [...Array(16).keys()].map((k) => [...data.slice(at(row, k), at(row, k) + 3)]);
  return [...Array(9).keys()].map(samples);
}"""


class Page:
    """A page of the browser with what it complained about; see `playwright.sync_api.Page`.

    Attributes:
        complaints: Errors on its console, exceptions, and requests that failed.
        expected: Complaints with one of these texts in them are the point of a test.
    """

    def __init__(self, context: Any, server: RunningServer) -> None:
        self.server = server
        self.complaints: list[str] = []
        self.expected: list[str] = []
        self.page = context.new_page()
        self.page.set_default_timeout(PATIENCE_MS)
        self.page.on("console", lambda said: said.type == "error" and self.complaints.append(f"console: {said.text}"))
        self.page.on("pageerror", lambda error: self.complaints.append(f"exception: {error}"))
        self.page.on("requestfailed", lambda request: self.complaints.append(f"{request.url}: {request.failure}"))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.page, name)

    @property
    def unexpected(self) -> list[str]:
        return [line for line in self.complaints if not any(text in line for text in self.expected)]

    def connected(self) -> None:
        self.page.wait_for_selector("#link[data-state=open]")

    def card(self, id: str) -> str:
        return f'{CARD}[data-stream-id="{id}"]'

    def one(self) -> str:
        """The id of the only stream, once it is there."""
        card = self.page.locator(CARD)
        card.wait_for()
        return str(card.get_attribute("data-stream-id"))

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
        return list(self.in_card(id, test_id).evaluate(SAMPLES))
