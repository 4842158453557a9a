"""Evaluation of the share of an object that the chosen tokens cover.

The query is a region, the tight box of the first mask; every later frame whose mask is not empty counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from arr_stream.config import Settings
from arr_stream.evaluation.footage import Footage, read_paired, tight_box
from arr_stream.evaluation.tables import Report, ResultTable
from arr_stream.stream import open as open_stream
from arr_stream.types import BoolArray, FloatArray, Grid, IntArray


@dataclass(frozen=True, slots=True)
class CoverageRow:
    """One sequence at one budget, means over its frames.

    `coverage` and `oracle` are shares of the object's pixels, inside the chosen fine cells and inside the best ones;
    `context` is the share of the frame inside any cell, `tokens` the cells a frame.
    """

    sequence: str
    budget: str
    coverage: float
    oracle: float
    context: float
    tokens: float


@dataclass(frozen=True, slots=True)
class CoverageReport(Report):
    """All rows of an evaluation."""

    sequences: tuple[CoverageRow, ...]

    def means(self) -> dict[str, dict[str, float]]:
        """Return the mean coverage over sequences at each budget, by `arr-stream` and `oracle`."""
        found = {}
        for budget in dict.fromkeys(row.budget for row in self.sequences):
            rows = [(row.coverage, row.oracle) for row in self.sequences if row.budget == budget]
            found[budget] = dict(zip(("arr-stream", "oracle"), np.mean(rows, axis=0).tolist(), strict=True))
        return found

    @property
    def tables(self) -> tuple[ResultTable, ...]:
        means = self.means()
        headings = (f"{budget} tokens".replace("% ", "% of the ") for budget in means)
        rows = [(method, *(mean[method] for mean in means.values())) for method in ("arr-stream", "oracle")]
        title = f"Mean coverage of the object, {len({row.sequence for row in self.sequences})} sequences"
        return (ResultTable(title, ("choice", *headings), rows),)

    def facts(self) -> Mapping[str, Any]:
        return {"mean_coverage": self.means(), "sequences": self.sequences}


def evaluate_coverage(
    footage: Sequence[Footage],
    budgets: Sequence[str],
    settings: Settings,
    progress: Callable[[str], None] = lambda _: None,
) -> CoverageReport:
    """Score region queries on every sequence, at each budget, beside the best possible choice.

    Raises:
        EvaluationDataError: Masks that do not fit the frames, or an object that is not visible.
    """
    rows = []
    for each in footage:
        progress(each.name)
        _, masks = read_paired(each)
        for budget in budgets:
            scores = []
            for patches in open_stream(each.source, region=tight_box(masks[0]), budget=budget, settings=settings):
                mask = masks[patches.index]
                if patches.index and mask.any():
                    coverage, context = score_cells(mask, patches.cells_xyxy, patches.grid.cell_px)
                    best = best_share(pixels_by_cell(mask, (patches.grid.rows, patches.grid.columns)), patches.tokens)
                    scores.append((coverage, best, context, patches.tokens))
            rows.append(CoverageRow(each.name, budget, *np.mean(scores, axis=0).tolist()))
    return CoverageReport(tuple(rows))


def score_cells(mask: BoolArray, cells_xyxy: FloatArray, fine_cell_px: tuple[float, float]) -> tuple[float, float]:
    """Return coverage and context of some cells.

    Coarse cells (a side longer than a fine cell's, to rounding) show the object too coarsely to count for coverage.

    Args:
        mask: `[H, W]`, not empty.
        cells_xyxy: `[N, 4]` in pixels.
        fine_cell_px: Width and height of a fine cell.

    Returns:
        Share of the mask inside fine cells, and share of the frame inside any cell.
    """
    sides = cells_xyxy[:, 2:] - cells_xyxy[:, :2]
    fine = (sides <= np.array(fine_cell_px) * 1.01 + 1).all(axis=1)
    return _share(mask, cells_xyxy[fine]), _share(np.ones_like(mask), cells_xyxy)


def _share(mask: BoolArray, cells_xyxy: FloatArray) -> float:
    hit = np.zeros(mask.shape, bool)
    for x0, y0, x1, y1 in np.rint(cells_xyxy).astype(int):
        hit[max(0, y0) : y1, max(0, x0) : x1] = True
    return float((mask & hit).sum() / mask.sum())


def best_share(pixels: IntArray, tokens: int) -> float:
    """Return the coverage of the best cells, given `pixels_by_cell`, `[gh, gw]`, not all zeros."""
    return float(np.sort(pixels.ravel())[::-1][:tokens].sum() / pixels.sum())


def pixels_by_cell(mask: BoolArray, grid_hw: tuple[int, int]) -> IntArray:
    """Count a mask's pixels in each fine cell, `[gh, gw]`."""
    ys, xs = (
        np.linspace(0, side, count + 1).round().astype(int) for side, count in zip(mask.shape, grid_hw, strict=True)
    )
    integral = np.pad(mask.astype(np.int64).cumsum(0).cumsum(1), ((1, 0), (1, 0)))
    return np.asarray(np.diff(np.diff(integral[np.ix_(ys, xs)], axis=0), axis=1), np.int32)


def object_shares(mask: BoolArray, grid: Grid) -> FloatArray:
    """Return the share of a mask's pixels in each cell, `[gh, gw]`; zeros for an empty mask."""
    return np.asarray(pixels_by_cell(mask, (grid.rows, grid.columns)) / max(1, int(mask.sum())), np.float32)
