"""The tables of a section: those that its commands print, or one made of what several of them print."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from arr_stream.evaluation.tables import ResultTable
from benchmarks.results.records import Record, Run
from benchmarks.text import TextScore, text_tables


def tables_of(record: Record) -> list[ResultTable]:
    """All tables of a section, in order.

    Raises:
        KeyError: A command printed something else than the section's maker expects.
    """
    maker = MAKERS.get(record.section)
    if maker is not None:
        return maker(record.runs)
    tables = [values for run in record.runs for values in run.result["tables"]]
    return [ResultTable(**{**values, "rows": [tuple(row) for row in values["rows"]]}) for values in tables]


def _text(runs: Sequence[Run]) -> list[ResultTable]:
    own = set(TextScore.__slots__)
    return text_tables(
        [TextScore(**{name: value for name, value in row.items() if name in own}) for row in runs[0].result]
    )


MAKERS: dict[str, Callable[[Sequence[Run]], list[ResultTable]]] = {
    "text": _text,
}
"""Of sections whose tables are put together from several commands, or whose command prints rows alone."""
