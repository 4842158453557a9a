"""The page in a real browser: streams that come and go, fail and come back, and the browser's own camera."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.browser import CARD, SOURCE, Page, Server, serving
from tests.live_servers import free_port, wait_for

pytest_plugins = ("tests.browser",)


def test_a_stream_is_added_and_removed_while_another_goes_on(server: Server, page: Page) -> None:
    first = server.add()
    page.sees_pictures(first)
    page.click("[data-testid=add-stream]")
    page.fill("[data-testid=add-source-input]", SOURCE)
    page.fill("#add-name", "second one")
    page.fill("#add-query", "green")
    page.click("[data-testid=add-submit]")
    page.locator(CARD).nth(1).wait_for()
    second = str(page.locator(CARD).nth(1).get_attribute("data-stream-id"))
    assert server.status(second)["name"] == "second one"
    assert server.status(second)["texts"] == ["green"]
    page.sees_pictures(second)
    page.sees_pictures(first)
    page.in_card(second, "remove-stream").click()
    page.locator(page.card(second)).wait_for(state="detached")
    assert [status["id"] for status in server.ask("GET", "/api/streams")] == [first]
    page.sees_pictures(first)


def test_a_source_that_is_not_allowed_is_refused_with_a_message(server: Server, page: Page) -> None:
    page.click("[data-testid=add-stream]")
    page.fill("[data-testid=add-source-input]", "rtsp://example.invalid/stream")
    page.click("[data-testid=add-submit]")
    page.locator("#add-problem").wait_for(state="visible")
    assert page.locator("#add-problem").inner_text().strip()
    assert server.ask("GET", "/api/streams") == []
    page.complaints[:] = [line for line in page.complaints if "status of 403" not in line]


def test_three_streams_side_by_side(server: Server, page: Page) -> None:
    ids = [server.add(query=[text]) for text in ("red", "green", "blue")]
    for id in ids:
        page.sees_pictures(id)
    assert page.locator(CARD).count() == 3
    for id, text in zip(ids, ("red", "green", "blue"), strict=True):
        assert page.locator(f"{page.card(id)} .chip", has_text=text).count() == 1
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280
    page.keyboard.press("2")
    page.wait_for_selector(f"{page.card(ids[1])}.chosen")


def test_a_stream_that_somebody_else_removes_goes_from_the_page(server: Server, page: Page) -> None:
    id = server.add()
    page.sees_pictures(id)
    server.ask("DELETE", f"/api/streams/{id}")
    page.locator(page.card(id)).wait_for(state="detached")
    page.locator(".empty").wait_for()


def test_the_browsers_camera_comes_back_annotated(server: Server, page: Page) -> None:
    page.click("[data-testid=add-stream]")
    page.click("[data-action=add-browser-camera]")
    page.locator(CARD).wait_for()
    id = str(page.locator(CARD).get_attribute("data-stream-id"))
    page.sees_pictures(id, 10)
    status = server.status(id)
    assert status["kind"] == "browser"
    assert status["size_wh"][0] >= 160
    assert status["tokens"] > 0
    # The fake camera is green with a moving disc; the dimmed cells tell that the picture was annotated.
    page.in_card(id, "beside-select").select_option("source")
    wait_for(lambda: _dimmed(page, id) > 0.1, "annotated pictures")
    page.in_card(id, "remove-stream").click()
    page.locator(page.card(id)).wait_for(state="detached")
    assert server.ask("GET", "/api/streams") == []


def _dimmed(page: Page, id: str) -> float:
    """Share of the samples that are clearly darker in the annotated picture than in the source beside it."""
    pairs = [
        (sum(drawn), sum(seen))
        for rows in zip(page.pixels(id), page.pixels(id, "beside-canvas"), strict=True)
        for drawn, seen in zip(*rows, strict=True)
    ]
    return sum(drawn < 0.7 * seen for drawn, seen in pairs) / len(pairs)


def test_a_source_that_fails_says_why_and_is_tried_again(server: Server, page: Page) -> None:
    from arr_stream.bench import live_sender

    port = free_port()
    id = server.add(f"http://127.0.0.1:{port}/")
    overlay = page.in_card(id, "state-overlay")
    overlay.locator("[data-action=retry]").wait_for()
    wait_for(lambda: str(port) in overlay.inner_text(), "the reason")
    with _sending(live_sender, port):
        overlay.locator("[data-action=retry]").click()
        page.sees_pictures(id)
        assert overlay.is_hidden()


class _sending:
    """The streaming server of the measurements in a thread of this process, for the time of the context."""

    def __init__(self, sender: Any, port: int) -> None:
        import socket

        from arr_stream.bench.live_scene import Scene

        self._sender, self._scene = sender, Scene(sender.SIZE_WH)
        self._server = socket.create_server(("127.0.0.1", port))
        self._server.settimeout(0.2)
        self._stop = threading.Event()
        self._connections: list[Any] = []
        self._threads = [threading.Thread(target=self._accept)]

    def __enter__(self) -> None:
        self._threads[0].start()

    def __exit__(self, *_: object) -> None:
        import socket

        self._stop.set()
        for connection in self._connections:
            connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._server.close()

    def _accept(self) -> None:
        while not self._stop.is_set():
            try:
                connection, _ = self._server.accept()
            except TimeoutError:
                continue
            self._connections.append(connection)
            thread = threading.Thread(target=self._sender.handle, args=(connection, self._scene))
            self._threads.append(thread)
            thread.start()


def test_the_page_comes_back_when_the_server_does(new_page: Callable[..., Page]) -> None:
    with serving(SOURCE) as server:
        page = new_page(server)
        page.open()
        page.connected()
        page.locator(CARD).wait_for()
        id = str(page.locator(CARD).get_attribute("data-stream-id"))
        page.sees_pictures(id)
        server.stop()
        page.wait_for_selector("#link[data-state=lost]")
        page.in_card(id, "state-overlay").wait_for(state="visible")
        server.start()
        page.connected()
        page.sees_pictures(str(page.locator(CARD).get_attribute("data-stream-id")))
        # That nobody answers in the meantime is the point.
        page.complaints.clear()


def test_without_its_token_the_page_asks_for_it(new_page: Callable[..., Page]) -> None:
    token = "a-token-of-some-length-42"
    with serving(SOURCE, "--token", token) as server:
        page = new_page(server)
        page.goto(server.address)
        page.locator("[data-testid=token-input]").wait_for()
        assert page.locator(CARD).count() == 0
        page.fill("[data-testid=token-input]", "wrong")
        page.click("[data-testid=token-submit]")
        page.wait_for_load_state()
        page.locator("[data-testid=token-input]").wait_for()
        page.fill("[data-testid=token-input]", token)
        page.click("[data-testid=token-submit]")
        page.connected()
        page.locator(CARD).wait_for()
        page.sees_pictures(str(page.locator(CARD).get_attribute("data-stream-id")))
        assert token not in page.url
        page.complaints[:] = [line for line in page.complaints if "status of 401" not in line]


@pytest.mark.parametrize("path", ["/nothing", "/api/streams/nothing"])
def test_addresses_that_do_not_exist_are_answered_in_one_line(server: Server, path: str) -> None:
    import json
    import urllib.error

    with pytest.raises(urllib.error.HTTPError) as refused:
        server.ask("GET", path)
    assert refused.value.code == 404
    assert "\n" not in json.loads(refused.value.read())["error"]
