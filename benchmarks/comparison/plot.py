"""Coverage against tokens, for every method of a comparison."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from arr_stream.evaluation.plots import make_panels, save_figure
from benchmarks.comparison.report import KIND_NAMES, ORACLE, OURS, CompareReport, CompareRow, Method, mean, methods, of
from benchmarks.scenes.footage import KINDS

_OURS = ("#1f6feb", "#0b3d91", "#6cb0ff", "#2f9e9e")
_OTHERS = ("#57606a", "#a0a8b0", "#d29922", "#3fb950", "#a371f7", "#db61a2", "#f0883e", "#8b5a2b", "#c9252d", "#111111")
_MARKS = "sD^vPX*<>h"
_DASHES = ("-", (0, (5, 2)), ":")

Value = Callable[[CompareRow], float | None]


def plot_compare(report: CompareReport, path: Path) -> None:
    """A panel a kind of footage and truth: share seen against tokens, as a share of the grid."""
    panels = _panels(report)
    styles = _styles(report)
    size = (max(5.0 * len(panels), 9.5), 6.6)
    figure, axes = make_panels(len(panels), size, sharey=True)
    for panel, (title, rows, value) in zip(axes, panels, strict=True):
        for method in methods(rows):
            panel.plot(*_points(of(rows, method), value), markersize=6, **styles[method])
        panel.set(title=title, xlabel="cells shown (% of the grid)", ylim=(-0.02, 1.02))
    axes[0].set_ylabel("share seen in fine cells")
    lines = {line.get_label(): line for panel in axes for line in panel.get_lines() if line.get_label()[0] != "_"}
    names = sorted(lines, key=lambda name: not name.startswith(OURS))
    figure.legend(
        [lines[name] for name in names], names, loc="outside lower center", ncols=3, frameon=False, fontsize=9
    )
    if len(report.features) > 1:
        drawn = ", ".join(f"{short} {how}" for short, how in zip(report.features, _HOW, strict=False))
        figure.suptitle(f"rules on features: {drawn}", fontsize=9, x=0.99, ha="right")
    save_figure(figure, path)


_HOW = ("solid", "dashed", "dotted")


def _styles(report: CompareReport) -> dict[Method, dict[str, Any]]:
    """How each method is drawn: ours in shades of blue, a rule in one colour, a line style for what it looked at;
    ours with held-out weights is dashed, the oracle a thin line."""
    styles: dict[Method, dict[str, Any]] = {}
    every = methods(report.rows)
    ours = list(dict.fromkeys(method.asked for method in every if method.ours))
    rules = list(dict.fromkeys(method.name for method in every if method.rule))
    makers = list(report.features)
    for method in every:
        if method.ours:
            colour, line = _OURS[ours.index(method.asked) % len(_OURS)], "-"
            styles[method] = {"color": colour, "marker": "o", "linestyle": line, "linewidth": 2.4, "zorder": 3}
            styles[method]["label"] = method.label
            continue
        if method.name == ORACLE:
            styles[method] = {"color": "black", "marker": "_", "linewidth": 0.8, "zorder": 1, "label": ORACLE}
            continue
        number, maker = rules.index(method.name), makers.index(method.features) if method.features else 0
        styles[method] = {
            "color": _OTHERS[number % len(_OTHERS)],
            "marker": _MARKS[number % len(_MARKS)],
            "linestyle": _DASHES[maker % len(_DASHES)],
            "linewidth": 1.3,
            "label": method.name if maker == 0 else "_",
        }
    return styles


def _panels(report: CompareReport) -> list[tuple[str, list[CompareRow], Value]]:
    """Title, rows and figure of each panel: the object where there is one, else text."""
    found: list[tuple[str, list[CompareRow], Value]] = []
    for kind in KINDS:
        rows = [row for row in report.rows if row.kind == kind]
        with_object = [row for row in rows if row.score.object is not None and row.asked != "text"]
        with_text = [row for row in rows if row.score.object is None and row.score.text is not None]
        if with_object:
            found.append((f"the object in {KIND_NAMES[kind]}", with_object, lambda row: row.score.object))
        if with_text:
            found.append(("text in photographs", with_text, lambda row: row.score.text))
    return found


def _points(rows: list[CompareRow], value: Value) -> tuple[list[float], list[float]]:
    """Tokens as a share of the grid and the value, by budget, fewest first."""
    points = []
    for budget in dict.fromkeys(row.budget for row in rows):
        each = [row for row in rows if row.budget == budget]
        points.append((mean(each, lambda row: 100 * row.score.tokens / row.cells) or 0.0, mean(each, value) or 0.0))
    shares, values = zip(*sorted(points), strict=True)
    return list(shares), list(values)
