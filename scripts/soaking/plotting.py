"""The picture of a soak: what was held over time, with a mark for every fault."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from soaking.verdicts import WARM_UP_SHARE, Outcome

_OURS, _OTHER, _MARK, _WARM = "#1f6feb", "#8b949e", "#d29922", "#f6f8fa"


_MEMORY = {"all_mb": "process and workers", "own_mb": "process alone"}


def plot_soak(outcome: Outcome, path: Path) -> None:
    """Five panels over the stream's time."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(5, 1, figsize=(11, 12), sharex=True, layout="constrained")
    labels = {field: f"{name}{_slope(outcome, field)}" for field, name in _MEMORY.items()}
    _lines(panels[0], outcome, labels, "memory (MB)")
    _fit(panels[0], outcome)
    _lines(panels[1], outcome, {"handles": "open handles", "threads": "threads"}, "count")
    _lines(panels[2], outcome, {"waiting": "frames that wait", "children": "processes below"}, "count")
    _lines(panels[3], outcome, {"blocks": "pieces of memory that Python's objects take"}, "thousands", 1e-3)
    _recoveries(panels[4], outcome)
    for panel in panels:
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(axis="y", alpha=0.25)
        panel.set_axisbelow(True)
        panel.axvspan(0, outcome.stream_seconds * WARM_UP_SHARE / 60, color=_WARM, zorder=0)
        for fault in outcome.faults:
            panel.axvline(fault.stream_seconds / 60, color=_MARK, linewidth=0.6, alpha=0.35, zorder=1)
    for panel in panels[:4]:
        panel.set_ylim(bottom=0)
    figure.suptitle(
        f"{outcome.stream_seconds / 60:.0f} minutes of stream in {outcome.run_seconds / 60:.0f} minutes, "
        f"{len(outcome.faults)} faults (vertical lines); grey: warm-up",
        fontsize=11,
    )
    panels[-1].set_xlim(0, outcome.stream_seconds / 60)
    panels[-1].set_xlabel("minutes of the stream")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _slope(outcome: Outcome, field: str) -> str:
    slope = outcome.slope(field)
    return f": {slope.per_minute:+.2f} ± {slope.error:.2f} MB a minute of the run" if slope.points > 2 else ""


def _lines(panel: Any, outcome: Outcome, fields: dict[str, str], unit: str, scale: float = 1.0) -> None:
    minutes = [each.stream_seconds / 60 for each in outcome.samples]
    for (field, label), colour in zip(fields.items(), (_OURS, _OTHER), strict=False):
        values = [scale * getattr(each, field) for each in outcome.samples]
        panel.plot(minutes, values, color=colour, label=label, linewidth=1.3)
    panel.set_ylabel(unit)
    panel.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 0.98), borderpad=0, fontsize=9, ncols=2)
    panel.margins(y=0.12)


def _fit(panel: Any, outcome: Outcome) -> None:
    """The line through the steady samples of the process alone, which has no steps."""
    steady, slope = outcome.steady(), outcome.slope("own_mb", of_stream=True)
    if slope.points < 3:
        return
    middle = sum(each.stream_seconds for each in steady) / len(steady) / 60
    level = sum(each.own_mb for each in steady) / len(steady)
    ends = [steady[0].stream_seconds / 60, steady[-1].stream_seconds / 60]
    panel.plot(ends, [level + slope.per_minute * (x - middle) for x in ends], "--", color=_MARK, linewidth=1)


def _recoveries(panel: Any, outcome: Outcome) -> None:
    """How long each kind of fault took to get over."""
    kinds = sorted({each.kind for each in outcome.faults}, reverse=True)
    known = [each for each in outcome.faults if each.recovery_seconds is not None]
    panel.scatter(
        [each.stream_seconds / 60 for each in known],
        [each.recovery_seconds for each in known],
        s=14,
        color=_OURS,
        label="recovery",
    )
    lost = [each for each in outcome.faults if each.recovery_seconds is None]
    if lost:
        panel.scatter([each.stream_seconds / 60 for each in lost], [1.0] * len(lost), marker="x", color="#cf222e")
    panel.set_yscale("log")
    panel.yaxis.set_major_formatter("{x:g}")
    panel.set_ylabel(f"recovery (s), {len(kinds)} kinds")
