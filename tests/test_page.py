"""The page in a real browser: streams seen and changed, that come and go, fail and come back, and its own camera."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import av
import pytest

from arr_stream.errors import BackendUnavailable
from arr_stream.web.access import AllowedSources
from arr_stream.web.sessions import SessionFactory
from benchmarks.live.browser import CAMERA_ARGUMENTS, chromium
from benchmarks.live.scene import Scene
from benchmarks.live.sender import send
from tests.browser import CARD, Page
from tests.live_servers import byte_server, free_port, wait_for
from tests.web_servers import SETTINGS, RunningServer, running

SHAPES = Path(__file__).resolve().parent.parent / "sample_videos" / "shapes.mp4"
SOURCE = "lavfi:testsrc2=size=320x180:rate=15"
MARKED_LEFT = """(canvas) => {
  const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const columns = [...Array(canvas.width).keys()];
  return columns.findIndex((x) => [...Array(canvas.height).keys()].some((y) => data[4 * (y * canvas.width + x) + 3]));
}"""
"""The first column that something is drawn in; -1 for none."""
CUT = "(cells) => cells.filter((cell) => cell.scrollWidth > cell.clientWidth).map((cell) => cell.innerText)"
TABS = ("answers", "settings", "log", "details")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium with a fake camera."""
    try:
        with chromium(CAMERA_ARGUMENTS) as made:
            yield made
    except BackendUnavailable as exc:
        pytest.skip(str(exc))


@pytest.fixture(scope="module")
def shared_server() -> Iterator[RunningServer]:
    """A server that may open test pictures and addresses of this machine."""
    with running(allowed=AllowedSources(patterns=("lavfi:testsrc2*", "http://127.0.0.1"))) as server:
        yield server


@pytest.fixture
def server(shared_server: RunningServer) -> Iterator[RunningServer]:
    """The same without streams, before and after each test."""
    yield shared_server
    for runner in shared_server.serving.streams.runners:
        shared_server.serving.streams.remove(runner.id)


@pytest.fixture
def new_page(browser: Any) -> Iterator[Callable[..., Page]]:
    """Opens pages; in the end none may have complained but as the test expected."""
    contexts, pages = [], []

    def make(server: RunningServer, *, width: int = 1280, height: int = 800) -> Page:
        contexts.append(browser.new_context(viewport={"width": width, "height": height}))
        pages.append(Page(contexts[-1], server))
        return pages[-1]

    yield make
    for context in contexts:
        context.close()
    assert [complaint for page in pages for complaint in page.unexpected] == []


@pytest.fixture
def page(server: RunningServer, new_page: Callable[..., Page]) -> Page:
    """The page, open and connected, without streams."""
    made = new_page(server)
    made.goto(server.address)
    made.connected()
    return made


@pytest.fixture
def id(server: RunningServer, page: Page) -> str:
    """One stream, seen on the page."""
    made = server.add(SOURCE)
    page.sees_pictures(made)
    return made


def spread(samples: list[list[int]]) -> int:
    """How far samples differ, of 255."""
    return max(max(values) - min(values) for values in zip(*samples, strict=True))


def test_the_picture_moves_and_its_figures_are_told(id: str, page: Page) -> None:
    page.in_state(id, "live")
    before = page.pixels(id)
    assert max(spread(row) for row in before) > 100
    wait_for(lambda: page.pixels(id) != before, "another picture")
    assert page.in_card(id, "state-overlay").is_hidden()
    figures = page.in_card(id, "figures")
    wait_for(lambda: any(letter.isdigit() for letter in figures.inner_text()), "figures")


def test_a_query_is_typed(id: str, page: Page, server: RunningServer) -> None:
    box = page.in_card(id, "query-input")
    box.fill("red on the left")
    box.press("Enter")
    page.locator(f"{page.card(id)} .chip", has_text="red on the left").wait_for()
    assert server.status(id)["texts"] == ["red on the left"]
    box.press("ArrowUp")
    assert box.input_value() == "red on the left"
    page.locator(f"{page.card(id)} .chip button[aria-label^=Remove]").click()
    wait_for(lambda: server.status(id)["texts"] == [], "the query to be gone")


def test_a_region_is_dragged(id: str, page: Page, server: RunningServer) -> None:
    box = page.in_card(id, "video-canvas").bounding_box()

    def move(x: float, y: float) -> None:
        page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"])

    move(0.25, 0.25)
    page.mouse.down()
    move(0.4, 0.4)
    move(0.75, 0.65)
    page.mouse.up()
    wait_for(lambda: server.status(id)["region"], "the region")
    assert server.status(id)["region"] == pytest.approx([80, 45, 160, 72], abs=4)
    page.in_card(id, "region-clear").click()
    wait_for(lambda: server.status(id)["region"] is None, "the region to be gone")


def test_the_dashed_box_follows_the_region(new_page: Callable[..., Page]) -> None:
    with running(allowed=AllowedSources(named=(f"loop:{SHAPES}",))) as server:
        id = server.add(f"loop:{SHAPES}")
        page = new_page(server)
        page.goto(server.address)
        page.sees_pictures(id)
        # The speckled red disc drifts through the middle of the picture.
        server.http.put(f"/api/streams/{id}/query", json={"texts": [], "region": {"xywh": [360, 80, 120, 140]}})
        box = page.locator(f"{page.card(id)} .marks").first
        places = set[float]()

        def moved() -> bool:
            places.add(box.evaluate(MARKED_LEFT))
            return len(places - {-1}) >= 3

        wait_for(moved, "the box to move")
        page.close()


def test_what_is_not_understood_stands_below_the_query(id: str, page: Page, server: RunningServer) -> None:
    box = page.in_card(id, "query-input")
    box.fill("red shed")
    box.press("Enter")
    fault = page.in_card(id, "query-faults")
    fault.locator("li", has_text="“red shed”: unknown word 'shed'; searching for 'red' only").wait_for()
    assert "mark a region" in fault.inner_text() and "--" not in fault.inner_text()
    assert page.locator(".toast").count() == 0
    page.in_card(id, "query-clear").click()
    fault.locator("li").first.wait_for(state="detached")


def test_a_rule_is_added_and_removed_and_its_alert_names_it(new_page: Callable[..., Page]) -> None:
    with running(allowed=AllowedSources(named=(SOURCE,)), rules=("motion > 0.999",)) as server:
        id = server.add(SOURCE, query=["red"])
        page = new_page(server)
        page.goto(server.address)
        page.sees_pictures(id)
        page.click("[data-testid=tab-log]")
        rules = page.locator("[data-testid=rules] li")
        assert rules.all_inner_texts() == ["motion > 0.999"]
        page.locator("[data-testid=rule-field]").select_option("relevance")
        page.locator("[aria-label=Comparison]").select_option("<")
        page.fill("[data-testid=rule-limit]", "1")
        page.click("[data-testid=rule-add]")
        page.locator(".toast[data-kind=alert]", has_text="relevance < 1 for 2s").wait_for()
        page.locator("[data-testid=log] .entry[data-kind=alert]", has_text="relevance < 1 for 2s").wait_for()
        page.get_by_label("Remove motion > 0.999").click()
        wait_for(lambda: server.status(id)["rules"] == ["relevance < 1 for 2s"], "the rule to be gone")
        assert rules.all_inner_texts() == ["relevance < 1 for 2s"]
        page.close()


def test_a_setting_is_changed_with_effect(id: str, page: Page, server: RunningServer) -> None:
    page.expected.append("status of 4")
    wait_for(lambda: (server.status(id)["tokens"] or 0) > 12, "cells")
    page.click("[data-testid=tab-settings]")
    budget = page.locator("[data-testid='setting-selection.budget']")
    budget.fill("8")
    budget.press("Enter")
    wait_for(lambda: server.status(id)["tokens"] <= 8, "fewer cells")
    assert server.status(id)["settings"]["selection.budget"] == "8"
    budget.fill("many")
    budget.press("Enter")
    page.locator(".setting .problem", has_text="many").wait_for()
    assert server.status(id)["settings"]["selection.budget"] == "8"


def test_the_keyboard_does_it_all(id: str, page: Page, server: RunningServer) -> None:
    press = page.keyboard.press
    page.click(f"{page.card(id)} .choose")
    press("/")
    page.keyboard.type("moving")
    press("Enter")
    wait_for(lambda: server.status(id)["texts"] == ["moving"], "the query")
    press("Escape")
    press(" ")
    page.in_state(id, "paused")
    press(" ")
    page.in_state(id, "live")
    first = page.in_card(id, "view-select").input_value()
    press("v")
    assert page.in_card(id, "view-select").input_value() != first
    press("b")
    page.in_card(id, "beside-canvas").wait_for(state="visible")
    press("b")
    press("r")
    for key in ("ArrowRight", "ArrowDown", "Shift+ArrowLeft", "Enter"):
        press(key)
    wait_for(lambda: server.status(id)["region"], "the region")
    x, y, w, h = server.status(id)["region"]
    assert (x, y, w, h) == pytest.approx((320 * 0.375, 180 * 0.375, 320 * 0.275, 180 * 0.3), abs=2)
    press("?")
    page.locator("#help-dialog").wait_for(state="visible")
    press("Escape")
    page.locator("#help-dialog").wait_for(state="hidden")


def test_every_control_has_a_name(id: str, page: Page) -> None:
    roles = {"button", "checkbox", "combobox", "link", "meter", "searchbox", "slider", "spinbutton", "switch", "tab"}
    roles |= {"textbox", "img", "dialog", "region", "complementary", "main"}
    session = page.context.new_cdp_session(page.page)
    session.send("Accessibility.enable")

    def nameless() -> tuple[list[str], int]:
        nodes = session.send("Accessibility.getFullAXTree")["nodes"]
        found = [node for node in nodes if not node.get("ignored") and node["role"]["value"] in roles]
        bare = [node for node in found if not node.get("name", {}).get("value", "").strip()]
        return [f"{node['role']['value']} {node.get('properties')}" for node in bare], len(found)

    for tab in TABS:
        page.click(f"[data-testid=tab-{tab}]")
        bare, count = nameless()
        assert bare == [], tab
        assert count > 15
    page.click("[data-testid=add-stream]")
    page.locator("#add-dialog").wait_for(state="visible")
    bare, count = nameless()
    assert bare == []
    assert count > 5


def test_narrow_screens_do_not_scroll_sideways(id: str, page: Page) -> None:
    for width in (768, 390, 360):
        page.set_viewport_size({"width": width, "height": 780})
        for tab in TABS:
            page.click(f"[data-testid=tab-{tab}]")
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (tab, width)
        assert page.locator(f"{page.card(id)} .figure > :not(.why)").evaluate_all(CUT) == []
        box = page.in_card(id, "video-canvas").bounding_box()
        assert 0.8 * width * (width < 700) <= box["width"] <= width


def test_a_stream_is_added_and_removed_while_another_goes_on(server: RunningServer, page: Page) -> None:
    first = server.add(SOURCE)
    page.sees_pictures(first)
    page.click("[data-testid=add-stream]")
    page.fill("[data-testid=add-source-input]", SOURCE)
    page.fill("#add-name", "second one")
    page.fill("#add-query", "green")
    page.click("[data-testid=add-submit]")
    page.locator(CARD).nth(1).wait_for()
    second = str(page.locator(CARD).nth(1).get_attribute("data-stream-id"))
    assert (server.status(second)["name"], server.status(second)["texts"]) == ("second one", ["green"])
    page.sees_pictures(second)
    page.sees_pictures(first)
    page.in_card(second, "remove-stream").click()
    page.locator(page.card(second)).wait_for(state="detached")
    assert [runner.id for runner in server.serving.streams.runners] == [first]
    page.sees_pictures(first)


@pytest.mark.parametrize("missing", ["", "MediaStreamTrackProcessor"])
def test_the_browsers_camera_comes_back_annotated(server: RunningServer, page: Page, missing: str) -> None:
    """Also where the browser has no `MediaStreamTrackProcessor`, as Firefox and Safari."""
    page.evaluate(f"delete window['{missing}']")
    page.click("[data-testid=add-stream]")
    page.fill("#add-query", "green")
    page.click("[data-action=add-browser-camera]")
    id = page.one()
    page.sees_pictures(id, 30)
    status = server.status(id)
    assert (status["kind"], status["size_wh"], status["texts"]) == ("browser", [640, 480], ["green"])
    assert status["tokens"] > 0
    # The fake camera is green with a moving disc; the dimmed cells tell that the picture was annotated.
    server.http.patch(f"/api/streams/{id}", json={"settings": {"selection.budget": 60}})
    page.in_card(id, "beside-select").select_option("source")
    wait_for(lambda: _dimmed(page, id) > 0.1, "annotated pictures")
    page.in_card(id, "remove-stream").click()
    page.locator(page.card(id)).wait_for(state="detached")
    assert not server.serving.streams.runners
    page.locator(".toast", has_text="the stream was removed").wait_for()


def test_closing_the_tab_ends_the_browsers_camera(server: RunningServer, page: Page) -> None:
    page.click("[data-testid=add-stream]")
    page.click("[data-action=add-browser-camera]")
    page.sees_pictures(page.one())
    page.close()
    wait_for(lambda: not server.serving.streams.runners, "the stream to end", 5)


def _dimmed(page: Page, id: str) -> float:
    """Share of the samples that are clearly darker in the annotated picture than in the source beside it."""
    pairs = [
        (sum(drawn), sum(seen))
        for rows in zip(page.pixels(id), page.pixels(id, "beside-canvas"), strict=True)
        for drawn, seen in zip(*rows, strict=True)
    ]
    return sum(drawn < 0.7 * seen for drawn, seen in pairs) / len(pairs)


def test_a_source_that_fails_says_why_and_is_tried_again(server: RunningServer, page: Page) -> None:
    port = free_port()
    id = server.serving.streams.add(f"http://127.0.0.1:{port}/").id
    overlay = page.in_card(id, "state-overlay")
    overlay.locator("[data-action=retry]").wait_for()
    wait_for(lambda: str(port) in overlay.inner_text(), "the reason")

    def answer(connection: socket.socket) -> None:
        # Its end is the other side's.
        with contextlib.suppress(OSError, av.FFmpegError):
            send(connection, Scene((640, 360)))

    with byte_server(answer, port):
        overlay.locator("[data-action=retry]").click()
        page.sees_pictures(id)
        assert overlay.is_hidden()
        server.serving.streams.remove(id)


def test_the_page_comes_back_when_the_server_does(new_page: Callable[..., Page]) -> None:
    with running() as server:
        id = server.add(SOURCE)
        page = new_page(server)
        page.goto(server.address)
        page.sees_pictures(id)
        page.expected += ["WebSocket connection", "Failed to load resource"]
    page.wait_for_selector("#link[data-state=lost]")
    page.in_card(id, "state-overlay").wait_for(state="visible")
    with running(port=server.port) as server:
        server.add(SOURCE)
        page.connected()
        page.sees_pictures(page.one())


def test_without_its_token_the_page_asks_for_it(new_page: Callable[..., Page]) -> None:
    token = "a-token-of-some-length-42"
    with running(token=token) as server:
        server.serving.streams.add(SOURCE)
        page = new_page(server)
        page.expected.append("status of 401")
        field = page.locator("input[type=password]:visible")
        page.goto(server.address)
        field.wait_for()
        assert page.locator(CARD).count() == 0
        field.fill("wrong-token-of-some-length")
        field.press("Enter")
        page.wait_for_url("**wrong-token*")
        field.fill(token)
        field.press("Enter")
        page.connected()
        page.sees_pictures(page.one())
        assert token not in page.url
        page.close()


def test_the_tiny_model_answers_on_the_page(new_page: Callable[..., Page]) -> None:
    """Nothing was named or fetched: it answers, and says what it knows."""
    source = f"loop:{SHAPES}"
    sessions = SessionFactory(SETTINGS)
    with running(allowed=AllowedSources(named=(source,)), make_session=sessions.make, model=sessions.name) as server:
        server.add(source, query="circle")
        page = new_page(server)
        page.goto(server.address)
        page.connected()
        page.click("[data-testid=tab-answers]")
        assert "knows drawn shapes and signs alone" in page.locator("form.ask").inner_text()
        page.fill("[data-testid=ask-input]", "what colour is the circle?")
        page.click("[data-testid=ask-submit]")
        answer = page.locator("[data-testid=answers] li[data-state=done]")
        answer.wait_for()
        assert answer.locator(".text").inner_text() == "red"
        page.fill("[data-testid=ask-input]", "is there a dog?")
        page.click("[data-testid=ask-submit]")
        page.locator("[data-testid=answers] li[data-state=done] .hint", has_text="not taught 'dog'").wait_for()
        page.close()
