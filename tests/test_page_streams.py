"""The page in a real browser: streams that come and go, fail and come back, and the browser's own camera."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.live.process import Child
from tests.browser import CARD, SOURCE, Page, Server, serving
from tests.live_servers import free_port, wait_for

pytest_plugins = ("tests.browser_fixtures",)


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
    page.expected.append("status of 403")
    page.fill("[data-testid=add-source-input]", "rtsp://example.invalid/stream")
    page.click("[data-testid=add-submit]")
    page.locator("#add-problem").wait_for(state="visible")
    assert page.locator("#add-problem").inner_text().strip()
    assert server.ask("GET", "/api/streams") == []


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
    page.sees_pictures(id, 30)
    status = server.status(id)
    assert status["kind"] == "browser"
    # Told how fast to begin, it sends at full size at once, and stays there.
    assert status["size_wh"] == [640, 360]
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
    port = free_port()
    id = server.add(f"http://127.0.0.1:{port}/")
    overlay = page.in_card(id, "state-overlay")
    overlay.locator("[data-action=retry]").wait_for()
    wait_for(lambda: str(port) in overlay.inner_text(), "the reason")
    sender = Child(["-m", "benchmarks.live.sender", "--port", str(port)], port)
    try:
        sender.wait_ready("/")
        overlay.locator("[data-action=retry]").click()
        page.sees_pictures(id)
        assert overlay.is_hidden()
    finally:
        sender.kill()


def test_the_page_comes_back_when_the_server_does(new_page: Callable[..., Page]) -> None:
    with serving(SOURCE) as server:
        page = new_page(server)
        page.open()
        page.connected()
        page.locator(CARD).wait_for()
        id = str(page.locator(CARD).get_attribute("data-stream-id"))
        page.sees_pictures(id)
        page.expected += ["WebSocket connection", "Failed to load resource"]
        server.stop()
        page.wait_for_selector("#link[data-state=lost]")
        page.in_card(id, "state-overlay").wait_for(state="visible")
        server.start()
        page.connected()
        page.sees_pictures(str(page.locator(CARD).get_attribute("data-stream-id")))


def test_without_its_token_the_page_asks_for_it(new_page: Callable[..., Page]) -> None:
    token = "a-token-of-some-length-42"
    with serving(SOURCE, "--token", token) as server:
        page = new_page(server)
        page.expected.append("status of 401")
        field = page.locator("input[type=password]:visible")
        page.open()
        field.wait_for()
        assert page.locator(CARD).count() == 0
        field.fill("wrong-token-of-some-length")
        field.press("Enter")
        page.wait_for_url("**wrong-token*")
        field.fill(token)
        field.press("Enter")
        page.connected()
        page.locator(CARD).wait_for()
        page.sees_pictures(str(page.locator(CARD).get_attribute("data-stream-id")))
        assert token not in page.url
        page.close()
