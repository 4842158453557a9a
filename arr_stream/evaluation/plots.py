"""Plots of the evaluations (matplotlib, written as PNG or in the format of the file name)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from arr_stream.evaluation.coverage import METHODS, CoverageReport
from arr_stream.evaluation.stages import BenchReport

OUR_COLOUR = "#1f6feb"
OTHER_COLOURS = ("#8b949e", "#d29922", "#3fb950", "#a371f7")


def plot_coverage(report: CoverageReport, path: Path) -> None:
    """Plot coverage by sequence and method, one panel a budget."""
    budgets = report.budgets
    sequences = sorted({row.sequence for row in report.rows})
    figure, panels = make_panels(len(budgets))
    for panel, budget in zip(panels, budgets, strict=True):
        for offset, (method, colour) in enumerate(zip(METHODS, colours_of(METHODS), strict=True)):
            values = {
                row.sequence: row.coverage for row in report.rows if row.method == method and row.budget == budget
            }
            places = [index + (offset - 1.5) * 0.2 for index in range(len(sequences))]
            label = f"{method} (mean {report.mean(method, budget):.2f})"
            panel.bar(places, [values[name] for name in sequences], width=0.2, color=colour, label=label)
        panel.set(
            ylabel="share of the object seen", ylim=(0, 1), title=f"{budget} tokens a frame".replace("% ", "% of the ")
        )
        panel.set_xticks(range(len(sequences)), sequences, rotation=35, ha="right")
        panel.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.08), ncols=2, fontsize=9)
    save_figure(figure, path)


def plot_bench(report: BenchReport, path: Path) -> None:
    """Plot the time of each stage beside the memory's limit, and of a frame beside the baselines."""
    figure, (left, right) = make_panels(2)
    stages = [(name, kinds["between"].median) for name, kinds in report.stages.items()]
    names = [name for name, _ in stages]
    places = range(len(names))
    left.bar(places, [value for _, value in stages], color=OUR_COLOUR, label="median between keyframes")
    limits = [report.limits_ms.get(name, float("nan")) for name in names]
    left.scatter(places, limits, marker="_", s=400, color=OTHER_COLOURS[1], label="at the memory's speed", zorder=3)
    left.set_xticks(places, names, rotation=35, ha="right")
    left.set(ylabel="ms", title=f"stages of a frame, {report.size_wh[0]}x{report.size_wh[1]}")
    left.legend(frameon=False)
    beside = {"between keyframes": report.between.median, "amortised": report.amortised_ms}
    beside |= {name: timing.median for name, timing in report.baselines.items()}
    colours = [
        OUR_COLOUR if name in ("between keyframes", "amortised", "process") else OTHER_COLOURS[0] for name in beside
    ]
    bars = right.barh(list(beside), list(beside.values()), color=colours)
    right.bar_label(bars, fmt="%.3g", padding=3)
    right.invert_yaxis()
    right.grid(axis="y", visible=False)
    right.set(
        xscale="log",
        xlim=(min(beside.values()) / 2, max(beside.values()) * 2),
        xlabel="ms a frame, median",
        title=f"first frame after {report.start.seconds:.1f} s",
    )
    save_figure(figure, path)


def colours_of(names: Sequence[str]) -> list[str]:
    """Return one colour a row: shades of blue, then of green, for arr-stream, and others for the baselines."""
    ours = [name for name in names if name.startswith("arr-stream")]
    others = [name for name in names if name not in ours]
    shades = (OUR_COLOUR, "#6cb0ff", "#b6d8ff", "#0f7b6c", "#4fc3b0", "#b3e6dc")
    return [
        shades[ours.index(name) % len(shades)]
        if name in ours
        else OTHER_COLOURS[others.index(name) % len(OTHER_COLOURS)]
        for name in names
    ]


def make_panels(count: int, size: tuple[float, float] | None = None, **options: Any) -> tuple[Any, list[Any]]:
    """Return a figure with panels beside each other."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    size = size or (6.5 * count, 4.5)
    figure, axes = pyplot.subplots(1, count, figsize=size, squeeze=False, layout="constrained", **options)
    for panel in axes[0]:
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(axis="y", alpha=0.25)
        panel.set_axisbelow(True)
    return figure, list(axes[0])


def save_figure(figure: Any, path: Path, **options: Any) -> None:
    from matplotlib import pyplot

    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120, **options)
    pyplot.close(figure)
