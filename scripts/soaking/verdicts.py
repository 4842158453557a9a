"""What came of a soak: figures, and whether each is as it should be."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from arr_stream.evaluation.tables import ResultTable
from soaking.sampling import Held, Sample, Slope, fit_slope

MOST_MB_A_MINUTE = 1.0
WARM_UP_SHARE = 1 / 6
"""Of the stream; what is loaded, cached and kept has taken its room by then."""

_FEWEST_POINTS = 20
_MOST_RISEN = 5
"""From third to third, of what most samples show: a further stream has about as many handles and threads."""


@dataclass(frozen=True, slots=True)
class Survived:
    """A fault that has been.

    Args:
        kind: One of `faults.FAULTS`.
        stream_seconds, run_seconds: When it began.
        recovery_seconds: From the end of the fault until all went on as before; None where that did not come about.
        problem: Why not.
    """

    kind: str
    stream_seconds: float
    run_seconds: float
    recovery_seconds: float | None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """One thing that should hold."""

    what: str
    good: bool
    found: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """A whole soak.

    Args:
        seed: Of the faults.
        stream_seconds, run_seconds: How long it was.
        frames, records: Processed, and written down.
        faults, samples: In their order.
        before, after: What was held.
        failures: Errors that ended a stream or were not expected.
    """

    seed: int
    stream_seconds: float
    run_seconds: float
    frames: int
    records: int
    faults: tuple[Survived, ...]
    samples: tuple[Sample, ...]
    before: Held
    after: Held
    failures: tuple[str, ...]

    def steady(self) -> list[Sample]:
        """Samples after the warm-up during which no fault went on."""
        first = self.stream_seconds * WARM_UP_SHARE
        return [each for each in self.samples if each.fault is None and each.stream_seconds >= first]

    def slope(self, field: str, *, of_stream: bool = False) -> Slope:
        """How a field of the steady samples rises, a minute of the run or of the stream."""
        steady = self.steady()
        times = [each.stream_seconds if of_stream else each.run_seconds for each in steady]
        minutes, values = [seconds / 60 for seconds in times], [getattr(each, field) for each in steady]
        # Other keyframe models make another number of workers, and that another level.
        return fit_slope(minutes, values, [each.children for each in steady])

    def slopes(self) -> dict[str, dict[str, float]]:
        """How memory grows after the warm-up."""
        return {
            f"{field}_per_{clock}_minute": asdict(self.slope(field, of_stream=clock == "stream"))
            for clock in ("run", "stream")
            for field in _MEMORY
        }


def everything(outcome: Outcome, verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """For programs."""
    steady = outcome.steady()
    spans = {
        field: [pick(getattr(each, field) for each in steady) for pick in (min, max)]
        for field in ("handles", "threads", "children", "waiting", "blocks")
        if steady
    }
    return {
        "verdicts": [asdict(each) for each in verdicts],
        "slopes": outcome.slopes(),
        "least_and_most_between_faults": spans,
        **asdict(outcome),
    }


def verdict_table(outcome: Outcome, verdicts: Sequence[Verdict]) -> ResultTable:
    """For a page."""
    kinds = len({fault.kind for fault in outcome.faults})
    title = (
        f"{outcome.stream_seconds / 60:.0f} minutes of stream in {outcome.run_seconds / 60:.0f} minutes, "
        f"{len(outcome.faults)} faults of {kinds} kinds"
    )
    rows = tuple((verdict.what, "yes" if verdict.good else "no", verdict.found) for verdict in verdicts)
    return ResultTable(title, ("what", "holds", "found"), rows)


def judge(outcome: Outcome) -> list[Verdict]:
    """Everything that should hold."""
    return [
        *(_flat(outcome, field, what) for field, what in _MEMORY.items()),
        *(_level(outcome, field, what) for field, what in _LEVELS.items()),
        _none_left("threads", outcome.before.threads, outcome.after.threads),
        _none_left("handles", outcome.before.handles, outcome.after.handles),
        _none_left("child processes", outcome.before.children, outcome.after.children),
        _tasks(outcome),
        _survived(outcome.faults),
        Verdict("no stream ended, no error surprised", not outcome.failures, "; ".join(outcome.failures[:5]) or "none"),
        Verdict(
            "a record for every frame", outcome.records == outcome.frames, f"{outcome.records} of {outcome.frames}"
        ),
    ]


_LEVELS = {"handles": "open handles", "threads": "threads", "waiting": "frames that wait"}
_MEMORY = {"own_mb": "memory of the process", "all_mb": "memory of the process and its workers"}


def _flat(outcome: Outcome, field: str, what: str) -> Verdict:
    slope, of_stream = outcome.slope(field), outcome.slope(field, of_stream=True)
    found = (
        f"{slope.per_minute:+.3f} ± {slope.error:.3f} MB a minute of the run, "
        f"{of_stream.per_minute:+.3f} ± {of_stream.error:.3f} a minute of the stream, {slope.points} samples"
    )
    worst = max(slope.per_minute, of_stream.per_minute)
    known = slope.points >= _FEWEST_POINTS and math.isfinite(slope.error)
    if not known:
        found = f"{slope.points} samples between faults tell nothing; {_FEWEST_POINTS} are needed"
    return Verdict(
        f"{what} grows by less than {MOST_MB_A_MINUTE:g} MB a minute", known and worst < MOST_MB_A_MINUTE, found
    )


def _level(outcome: Outcome, field: str, what: str) -> Verdict:
    """Held against the first third: streams that come and go move the average, and a leak the least."""
    values = [getattr(each, field) for each in outcome.steady()]
    third = len(values) // 3
    if len(values) < _FEWEST_POINTS:
        return Verdict(f"{what} do not pile up", False, f"{len(values)} samples between faults tell nothing")
    first, last = values[:third], values[-third:]
    found = (
        f"first third: {min(first)} to {max(first)}, mostly {statistics.median(first):g}; "
        f"last third: {min(last)} to {max(last)}, mostly {statistics.median(last):g}"
    )
    risen = min(last) - min(first), statistics.median(last) - statistics.median(first)
    # Fewer frames wait for a moment than handles are open at least: what waits is judged by most samples alone.
    floor = risen[0] <= (_MOST_RISEN if field == "waiting" else 1)
    return Verdict(f"{what} do not pile up", floor and risen[1] <= _MOST_RISEN, found)


def _none_left(what: str, before: Sequence[str], after: Sequence[str]) -> Verdict:
    left = Counter(after) - Counter(before)
    named = [f"{count}x {name}" for name, count in itertools.islice(left.items(), 5)]
    return Verdict(f"no {what} left", not left, f"{len(before)} before, {len(after)} after {'; '.join(named)}".strip())


def _tasks(outcome: Outcome) -> Verdict:
    before, after = outcome.before.tasks, outcome.after.tasks
    return Verdict("no thread of a library left", after <= before, f"{before} before, {after} after")


def _survived(faults: Sequence[Survived]) -> Verdict:
    lost = [f"{each.kind} at {each.stream_seconds:.0f} s: {each.problem}" for each in faults if each.problem]
    found = f"{len(faults) - len(lost)} of {len(faults)}" + "".join(f"; {each}" for each in lost[:5])
    return Verdict("every fault survived", not lost, found)
