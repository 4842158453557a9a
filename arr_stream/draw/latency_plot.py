"""The latency of every frame as a picture, keyframes marked."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from arr_stream.draw.run_statistics import RunStatistics

_INK, _PAPER, _GRID = "#1b1f26", "#ffffff", "#e4e8ee"
_LINE, _FILL, _MARK = "#2b6cb0", "#a9c8ea", "#e8890c"


def write_latency_plot(path: Path, statistics: RunStatistics, title: str) -> None:
    """Draw milliseconds over frames as a PNG.

    Long runs are shown in bins of frames: the line is the mean of a bin, the shade reaches up to its slowest frame.

    Raises:
        OSError: The file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    bins = statistics.timeline.bins
    first = np.array([one.first for one in bins])
    mean = np.array([one.total / one.count for one in bins])
    largest = np.array([one.largest for one in bins])
    keyframe = np.array([one.keyframe for one in bins], dtype=bool)
    figure = Figure(figsize=(12, 5), dpi=120, facecolor=_PAPER, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    if len(bins):
        axes.fill_between(first, mean, largest, color=_FILL, linewidth=0, step="mid")
        axes.plot(first, mean, color=_LINE, linewidth=1.1, label="frame" if bins[0].count == 1 else "mean of a bin")
        axes.scatter(
            first[keyframe], largest[keyframe], s=26, color=_MARK, marker="D", zorder=3, linewidths=0, label="keyframe"
        )
    numbers = statistics.latency.summary()
    for name, style in (("median", "-"), ("p95", "--"), ("p99", ":")):
        if name in numbers:
            label = f"{name} {numbers[name]:.1f} ms"
            axes.axhline(numbers[name], color=_INK, linewidth=1, linestyle=style, alpha=0.75, label=label)
    if len(bins) and largest.max() > 8 * max(float(np.median(mean)), 1e-3) and mean.min() > 0:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    else:
        axes.set_ylim(bottom=0)
    axes.margins(x=0.01)
    axes.set_xlabel("frame", color=_INK)
    axes.set_ylabel("milliseconds a frame", color=_INK)
    axes.set_title(title, loc="left", color=_INK, fontsize=13, fontweight="bold", pad=12)
    axes.grid(True, which="major", color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=_INK)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, labelcolor=_INK)
    figure.savefig(path, format="png", facecolor=_PAPER)
