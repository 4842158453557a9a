"""Verdicts on a soak, from its figures."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from arr_stream.evaluation.tables import ResultTable
from soaking.running import Outcome
from soaking.sampling import Sample

MOST_MB_A_MINUTE = 1.0
_WARM_UP_SHARE = 1 / 3
_FEWEST_SAMPLES = 20
_MOST_RISEN = 5
_MEMORY = {"own_mb": "memory of the server", "all_mb": "memory of the server and its workers"}


@dataclass(frozen=True, slots=True)
class Verdict:
    """Something that should hold, whether it does, and the figures."""

    what: str
    good: bool
    found: str


def steady(outcome: Outcome) -> list[Sample]:
    """Return the samples after the warm-up that no fault overlaps."""
    first = outcome.seconds * _WARM_UP_SHARE
    return [each for each in outcome.samples if each.fault is None and each.seconds >= first]


def slope(samples: Sequence[Sample], field: str) -> tuple[float, float]:
    """Return the least-squares slope of a field, a minute, and its standard error.

    Samples with the same number of worker processes share a level; all share the slope. The error is infinite for too
    few samples.
    """
    levels: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for each in samples:
        levels[each.children].append((each.seconds / 60, getattr(each, field)))
    apart = []
    for points in levels.values():
        means = [statistics.fmean(values) for values in zip(*points, strict=True)]
        apart += [(x - means[0], y - means[1]) for x, y in points]
    spread, free = sum(x * x for x, _ in apart), len(apart) - len(levels) - 1
    if free < 1 or spread == 0:
        return 0.0, math.inf
    rise = sum(x * y for x, y in apart) / spread
    return rise, math.sqrt(sum((y - rise * x) ** 2 for x, y in apart) / free / spread)


def slopes(outcome: Outcome) -> dict[str, float]:
    """Return the growth of memory in MB a minute, by field."""
    return {field: slope(steady(outcome), field)[0] for field in _MEMORY}


def judge(outcome: Outcome) -> list[Verdict]:
    """Return everything that should hold."""
    lost = [fault for fault in outcome.faults if fault.problem]
    told = "; ".join(f"{fault.kind} at {fault.seconds:.0f} s: {fault.problem}" for fault in lost[:5])
    ended = outcome.ended_seconds
    return [
        *(_flat(steady(outcome), field, what) for field, what in _MEMORY.items()),
        *(_level(steady(outcome), field) for field in ("handles", "threads", "children")),
        Verdict(
            "every fault was survived",
            not lost,
            f"{len(outcome.faults) - len(lost)} of {len(outcome.faults)}; {told}".rstrip("; "),
        ),
        Verdict("the server ends when asked to", ended is not None, "killed" if ended is None else f"{ended:.1f} s"),
        Verdict("no process is left", not outcome.left, f"{len(outcome.left)} left"),
    ]


def _flat(samples: Sequence[Sample], field: str, what: str) -> Verdict:
    rise, error = slope(samples, field)
    good = len(samples) >= _FEWEST_SAMPLES and rise < MOST_MB_A_MINUTE
    found = f"{rise:+.3f} ± {error:.3f} MB a minute, {len(samples)} samples"
    return Verdict(f"{what} grows by less than {MOST_MB_A_MINUTE:g} MB a minute", good, found)


def _level(samples: Sequence[Sample], field: str) -> Verdict:
    """Compare the last third with the first: added streams move the average, a leak moves the minimum too."""
    values, third = [getattr(each, field) for each in samples], len(samples) // 3
    if len(values) < _FEWEST_SAMPLES:
        return Verdict(f"{field} do not pile up", False, f"only {len(values)} samples without a fault")
    first, last = values[:third], values[-third:]
    found = f"{min(first)} to {max(first)} in the first third, {min(last)} to {max(last)} in the last"
    risen = min(last) - min(first), statistics.median(last) - statistics.median(first)
    return Verdict(f"{field} do not pile up", risen[0] <= 2 and risen[1] <= _MOST_RISEN, found)


def verdict_table(outcome: Outcome, verdicts: Sequence[Verdict]) -> ResultTable:
    """Return the verdicts as a table for the results page."""
    kinds = len({fault.kind for fault in outcome.faults})
    title = (
        f"{outcome.seconds / 60:.0f} minutes, {outcome.frames} frames, {len(outcome.faults)} faults of {kinds} kinds"
    )
    rows = tuple((verdict.what, "yes" if verdict.good else "no", verdict.found) for verdict in verdicts)
    return ResultTable(title, ("what", "holds", "found"), rows)
