"""`python -m benchmarks live`: live streams and their page, measured in a real browser against a real server."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from arr_stream.errors import InvalidSetting
from benchmarks.live.browser import chromium
from benchmarks.live.figures import Figure, LivePlan, LiveReport, describe_machine
from benchmarks.live.memory import measure_memory
from benchmarks.live.outage import measure_outage
from benchmarks.live.pace import measure_keyframes, measure_rate, measure_three
from benchmarks.live.pictures import measure_browser_camera, measure_first_picture, measure_page

PARTS: dict[str, Callable[[LivePlan], list[Figure]]] = {
    "page": measure_page,
    "browser-camera": measure_browser_camera,
    "rate": measure_rate,
    "three": measure_three,
    "keyframes": measure_keyframes,
    "first-picture": measure_first_picture,
    "outage": measure_outage,
    "memory": measure_memory,
}

USUAL = tuple(name for name in PARTS if name != "memory")
"""What is measured where nothing is named; memory takes half an hour."""


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
        machine = describe_machine(f"Chromium {browser.version}")
    figures: list[Figure] = []
    for name in parts:
        plan.progress(name)
        figures += PARTS[name](plan)
    return LiveReport(machine, tuple(figures))
