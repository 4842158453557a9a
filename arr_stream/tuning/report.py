"""Results of tuning, as tables, as a preset and as a picture."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import cv2
import numpy as np

from arr_stream.config import ScoringSettings
from arr_stream.evaluation.tables import ResultTable, Value
from arr_stream.tuning.parameters import DECIMALS, differences
from arr_stream.tuning.recording import KINDS, Kind, Run
from arr_stream.tuning.tuner import TuneReport
from arr_stream.types import BoolArray, ByteArray, FloatArray

MOST_ROWS = 4

_DIM = 0.38
_OUTLINE = (255, 214, 10)
_CELL = (255, 255, 255)
_WIDTH_PX = 640

_ASKED: dict[Kind, str] = {"nothing": "nothing", "region": "first box", "words": "its name"}


def tables(report: TuneReport) -> tuple[ResultTable, ...]:
    """Return tables of coverage by sequence, of weights, and of the rounds that led to them."""
    return _coverage(report), _weights(report), _rounds(report)


def _coverage(report: TuneReport) -> ResultTable:
    held_out = {footage.name for footage in report.division.held_out}
    rows: list[tuple[Value, ...]] = []
    for part, inside in (("held out", True), ("fitted to", False)):
        for kind in KINDS:
            pairs = [
                (a, b)
                for a, b in zip(report.before, report.after, strict=True)
                if (a.footage.name in held_out) is inside and a.kind == kind
            ]
            rows += [_row(part, kind, a.footage.name, [a], [b]) for a, b in pairs]
            if len(pairs) > 1:
                rows.append(_row(part, kind, "mean", [a for a, _ in pairs], [b for _, b in pairs]))
    return ResultTable(
        f"Coverage of the object at {report.budget} of the tokens, before and after tuning",
        ("part", "asked by", "sequence", "before", "after", "gain", "context", "and after", "tokens"),
        tuple(rows),
        "Share of the object's pixels in fine cells, means over all frames but the first, from runs of the whole "
        "pipeline; context is the share of the frame in any cell. Before the weights were final nothing of "
        "held-out sequences was looked at but on which frames the object is.",
    )


def _row(part: str, kind: Kind, name: str, before: Sequence[Run], after: Sequence[Run]) -> tuple[Value, ...]:
    def mean(runs: Sequence[Run], what: str) -> float:
        return sum(float(getattr(each, what).mean()) for each in runs) / len(runs)

    first, last = mean(before, "coverage"), mean(after, "coverage")
    return (
        *(part, _ASKED[kind], name, first, last, last - first),
        *(mean(before, "context"), mean(after, "context"), mean(after, "tokens")),
    )


def _weights(report: TuneReport) -> ResultTable:
    fields = ScoringSettings.model_fields
    return ResultTable(
        "Weights",
        ("setting", "before", "after", "meaning"),
        tuple(
            (f"scoring.{name}", before, after, fields[name].description or "")
            for name, (before, after) in differences(report.start, report.weights).items()
        ),
        ""
        if report.weights != report.start
        else "No weights did better on the validation frames; nothing was changed.",
    )


def _rounds(report: TuneReport) -> ResultTable:
    return ResultTable(
        "Rounds of fitting and running",
        ("round", "steps", "best step", "records before", "records after", "true coverage"),
        (
            (0, None, None, None, None, report.validation),
            *(
                (number, each.fit.steps, each.fit.best_step, each.fit.before, each.fit.after, each.validation)
                for number, each in enumerate(report.rounds, start=1)
            ),
        ),
        "Coverage on the validation frames: from the records that a fit was made on, then in true runs.",
    )


def preset(report: TuneReport, origin: str) -> str:
    """Return a TOML preset with the weights that are not the defaults; its header names their origin.

    Args:
        report: Result of tuning.
        origin: Name of the data.
    """
    return _preset(_header(report, origin), report.weights)


def _preset(header: Iterable[str], weights: ScoringSettings) -> str:
    lines = [*header, ""]
    changed = differences(ScoringSettings(), weights)
    if changed:
        lines.append("[scoring]")
        lines += [f"{name} = {_number(after)}" for name, (_, after) in changed.items()]
    return "\n".join(lines).rstrip() + "\n"


def _header(report: TuneReport, origin: str) -> Iterator[str]:
    yield f"# Weights that `arr-stream tune` fitted to {' '.join(origin.split())}."
    yield f"# Budget {report.budget}, seed {report.seed}."
    yield from _folded("# Fitted to ", [footage.name for footage in report.division.fitted])
    yield from _folded("# Held out: ", [footage.name for footage in report.division.held_out])
    for asked, before, after in _held_out(report):
        yield f"# Held-out coverage, asked for by {asked}: {before:.{DECIMALS}f} before, {after:.{DECIMALS}f} after."
    if report.weights == report.start:
        yield "# No weights did better than the present ones; nothing is changed."


def _folded(start: str, names: Sequence[str], width: int = 118) -> list[str]:
    """Return a list as comment lines; names cannot break out of the comment."""
    text = ", ".join(" ".join(name.split()) for name in names)
    return textwrap.wrap(f"{start}{text}.", width, subsequent_indent="#   ", break_on_hyphens=False)


def _number(value: float) -> str:
    text = f"{value:.{DECIMALS}f}".rstrip("0")
    return f"{text}0" if text.endswith(".") else text


def gains(report: TuneReport) -> str:
    """Return one line with the held-out coverage before and after, and whether the gain exceeds its noise."""
    parts = [f"asked for by {asked} {before:.3f} -> {after:.3f}" for asked, before, after in _held_out(report)]
    return f"held-out coverage {'; '.join(parts)}; gain {report.gain}"


def _held_out(report: TuneReport) -> Iterator[tuple[str, float, float]]:
    """Yield the kind of query and the mean coverage before and after, for each kind that was tried."""
    for kind in KINDS:
        before, after = (report.mean(runs, held_out=True, kind=kind) for runs in (report.before, report.after))
        if before == before:
            yield _ASKED[kind], before, after


def shown(report: TuneReport, most: int) -> list[tuple[Run, Run]]:
    """Return runs to draw: held-out sequences, spread over their list, each with its first kind of query."""
    names = {footage.name for footage in report.division.held_out}
    first = next(kind for kind in KINDS if any(each.kind == kind for each in report.before))
    pairs = [
        (a, b) for a, b in zip(report.before, report.after, strict=True) if a.footage.name in names and a.kind == first
    ]
    if len(pairs) <= most:
        return pairs
    places = [round(index * (len(pairs) - 1) / max(1, most - 1)) for index in range(most)]
    return [pairs[place] for place in places]


def draw_before_and_after(report: TuneReport, path: Path) -> None:
    """Draw a row a held-out sequence: its middle frame without and with the tuned weights.

    Args:
        report: Result of tuning.
        path: Picture file; its ending gives the format.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pairs = shown(report, MOST_ROWS)
    sizes = [pair[0].footage.sequence.frames()[0].size_wh for pair in pairs]
    tall = sum(6.5 * height / width + 0.4 for width, height in sizes)
    figure, axes = pyplot.subplots(
        len(pairs),
        2,
        figsize=(13, tall + 0.5),
        squeeze=False,
        layout="constrained",
        gridspec_kw={"height_ratios": [height / width for width, height in sizes]},
    )
    for row, (before, after) in zip(axes, pairs, strict=True):
        middle = len(before.indices) // 2
        for panel, each, label in zip(row, (before, after), ("before", "after"), strict=True):
            panel.imshow(_picture(each, middle), interpolation="antialiased")
            panel.set_title(
                f"{each.footage.name}, frame {each.indices[middle]}, {label}: "
                f"{each.coverage[middle]:.0%} of the object (mean {each.coverage.mean():.0%})",
                fontsize=11,
                loc="left",
            )
            panel.set_axis_off()
    figure.suptitle(
        f"Held out, {report.budget} of the tokens: chosen cells stand out, the object is outlined", x=0.01, ha="left"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    pyplot.close(figure)


def _picture(run: Run, place: int) -> ByteArray:
    """Return one frame with its fine cells bright and the rest dim."""
    index = run.indices[place]
    frame = run.footage.sequence.frames()[index]
    mask = run.footage.sequence.masks()[index]
    return highlight(frame.rgb, run.cells_xyxy[place], mask)


def highlight(rgb: ByteArray, cells_xyxy: FloatArray, mask: BoolArray) -> ByteArray:
    """Return `[h, w, 3]` about 640 px wide: chosen cells in full colour, thin borders, the mask's outline on top."""
    height, width = rgb.shape[:2]
    scale = _WIDTH_PX / width
    size_wh = (_WIDTH_PX, max(1, round(height * scale)))
    picture = cv2.resize(rgb, size_wh, interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR)
    result: ByteArray = (picture * _DIM).astype(np.uint8)
    edges = np.rint(cells_xyxy * scale).astype(int)
    for x0, y0, x1, y1 in edges:
        result[y0:y1, x0:x1] = picture[y0:y1, x0:x1]
    grid = result.copy()
    for x0, y0, x1, y1 in edges:
        cv2.rectangle(grid, (int(x0), int(y0)), (int(x1) - 1, int(y1) - 1), _CELL, 1)
    result = cv2.addWeighted(grid, 0.35, result, 0.65, 0).astype(np.uint8)
    resized = cv2.resize(mask.astype(np.uint8), size_wh, interpolation=cv2.INTER_NEAREST)
    outlines, _ = cv2.findContours(resized, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
    cv2.drawContours(result, outlines, -1, (0, 0, 0), 3, cv2.LINE_AA)
    cv2.drawContours(result, outlines, -1, _OUTLINE, 2, cv2.LINE_AA)
    return result
