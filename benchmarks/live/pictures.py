"""How old a picture is when the page shows it, and how soon the first one is there."""

from __future__ import annotations

import statistics
import time

from benchmarks.live.browser import (
    CAMERA_ARGUMENTS,
    CAMERA_SCRIPT,
    PATIENCE_MS,
    ShownPicture,
    chromium,
    take_shown,
    wait_for_pictures,
    watched_page,
)
from benchmarks.live.counter import MODULUS
from benchmarks.live.figures import Figure, LivePlan, percentiles
from benchmarks.live.process import captures, live_server

_WARM_UP_PICTURES = 150
"""Until then the keyframe models are loaded and the first pictures, which are slower, are over."""

_OPENINGS = 5

_BYTES_SCRIPT = """
[...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")]
  .reduce((sum, entry) => sum + entry.transferSize, 0)
"""


def measure_page(plan: LivePlan) -> list[Figure]:
    """From the capture of a frame in the server to the canvas of the page."""
    with (
        live_server(counters=[30], settings=plan.settings) as (server, folder),
        chromium() as browser,
        watched_page(browser, server.address) as page,
    ):
        wait_for_pictures(page, _WARM_UP_PICTURES)
        take_shown(page)
        time.sleep(plan.seconds)
        shown = take_shown(page)
        captured_ms = captures(folder)
    ages_ms = [each.shown_ms - captured_ms[each.number] for each in shown if each.number in captured_ms]
    return [
        *percentiles("page", "age of a frame on the page", ages_ms, 60.0, 100.0),
        Figure("page", "pictures shown", len(shown) / plan.seconds, "a second"),
        _unread("page", shown),
    ]


def measure_browser_camera(plan: LivePlan) -> list[Figure]:
    """From a picture painted in the browser, by WebRTC to the server, through the pipeline, and back to the canvas."""
    with (
        live_server(settings=plan.settings) as (server, _),
        chromium(CAMERA_ARGUMENTS) as browser,
        watched_page(browser, server.address, scripts=[CAMERA_SCRIPT]) as page,
    ):
        page.wait_for_selector("#link[data-state=open]", timeout=PATIENCE_MS)
        page.click("[data-testid=add-stream]", timeout=PATIENCE_MS)
        page.click("[data-action=add-browser-camera]", timeout=PATIENCE_MS)
        wait_for_pictures(page, _WARM_UP_PICTURES)
        take_shown(page)
        time.sleep(plan.seconds)
        shown = take_shown(page)
    # The number is the time at which it was painted.
    ages_ms = [(each.shown_ms - each.number) % MODULUS for each in shown if each.number is not None]
    way_ms = [(each.captured_unix * 1e3 - each.number) % MODULUS for each in shown if each.number is not None]
    part = "browser-camera"
    return [
        *percentiles(part, "from the camera to the annotated picture", ages_ms, 120.0, 200.0),
        *percentiles(part, "of it, from the camera to the server", way_ms)[:2],
        Figure(part, "pictures shown", len(shown) / plan.seconds, "a second"),
        _unread(part, shown),
    ]


def measure_first_picture(plan: LivePlan) -> list[Figure]:
    """From the start of opening the page to its first picture, and what was sent for it before."""
    times_ms, sizes = [], []
    with live_server(counters=[30], settings=plan.settings) as (server, _), chromium() as browser:
        for _ in range(_OPENINGS):
            with watched_page(browser, server.address) as page:
                wait_for_pictures(page, 1)
                times_ms.append(float(page.evaluate("window.arrFirst_ms")))
                sizes.append(float(page.evaluate(_BYTES_SCRIPT)) / 1e3)
    part = "first-picture"
    return [
        Figure(part, f"first picture, median of {_OPENINGS} openings", statistics.median(times_ms), "ms", 1000.0),
        Figure(part, "first picture, slowest", max(times_ms), "ms", 1000.0),
        Figure(part, "sent before the video", max(sizes), "kB", 200.0),
    ]


def _unread(part: str, shown: list[ShownPicture]) -> Figure:
    unread = sum(each.number is None for each in shown)
    return Figure(part, "pictures whose number could not be read", 100 * unread / max(1, len(shown)), "%", 1.0)
