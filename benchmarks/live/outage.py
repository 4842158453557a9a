"""A source's server is killed and comes back: how soon is its picture there, and did anything else suffer?"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

from arr_stream.errors import MeasurementFailed
from benchmarks.live.browser import PATIENCE_MS, chromium, take_shown, wait_for_pictures, watched_page
from benchmarks.live.figures import Figure, LivePlan
from benchmarks.live.process import Child, free_port, live_server

_AWAY_SECONDS = 10.0
_WARM_UP_PICTURES = 90


def measure_outage(plan: LivePlan) -> list[Figure]:
    """Ten seconds without the server of one of two streams; the page shows both."""
    port = free_port()
    sender = _sender(port)
    try:
        with (
            live_server(counters=[30], sources=[sender.address], settings=plan.settings) as (server, _),
            chromium() as browser,
            watched_page(browser, server.address) as page,
        ):
            other, broken = (status["id"] for status in server.get_json("/api/streams"))
            for id in (other, broken):
                wait_for_pictures(page, _WARM_UP_PICTURES, stream=id)
            take_shown(page)
            sender.kill()
            killed_ms = time.time() * 1e3
            time.sleep(_AWAY_SECONDS)
            state = server.get_json(f"/api/streams/{broken}")["state"]
            if state == "live":
                raise MeasurementFailed("outage: the stream counts as live while its server is gone")
            sender = _sender(port)
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


def _sender(port: int) -> Child:
    child = Child(["-m", "benchmarks.live.sender", "--port", str(port)], port)
    try:
        child.wait_ready("/")
    except BaseException:
        child.kill()
        raise
    return child


def _longest_gap(times_ms: Sequence[float]) -> float:
    return max((b - a for a, b in itertools.pairwise(times_ms)), default=float("inf"))


def _rate(times_ms: Sequence[float]) -> float:
    return (len(times_ms) - 1) / (times_ms[-1] - times_ms[0]) * 1e3 if len(times_ms) > 1 else 0.0
