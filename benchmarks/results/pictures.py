"""Charts of recorded figures, for the results page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.results.records import Record
from benchmarks.results.targets import SERVED, column, table_named

OURS = "#1f6feb"
OTHERS = ("#8b949e", "#d29922", "#3fb950", "#a371f7")


def draw(records: Mapping[str, Record], folder: Path) -> None:
    """Write `DRAWN` pictures of all sections that have figures, and delete those of the ones that have none."""
    from matplotlib import pyplot

    for name, make in DRAWN.items():
        record = records.get(name)
        if record is None or record.missing:
            (folder / drawn(name)).unlink(missing_ok=True)
            continue
        figure = make(record)
        figure.savefig(folder / drawn(name), dpi=120, metadata={"Software": None})
        pyplot.close(figure)


def drawn(name: str) -> str:
    """Name of a section's picture that is drawn here."""
    return f"{name}-drawn.png"


def make_panels(count: int, size: tuple[float, float]) -> tuple[Any, list[Any]]:
    """Return a figure with panels beside each other."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, count, figsize=size, squeeze=False, layout="constrained")
    for panel in axes[0]:
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(axis="y", alpha=0.25)
        panel.set_axisbelow(True)
    return figure, list(axes[0])


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


def _serving(record: Record) -> Any:
    """Right answers and answers a second of each way, beside each other."""
    streams, answers = (table_named(record, title) for title in ("streams that ask", "right answers about"))
    if streams is None or answers is None:
        raise ValueError("the record of serving holds no streams, or no answers")
    figure, (streaming, answering) = make_panels(2, (11, 4.2))
    shown = list(dict.fromkeys((row[0], row[1]) for row in streams.rows))
    ways = list(dict.fromkeys(str(row[2]) for row in streams.rows))
    colours = dict(zip([way for way in ways if way != SERVED], (*OTHERS, "#d0d7de"), strict=True)) | {SERVED: OURS}
    rate = {row[:3]: row[column(streams, "answers a second")] for row in streams.rows}
    for number, way in enumerate(ways):
        at = [place + (number - (len(ways) - 1) / 2) * 0.13 for place in range(len(shown))]
        streaming.bar(at, [rate[*each, way] for each in shown], width=0.13, color=colours[way], label=way)
    streaming.set(ylabel="answers a second")
    streaming.set_xticks(
        range(len(shown)), [f"streams: {count}\n{what}".replace(" of ", "\nof ") for what, count in shown]
    )
    streaming.tick_params(axis="x", labelsize=8)
    streaming.legend(frameon=False, fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)
    names = [f"{row[0]}\n{row[column(answers, 'tokens of the prompt')]} tokens" for row in answers.rows]
    places = [column(answers, heading) for heading in ("right", "from", "to")]
    right, low, high = np.array([[row[place] for place in places] for row in answers.rows], np.float64).T
    answering.barh(
        names,
        right,
        xerr=[right - low, high - right],
        color=[colours[str(row[0])] for row in answers.rows],
        capsize=3,
        ecolor="#57606a",
    )
    answering.invert_yaxis()
    answering.grid(axis="y", visible=False)
    answering.tick_params(axis="y", labelsize=8)
    answering.set(xlabel="share of right answers, drawn clips, with 95% intervals", xlim=(0, 1))
    return figure


DRAWN: dict[str, Callable[[Record], Any]] = {"modes": _modes, "serving": _serving}
