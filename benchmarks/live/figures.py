"""Figures of live streams, their limits and their tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from arr_stream.errors import MeasurementFailed
from arr_stream.evaluation.tables import Report, ResultTable, Timing, plain


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of a part of the measurement, in `unit`, such as `ms`.

    `limit` is the most that it should be, or, with `at_least`, the least; None where it is for information.
    """

    part: str
    what: str
    value: float
    unit: str
    limit: float | None = None
    at_least: bool = False

    @property
    def reached(self) -> bool | None:
        if self.limit is None:
            return None
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    @property
    def wanted(self) -> str | None:
        """The limit in words."""
        return None if self.limit is None else f"at {'least' if self.at_least else 'most'} {self.limit:g}"


@dataclass(frozen=True, slots=True)
class LivePlan:
    """Length of each measurement, settings `key=value` of the server's streams, and a callback for progress."""

    seconds: float = 20.0
    settings: tuple[str, ...] = ()
    progress: Callable[[str], None] = field(default=lambda _: None)


@dataclass(frozen=True, slots=True)
class LiveReport(Report):
    """The figures of one call in their order, and the machine."""

    machine: dict[str, str]
    figures: tuple[Figure, ...]

    @property
    def tables(self) -> tuple[ResultTable, ...]:
        marks = {None: None, True: "reached", False: "missed"}
        rows = tuple(
            (each.part, each.what, f"{each.value:.1f} {each.unit}".strip(), each.wanted, marks[each.reached])
            for each in self.figures
        )
        browser = self.machine.get("browser", "")
        headings = ("part", "what", "measured", "to reach", "")
        return (ResultTable("Live streams", headings, rows, browser and f"Browser: {browser}."),)

    def facts(self) -> Mapping[str, Any]:
        figures = [plain(figure) | {"reached": figure.reached} for figure in self.figures]
        return {"machine": self.machine, "figures": figures}


def percentiles(part: str, what: str, values_ms: Sequence[float], *limits: float | None) -> list[Figure]:
    """Median, 95th and 99th percentile of what was measured, in this order of limits.

    Raises:
        MeasurementFailed: There is nothing to tell.
    """
    if not values_ms:
        raise MeasurementFailed(f"{part}: not one picture could be measured")
    timing = Timing.of(values_ms)
    named = (("median", timing.median), ("p95", timing.p95), ("p99", timing.p99))
    padded = (*limits, None, None, None)
    return [
        Figure(part, f"{what}, {name}", value, "ms", limit) for (name, value), limit in zip(named, padded, strict=False)
    ]
