"""The page in a real browser: one stream, seen and changed."""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import Any

import pytest

from tests.browser import SOURCE, VIDEO, Page, Server, settled
from tests.live_servers import wait_for

pytest_plugins = ("tests.browser_fixtures",)


@pytest.fixture
def id(server: Server, page: Page) -> str:
    """One stream, seen on the page."""
    made = server.add()
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


def test_a_query_is_typed(id: str, page: Page, server: Server) -> None:
    box = page.in_card(id, "query-input")
    box.fill("red on the left")
    box.press("Enter")
    page.locator(f"{page.card(id)} .chip", has_text="red on the left").wait_for()
    assert server.status(id)["texts"] == ["red on the left"]
    box.press("ArrowUp")
    assert box.input_value() == "red on the left"
    page.locator(f"{page.card(id)} .chip button[aria-label^=Remove]").click()
    wait_for(lambda: server.status(id)["texts"] == [], "the query to be gone")


def test_a_region_is_dragged(id: str, page: Page, server: Server) -> None:
    box = page.in_card(id, "video-canvas").bounding_box()
    width, height = server.status(id)["size_wh"]
    wanted = [width * 0.25, height * 0.25, width * 0.5, height * 0.4]
    scale = box["width"] / width, box["height"] / height

    def to(x: float, y: float) -> tuple[float, float]:
        return box["x"] + x * scale[0], box["y"] + y * scale[1]

    x, y, w, h = wanted
    page.mouse.move(*to(x, y))
    page.mouse.down()
    page.mouse.move(*to(x + w / 3, y + h / 3))
    page.mouse.move(*to(x + w, y + h))
    page.mouse.up()
    wait_for(lambda: server.status(id)["region"], "the region")
    for got, dragged in zip(server.status(id)["region"], wanted, strict=True):
        assert got == pytest.approx(dragged, abs=4)
    page.in_card(id, "region-clear").click()
    wait_for(lambda: server.status(id)["region"] is None, "the region to be gone")


def test_a_channel_is_chosen(id: str, page: Page) -> None:
    page.in_card(id, "view-select").select_option("channel:x")

    def columns_alike() -> bool:
        rows = page.pixels(id)
        # The column's number as a colour: the same from top to bottom, another from left to right.
        return spread([row[8] for row in rows]) < 24 and spread(rows[4]) > 60

    wait_for(columns_alike, "the runner's picture")


def test_a_second_view_beside_the_first(id: str, page: Page) -> None:
    page.in_card(id, "beside-select").select_option("source")
    beside = page.in_card(id, "beside-canvas")
    beside.wait_for(state="visible")
    wait_for(lambda: spread(page.pixels(id, "beside-canvas")[4]) > 60, "a picture beside")
    captions = page.locator(f"{page.card(id)} figcaption").all_inner_texts()
    assert captions == [page.in_card(id, "view-select").input_value(), "source"]
    page.in_card(id, "beside-select").select_option("")
    beside.wait_for(state="hidden")


def test_pause_and_go_on(id: str, page: Page, server: Server) -> None:
    page.click(f"{page.card(id)} [data-action=pause]")
    page.in_state(id, "paused")
    assert server.status(id)["paused"]
    wait_for(lambda: settled(lambda: page.frames(id)), "the picture to stand still")
    assert page.in_card(id, "state-overlay").is_visible()
    page.click(f"{page.card(id)} [data-action=pause]")
    page.in_state(id, "live")
    page.sees_pictures(id)
    assert page.in_card(id, "state-overlay").is_hidden()


def test_a_setting_is_changed_with_effect(id: str, page: Page, server: Server) -> None:
    page.expected.append("status of 4")
    wait_for(lambda: (server.status(id)["tokens"] or 0) > 12, "cells")
    page.click("[data-testid=tab-settings]")
    budget = page.locator("[data-testid='setting-selection.budget']")
    budget.fill("8")
    budget.press("Enter")
    wait_for(lambda: server.status(id)["tokens"] <= 8, "fewer cells")
    assert server.status(id)["settings"] == {"selection.budget": "8"}
    budget.fill("many")
    budget.press("Enter")
    page.locator(".setting .problem", has_text="many").wait_for()
    assert server.status(id)["settings"] == {"selection.budget": "8"}


def test_the_keyboard_does_it_all(id: str, page: Page, server: Server) -> None:
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

    for tab in ("answers", "settings", "log", "details"):
        page.click(f"[data-testid=tab-{tab}]")
        bare, count = nameless()
        assert bare == [], tab
        assert count > 15
    page.click("[data-testid=add-stream]")
    page.locator("#add-dialog").wait_for(state="visible")
    bare, count = nameless()
    assert bare == []
    assert count > 5


def test_dark_and_light(id: str, page: Page) -> None:
    def lightness() -> int:
        return int(
            page.evaluate(
                "getComputedStyle(document.body).backgroundColor.match(/[\\d.]+/g).slice(0, 3)"
                ".reduce((sum, value) => sum + Number(value), 0)"
            )
        )

    before = lightness()
    page.click("[data-testid=theme-toggle]")
    wait_for(lambda: abs(lightness() - before) > 300, "other colours")
    page.reload()
    page.connected()
    assert abs(lightness() - before) > 300


@pytest.mark.parametrize("width", [360, 390, 768])
def test_narrow_screens_do_not_scroll_sideways(
    width: int, server: Server, new_page: Callable[..., Page], tmp_path: Any
) -> None:
    id = server.add()
    page = new_page(server, width=width, height=780)
    page.open()
    page.sees_pictures(id)
    for tab in ("answers", "settings", "log", "details"):
        page.click(f"[data-testid=tab-{tab}]")
        page.screenshot(path=tmp_path / f"{tab}-{width}.png", full_page=True)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, tab
    box = page.locator(VIDEO).first.bounding_box()
    assert 0.8 * width * (width < 700) <= box["width"] <= width


def test_clicking_before_the_server_has_answered_is_no_error(server: Server, new_page: Callable[..., Page]) -> None:
    page = new_page(server)
    held: queue.SimpleQueue[Any] = queue.SimpleQueue()
    page.route("**/api/info", lambda route: held.put(route))  # noqa: PLW0108
    page.goto(server.address, wait_until="domcontentloaded")
    wait_for(lambda: page.evaluate("1") and not held.empty(), "the page to ask")
    page.click("[data-testid=add-stream]")
    assert not page.locator("#add-dialog").is_visible()
    held.get().continue_()
    page.connected()
    # What was wanted comes as soon as it can.
    page.locator("#add-dialog").wait_for(state="visible")


def test_the_picture_keeps_its_shape(server: Server, page: Page) -> None:
    id = server.add(SOURCE.replace("320x180", "180x320"))
    page.sees_pictures(id)
    box = page.in_card(id, "video-canvas").bounding_box()
    assert box["height"] / box["width"] == pytest.approx(320 / 180, rel=0.03)
