"""How many frames a second are processed, and what keyframes do to the frames between."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from arr_stream.consumer import total_ms
from arr_stream.errors import MeasurementFailed
from arr_stream.evaluation.statistics import Timing
from benchmarks.live.browser import chromium, take_shown, wait_for_pictures, watched_page
from benchmarks.live.figures import Figure, LivePlan
from benchmarks.live.process import Child, live_server

_WARM_UP_PICTURES = 150
_LEAST_SHARE = 29 / 30
"""Of the frames that come, so many should be processed."""

_LEAST_KEYFRAME_SECONDS = 30.0
_MOST_RECORDS = 900
_QUIET_AGE = 15
"""So many frames after it was asked for, a keyframe is done: what slows frames from then on is something else."""


def measure_rate(plan: LivePlan) -> list[Figure]:
    """One stream of 30 frames a second, shown on a page."""
    fps = _processed_fps([30.0], plan, plan.seconds)
    return [Figure("rate", "frames processed of one stream", fps[0], "a second", 29.0, at_least=True)]


def measure_three(plan: LivePlan) -> list[Figure]:
    """Three streams, shown side by side."""
    easy = min(_processed_fps([10.0] * 3, plan, plan.seconds))
    full = min(_processed_fps([30.0] * 3, plan, plan.seconds))
    return [
        Figure("three", "three streams of 10 fps, the slowest", easy, "a second", 10 * _LEAST_SHARE, at_least=True),
        Figure("three", "three streams of 30 fps, the slowest", full, "a second", 10.0, at_least=True),
    ]


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


def _processed_fps(counters: Sequence[float], plan: LivePlan, seconds: float) -> list[float]:
    """Frames processed a second of each stream, with the page open."""
    with (
        live_server(counters=counters, settings=plan.settings) as (server, _),
        chromium() as browser,
        watched_page(browser, server.address) as page,
    ):
        wait_for_pictures(page, _WARM_UP_PICTURES)
        before, started = _frames(server), time.monotonic()
        time.sleep(seconds)
        after, ended = _frames(server), time.monotonic()
        streams = {shown.stream for shown in take_shown(page)}
    if len(streams) != len(counters):
        raise MeasurementFailed(f"the page showed {len(streams)} of {len(counters)} streams")
    return [(after[id] - before[id]) / (ended - started) for id in before]


def _frames(server: Child) -> dict[str, int]:
    return {status["id"]: status["frames"] for status in server.get_json("/api/streams")}


def _records(server: Child, id: str, last: int) -> list[dict[str, Any]]:
    lines = server.get(f"/api/streams/{quote(id)}/records?last={last}").decode().splitlines()
    return [record for record in map(json.loads, lines) if record["type"] == "frame"]
