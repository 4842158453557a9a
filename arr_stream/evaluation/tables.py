"""Tables of results for the terminal, Markdown and JSON, the base class of reports, and summaries of many timings."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from rich.console import Group

Value = str | int | float | None


@dataclass(frozen=True, slots=True)
class ResultTable:
    """Rows of values under named columns.

    Args:
        title: Subject and data of the comparison.
        columns: Headings with their units.
        rows: A value under each heading; None without one.
        note: Method of the measurement, or a reading aid.
        digits: Decimal places of floating-point values.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Value]]
    note: str = ""
    digits: int = 3

    def __rich__(self) -> Group:
        from rich import box
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table(box=box.SIMPLE)
        for heading, right in zip(self.columns, self._numeric(), strict=True):
            table.add_column(heading, justify="right" if right else "left", overflow="fold")
        for row in self.rows:
            table.add_row(*(Text(self._text(value)) for value in row))
        title = Text(self.title, "bold")
        return Group(*((title, table) if self.rows else ()), *((Text(self.note),) if self.note else ()))

    def markdown(self) -> str:
        """Return the table as Markdown: title in bold, the table, the note below."""
        rules = ["---:" if right else "---" for right in self._numeric()]
        lines = [self.columns, rules, *([self._text(value).replace("|", "\\|") for value in row] for row in self.rows)]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        return "\n\n".join(part for part in (f"**{self.title}**", table, self.note) if part)

    def _numeric(self) -> list[bool]:
        columns = list(zip(*self.rows, strict=True)) or [()] * len(self.columns)
        return [any(isinstance(value, int | float) for value in column) for column in columns]

    def _text(self, value: Value) -> str:
        if value is None:
            return "–"
        return f"{value:.{self.digits}f}" if isinstance(value, float) else str(value)


def short(value: float) -> float | int:
    """Round values from a hundred on to whole numbers."""
    return round(value) if value >= 100 else value


def plain(value: Any) -> Any:
    """Convert to JSON values, in any nesting: records as fields, floats to four places (small ones to three digits)."""
    if isinstance(value, float):
        return round(value, 4) if abs(value) >= 0.01 else float(f"{value:.3g}")
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return {name: plain(each) for name, each in fields_of(value)} if is_dataclass(value) else value


def fields_of(record: Any) -> list[tuple[str, Any]]:
    """Return name and value of each field of a dataclass."""
    return [(each.name, getattr(record, each.name)) for each in fields(record)]


class Report:
    """Base of reports: tables for people, and all results for programs."""

    __slots__ = ()

    @property
    def tables(self) -> Sequence[ResultTable]:
        raise NotImplementedError

    def facts(self) -> Mapping[str, Any]:
        """Return the JSON values beside the tables: the fields."""
        found: Mapping[str, Any] = plain(self)
        return found

    def as_json(self) -> dict[str, Any]:
        return {**plain(self.facts()), "tables": plain(self.tables)}


@dataclass(frozen=True, slots=True)
class Timing:
    """Milliseconds of many runs of one operation.

    Args:
        count: Runs.
        median, p95, p99, mean: Milliseconds.
    """

    count: int
    median: float
    p95: float
    p99: float
    mean: float

    @classmethod
    def of(cls, milliseconds: Sequence[float]) -> Timing:
        """Summarise; zeros for no runs."""
        if not milliseconds:
            return cls(0, 0.0, 0.0, 0.0, 0.0)
        median, p95, p99 = np.percentile(milliseconds, [50, 95, 99]).tolist()
        return cls(len(milliseconds), median, p95, p99, float(np.mean(milliseconds)))


@contextmanager
def timed(into: list[float], scale: float = 1.0, clock: Callable[[], float] = time.perf_counter) -> Iterator[None]:
    """Append the milliseconds that a block takes, times `scale`, to a list."""
    started = clock()
    yield
    into.append((clock() - started) * 1e3 * scale)
