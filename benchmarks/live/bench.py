"""Live streams and their page, measured in a real browser against a real server."""

from __future__ import annotations

import itertools
import json
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any
from urllib.parse import quote

from arr_stream.consumer import total_ms
from arr_stream.errors import InvalidSetting, MeasurementFailed
from arr_stream.evaluation.tables import Timing
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
from benchmarks.live.figures import Figure, LivePlan, LiveReport, percentiles
from benchmarks.live.process import Child, captures, free_port, live_server, start_sender, wait_until
from benchmarks.live.scene import MODULUS
from benchmarks.results.records import describe_machine

_WARM_UP_PICTURES = 150
"""Until then the keyframe models are loaded and the first pictures, which are slower, are over."""

_OPENINGS = 5

_BYTES_SCRIPT = """
[...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")]
  .reduce((sum, entry) => sum + entry.transferSize, 0)
"""


def measure_page(plan: LivePlan) -> list[Figure]:
    """Measure the latency from a frame's capture in the server to the page's canvas."""
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
    """Measure the round trip from a picture painted in the browser, through the server, back to the canvas."""
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
    """Measure the time from opening the page to its first picture, and the bytes sent until then."""
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


_LEAST_SHARE = 29 / 30
"""Of the frames that come, so many should be processed."""

_LEAST_KEYFRAME_SECONDS = 30.0
_MOST_RECORDS = 900
_QUIET_AGE = 15
"""So many frames after it was asked for, a keyframe is done: what slows frames from then on is something else."""


def measure_rate(plan: LivePlan) -> list[Figure]:
    """Measure one stream of 30 frames a second, shown on a page."""
    fps = _processed_fps([30.0], plan, plan.seconds)
    return [Figure("rate", "frames processed of one stream", fps[0], "a second", 29.0, at_least=True)]


def measure_three(plan: LivePlan) -> list[Figure]:
    """Measure three streams, shown side by side."""
    easy = min(_processed_fps([10.0] * 3, plan, plan.seconds))
    full = min(_processed_fps([30.0] * 3, plan, plan.seconds))
    return [
        Figure("three", "three streams of 10 fps, the slowest", easy, "a second", 10 * _LEAST_SHARE, at_least=True),
        Figure("three", "three streams of 30 fps, the slowest", full, "a second", 10.0, at_least=True),
    ]


def measure_four(plan: LivePlan) -> list[Figure]:
    """Measure four streams without a page."""
    fps = min(_processed_fps([30.0] * 4, plan, plan.seconds, watched=False))
    return [Figure("four", "four streams of 30 fps without a page, the slowest", fps, "a second", 29.0, at_least=True)]


def measure_keyframes(plan: LivePlan) -> list[Figure]:
    """The time that each frame takes while keyframes are made in the background, from the records."""
    seconds = max(plan.seconds, _LEAST_KEYFRAME_SECONDS)
    with (
        live_server(counters=[30], settings=plan.settings) as (server, _),
        chromium() as browser,
        watched_page(browser, server.address) as page,
    ):
        wait_for_pictures(page, _WARM_UP_PICTURES)
        time.sleep(seconds)
        wanted = min(_MOST_RECORDS, int(seconds * 29))
        (stream,) = server.get_json("/api/streams")
        records = _records(server, stream["id"], wanted)
    latencies_ms = Timing.of([total_ms(record["latency_ms"]) for record in records])
    quiet_ms = Timing.of([total_ms(each["latency_ms"]) for each in records if each["keyframe_age"] >= _QUIET_AGE])
    asked = sum(record["refresh_reason"] is not None for record in records)
    made = len({record["keyframe_index"] for record in records})
    if asked == 0 or made < 2:
        raise MeasurementFailed(f"keyframes: {asked} were asked for and {made} came in {len(records)} frames")
    part = "keyframes"
    return [
        Figure(part, "frame latency, median", latencies_ms.median, "ms"),
        Figure(part, "frame latency, p99", latencies_ms.p99, "ms"),
        Figure(part, "p99 / median", latencies_ms.p99 / latencies_ms.median, "times", 2.0),
        Figure(part, "p99 / median, while none is made", quiet_ms.p99 / latencies_ms.median, "times"),
        Figure(part, f"keyframes in {len(records)} frames", float(made), ""),
    ]


def _processed_fps(counters: Sequence[float], plan: LivePlan, seconds: float, *, watched: bool = True) -> list[float]:
    """Frames processed a second of each stream, with the page open or without."""
    with live_server(counters=counters, settings=plan.settings) as (server, _), ExitStack() as stack:
        page = stack.enter_context(watched_page(stack.enter_context(chromium()), server.address)) if watched else None
        if page is not None:
            wait_for_pictures(page, _WARM_UP_PICTURES)
        else:
            wait_until(
                lambda: min(_frames(server).values()) > _WARM_UP_PICTURES,
                f"{_WARM_UP_PICTURES} frames of each stream",
                30.0,
            )
        before, started = _frames(server), time.monotonic()
        time.sleep(seconds)
        after, ended = _frames(server), time.monotonic()
        streams = before.keys() if page is None else {shown.stream for shown in take_shown(page)}
    if len(streams) != len(counters):
        raise MeasurementFailed(f"the page showed {len(streams)} of {len(counters)} streams")
    return [(after[id] - before[id]) / (ended - started) for id in before]


def _frames(server: Child) -> dict[str, int]:
    return {status["id"]: status["frames"] for status in server.get_json("/api/streams")}


def _records(server: Child, id: str, last: int) -> list[dict[str, Any]]:
    lines = server.get(f"/api/streams/{quote(id)}/records?last={last}").decode().splitlines()
    return [record for record in map(json.loads, lines) if record["type"] == "frame"]


_AWAY_SECONDS = 10.0
_FIRST_PICTURES = 90


def measure_outage(plan: LivePlan) -> list[Figure]:
    """Ten seconds without the server of one of two streams; the page shows both."""
    port = free_port()
    sender = start_sender(port)
    try:
        with (
            live_server(counters=[30], sources=[sender.address], settings=plan.settings) as (server, _),
            chromium() as browser,
            watched_page(browser, server.address) as page,
        ):
            other, broken = (status["id"] for status in server.get_json("/api/streams"))
            for id in (other, broken):
                wait_for_pictures(page, _FIRST_PICTURES, stream=id)
            take_shown(page)
            sender.kill()
            killed_ms = time.time() * 1e3
            time.sleep(_AWAY_SECONDS)
            state = server.get_json(f"/api/streams/{broken}")["state"]
            if state == "live":
                raise MeasurementFailed("outage: the stream counts as live while its server is gone")
            sender = start_sender(port)
            back_ms = time.time() * 1e3
            page.wait_for_function(
                "([id, back]) => arrShown.some(([stream, , at]) => stream === id && at > back)",
                arg=[broken, back_ms],
                timeout=PATIENCE_MS,
            )
            time.sleep(1.0)
            shown = take_shown(page)
            reconnects = server.get_json(f"/api/streams/{broken}")["reconnects"]
    finally:
        sender.kill()
    returned_ms = [each.shown_ms for each in shown if each.stream == broken and each.shown_ms > back_ms]
    others_ms = [each.shown_ms for each in shown if each.stream == other and each.shown_ms > killed_ms]
    part = "outage"
    return [
        Figure(part, "first picture after the server's return", (min(returned_ms) - back_ms) / 1e3, "s", 3.0),
        Figure(part, "longest gap of the other stream meanwhile", _longest_gap(others_ms), "ms", 250.0),
        Figure(part, "pictures of the other stream meanwhile", _rate(others_ms), "a second", 27.0, at_least=True),
        Figure(part, "reconnects counted", float(reconnects), "", 1.0, at_least=True),
    ]


def _longest_gap(times_ms: Sequence[float]) -> float:
    return max((b - a for a, b in itertools.pairwise(times_ms)), default=float("inf"))


def _rate(times_ms: Sequence[float]) -> float:
    return (len(times_ms) - 1) / (times_ms[-1] - times_ms[0]) * 1e3 if len(times_ms) > 1 else 0.0


PARTS: dict[str, Callable[[LivePlan], list[Figure]]] = {
    "page": measure_page,
    "browser-camera": measure_browser_camera,
    "rate": measure_rate,
    "three": measure_three,
    "four": measure_four,
    "keyframes": measure_keyframes,
    "first-picture": measure_first_picture,
    "outage": measure_outage,
}


def bench_live(parts: Sequence[str], plan: LivePlan) -> LiveReport:
    """Measure the parts, one after the other.

    Args:
        parts: Names from `PARTS`.
        plan: How.

    Raises:
        InvalidSetting: There is no such part.
        BackendUnavailable: Chromium, playwright, or a package of the extra `web` is missing.
        MeasurementFailed: Something did not happen that was to be measured.
    """
    for name in parts:
        if name not in PARTS:
            raise InvalidSetting(f"--part {name}: there is no such part", remedy=f"choose from {', '.join(PARTS)}")
    with chromium() as browser:
        machine = {**describe_machine(), "browser": f"Chromium {browser.version}"}
    figures: list[Figure] = []
    for name in parts:
        plan.progress(name)
        figures += PARTS[name](plan)
    return LiveReport(machine, tuple(figures))
