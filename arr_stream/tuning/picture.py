"""Before and after on held-out frames: what was chosen stands out, the object is outlined."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np

from arr_stream.evaluation.davis import Mask
from arr_stream.tuning.recording import Run
from arr_stream.tuning.report import shown
from arr_stream.tuning.tuner import TuneReport
from arr_stream.types import ByteArray, FloatArray

MOST_ROWS = 4

_DIM = 0.38
_OUTLINE = (255, 214, 10)
_CELL = (255, 255, 255)
_WIDTH_PX = 640


def draw_before_and_after(report: TuneReport, path: Path) -> None:
    """A row a held-out sequence, its middle frame without and with the tuned weights.

    Args:
        report: What tuning found.
        path: PNG, or what its ending says.
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
    """One frame with its fine cells bright and the rest dim."""
    index = run.indices[place]
    frame = run.footage.sequence.frames()[index]
    mask = run.footage.sequence.masks()[index]
    return highlight(frame.rgb, run.cells_xyxy[place], mask)


def highlight(rgb: ByteArray, cells_xyxy: FloatArray, mask: Mask) -> ByteArray:
    """`[h, w, 3]` of some 640 px width: chosen cells in full colour with thin borders, the mask's outline on top."""
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
