"""Pictures of what is kept, for sections whose commands draw none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.results.records import Record

OURS, OTHERS = "#1f6feb", ("#8b949e", "#d29922", "#3fb950", "#a371f7")


def draw(records: Mapping[str, Record], folder: Path) -> None:
    """Write `DRAWN` pictures of all sections that have figures, and delete those of the ones that have none."""
    for name, make in DRAWN.items():
        record = records.get(name)
        if record is None or record.missing:
            (folder / drawn(name)).unlink(missing_ok=True)
            continue
        folder.mkdir(parents=True, exist_ok=True)
        figure = make(record)
        figure.savefig(folder / drawn(name), dpi=110, metadata={"Software": None})
        _close(figure)


def drawn(name: str) -> str:
    """Name of a section's picture that is drawn here."""
    return f"{name}-drawn.png"


def _stages(record: Record) -> Any:
    """Time of each stage, frames between beside keyframes."""
    stages = record.runs[0].result["stages"]
    figure, panel = _panel(0.34 * len(stages) + 1.2)
    for offset, (kind, colour) in enumerate((("between", OURS), ("keyframe", OTHERS[0]))):
        places = [index + (offset - 0.5) * 0.38 for index in range(len(stages))]
        label = "between keyframes" if kind == "between" else "on a keyframe"
        panel.barh(places, [kinds[kind]["median"] for kinds in stages.values()], 0.38, color=colour, label=label)
    panel.set_yticks(range(len(stages)), stages)
    panel.invert_yaxis()
    panel.set(xlabel="median, ms", xscale="log")
    panel.xaxis.set_major_formatter("{x:g}")
    panel.legend(frameon=False)
    return figure


def _modes(record: Record) -> Any:
    """Vision and prefill of each mode against the cells that were chosen."""
    rows = record.runs[0].result["modes"]
    names = list(dict.fromkeys(row["mode"] for row in rows if row["mode"] != "stock"))
    figure, panel = _panel(3.8)
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


DRAWN: dict[str, Callable[[Record], Any]] = {"stages": _stages, "modes": _modes}


def _panel(height: float) -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panel = pyplot.subplots(figsize=(7.5, height), layout="constrained")
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(alpha=0.25)
    panel.set_axisbelow(True)
    return figure, panel


def _close(figure: Any) -> None:
    from matplotlib import pyplot

    pyplot.close(figure)
