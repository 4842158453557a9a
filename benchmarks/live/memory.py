"""Does a server with an open page stay as large as it is?"""

from __future__ import annotations

import itertools
import re
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from arr_stream.errors import MeasurementFailed
from benchmarks.live.browser import chromium, take_shown, wait_for_pictures, watched_page
from benchmarks.live.figures import Figure, LivePlan
from benchmarks.live.process import Child, family_rss_bytes, live_server

_EVERY_SECONDS = 10.0
_WARM_UP_PICTURES = 1200
"""By then the records that are kept, of the last 900 frames, take all the room that they will."""

_MOST_GROWTH_PERCENT = 5.0
_MOST_WAITING = 1.0
_PARTS = 5
_QUEUE = re.compile(r"^arr_stream_queue_frames\{[^}]*\} (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class _Sample:
    """Megabytes of the server with its workers and of the page's objects, and frames that wait."""

    server_mb: float
    page_mb: float
    waiting: float


def measure_memory(plan: LivePlan) -> list[Figure]:
    """Memory in fifths of the time, and the queue's depth."""
    samples = []
    with (
        live_server(counters=[30], settings=plan.settings) as (server, _),
        chromium() as browser,
        watched_page(browser, server.address) as page,
    ):
        wait_for_pictures(page, _WARM_UP_PICTURES)
        take_shown(page)
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable")
        for k in range(max(2 * _PARTS, round(plan.minutes * 60 / _EVERY_SECONDS))):
            time.sleep(_EVERY_SECONDS)
            if not take_shown(page):
                raise MeasurementFailed(f"memory: no picture in {_EVERY_SECONDS:g} s, after {k} such times")
            # What is garbage already, and only not collected yet, is no growth.
            session.send("HeapProfiler.collectGarbage")
            metrics = session.send("Performance.getMetrics")["metrics"]
            heap_bytes = next(each["value"] for each in metrics if each["name"] == "JSHeapUsedSize")
            samples.append(_Sample(family_rss_bytes(server.pid) / 1e6, heap_bytes / 1e6, _waiting(server)))
            plan.progress(f"memory: {samples[-1].server_mb:.0f} MB, page {samples[-1].page_mb:.0f} MB")
    return [
        *_fifths("the server with its workers", [each.server_mb for each in samples]),
        *_fifths("the page's objects", [each.page_mb for each in samples], limit=None),
        Figure("memory", "frames that wait, most", max(each.waiting for each in samples), "frames", _MOST_WAITING),
    ]


def _fifths(what: str, values_mb: Sequence[float], limit: float | None = _MOST_GROWTH_PERCENT) -> list[Figure]:
    """The mean of each fifth, and the growth from the second, when all is loaded, to the last."""
    edges = [len(values_mb) * k // _PARTS for k in range(_PARTS + 1)]
    means = [statistics.fmean(values_mb[a:b]) for a, b in itertools.pairwise(edges)]
    growth_percent = 100 * (means[-1] / means[1] - 1)
    return [
        *(Figure("memory", f"{what}, fifth {k + 1}", mean, "MB") for k, mean in enumerate(means)),
        Figure("memory", f"{what}, growth from the second fifth to the last", growth_percent, "%", limit),
    ]


def _waiting(server: Child) -> float:
    found = _QUEUE.findall(server.get("/metrics").decode())
    if not found:
        raise MeasurementFailed("memory: /metrics does not tell how many frames wait")
    return max(float(value) for value in found)
