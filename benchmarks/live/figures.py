"""Figures of live streams, their limits and their tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from arr_stream.errors import MeasurementFailed
from arr_stream.evaluation.tables import Report, ResultTable, Timing, plain


@dataclass(frozen=True, slots=True)
class Figure:
    """One number.

    Args:
        part: The part of the measurement that it belongs to.
        what: What it is.
        value: In `unit`.
        unit: Such as `ms`.
        limit: What it should reach; None where it is told for information.
        at_least: The limit is the least it should be, not the most.
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
    """Plan of the measurements.

    Args:
        seconds: Length of each measurement.
        settings: `key=value` for the server's streams.
        progress: Called with the name of the next measurement.
    """

    seconds: float = 20.0
    settings: tuple[str, ...] = ()
    progress: Callable[[str], None] = field(default=lambda _: None)


@dataclass(frozen=True, slots=True)
class LiveReport(Report):
    """All that was measured in one call.

    Args:
        machine: What it was measured on.
        figures: In the order in which they were measured.
    """

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
