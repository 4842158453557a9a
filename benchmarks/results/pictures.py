"""Pictures of what is kept, for sections whose commands draw none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from arr_stream.evaluation.plots import OTHER_COLOURS as OTHERS
from arr_stream.evaluation.plots import OUR_COLOUR as OURS
from arr_stream.evaluation.plots import make_panels, save_figure
from benchmarks.results.records import Record


def draw(records: Mapping[str, Record], folder: Path) -> None:
    """Write `DRAWN` pictures of all sections that have figures, and delete those of the ones that have none."""
    for name, make in DRAWN.items():
        record = records.get(name)
        if record is None or record.missing:
            (folder / drawn(name)).unlink(missing_ok=True)
            continue
        save_figure(make(record), folder / drawn(name), metadata={"Software": None})


def drawn(name: str) -> str:
    """Name of a section's picture that is drawn here."""
    return f"{name}-drawn.png"


def _modes(record: Record) -> Any:
    """Vision and prefill of each mode against the cells that were chosen."""
    rows = record.runs[0].result["modes"]
    names = list(dict.fromkeys(row["mode"] for row in rows if row["mode"] != "stock"))
    figure, (panel,) = make_panels(1, (7.5, 3.8))
    for name, colour in zip(names, (OURS, *OTHERS[1:]), strict=False):
        shown = [row for row in rows if row["mode"] == name]
        points = [(row["chosen"], row["vision_ms"] + row["prefill_ms"]) for row in shown]
        panel.plot(*zip(*points, strict=True), color=colour, marker="o", linewidth=2, label=name)
    for row in rows:
        if row["mode"] == "stock":
            panel.axhline(row["vision_ms"] + row["prefill_ms"], color=OTHERS[0], linestyle="--", label="stock")
    panel.set(xlabel="cells chosen", ylabel="vision and prefill, ms", ylim=(0, None))
    panel.legend(frameon=False)
    return figure


DRAWN: dict[str, Callable[[Record], Any]] = {"modes": _modes}
