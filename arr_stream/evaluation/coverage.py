"""Evaluation of the share of an object that the chosen tokens cover.

The query is a region, the tight box of the first mask; every later frame whose mask is not empty counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np

from arr_stream.errors import EvaluationDataError
from arr_stream.evaluation.footage import Footage, check_mask, check_visible, tight_box
from arr_stream.evaluation.tables import Report, ResultTable
from arr_stream.patch_set import PatchSet
from arr_stream.types import BoolArray, FloatArray, Grid, IntArray

OpenPatches = Callable[[Footage, tuple[float, float, float, float], int | str], Iterable[PatchSet]]
"""Function from a sequence, a region and a budget to the patch set of every frame."""

METHODS = ("arr-stream", "oracle")


@dataclass(frozen=True, slots=True)
class CoverageRow:
    """One method on one sequence at one budget, means over its frames.

    Args:
        budget: Tokens a frame, or a share of the grid such as `10%`.
        coverage: Share of the object's pixels inside fine cells.
        context: Share of the frame inside any cell.
        tokens: Cells a frame.
    """

    method: str
    sequence: str
    budget: int | str
    coverage: float
    context: float
    tokens: float


@dataclass(frozen=True, slots=True)
class CoverageReport(Report):
    """All rows of an evaluation."""

    rows: tuple[CoverageRow, ...]

    def mean(self, method: str, budget: int | str) -> float:
        """Return the mean coverage over sequences."""
        return float(np.mean([r.coverage for r in self.rows if r.method == method and r.budget == budget]))

    @property
    def budgets(self) -> list[int | str]:
        return list(dict.fromkeys(row.budget for row in self.rows))

    @property
    def tables(self) -> tuple[ResultTable, ...]:
        sequences = {row.sequence for row in self.rows}
        return (
            ResultTable(
                f"Mean coverage of the object, {len(sequences)} sequences",
                ("choice", *(f"{budget} tokens".replace("% ", "% of the ") for budget in self.budgets)),
                tuple((method, *(self.mean(method, budget) for budget in self.budgets)) for method in METHODS),
            ),
        )

    def facts(self) -> Mapping[str, Any]:
        means = {budget: {method: self.mean(method, budget) for method in METHODS} for budget in self.budgets}
        return {"mean_coverage": means, "sequences": self.rows}


def evaluate_coverage(
    sequences: Sequence[Footage],
    budgets: Sequence[int | str],
    open_patches: OpenPatches,
    progress: Callable[[str], None] = lambda _: None,
) -> CoverageReport:
    """Score region queries on every sequence, beside the best possible choice.

    Args:
        sequences: Footage with masks.
        budgets: Tokens a frame, or shares of the grid.
        open_patches: The method to evaluate.
        progress: Called with the name of the next sequence.

    Raises:
        EvaluationDataError: Masks that do not fit the frames, or an object that is not visible.
    """
    rows: list[CoverageRow] = []
    for footage in sequences:
        progress(footage.name)
        masks = footage.masks()
        check_visible(footage, masks)
        region = tight_box(masks[0])
        for budget in budgets:
            rows += _score_sequence(footage, masks, region, budget, open_patches)
    return CoverageReport(tuple(rows))


def _score_sequence(
    footage: Footage,
    masks: Sequence[BoolArray],
    region: tuple[float, float, float, float],
    budget: int | str,
    open_patches: OpenPatches,
) -> list[CoverageRow]:
    scores: dict[str, list[tuple[float, float, float]]] = {method: [] for method in METHODS}
    for index, (patches, mask) in enumerate(zip_longest(open_patches(footage, region, budget), masks)):
        if patches is None or mask is None:
            absent = "frame" if patches is None else "mask"
            raise EvaluationDataError(
                f"{footage.name}: no {absent} of index {index} beside {len(masks)} masks",
                remedy="every frame needs one mask",
            )
        grid = patches.grid
        check_mask(footage, index, mask, grid.size_wh)
        if index == 0 or not mask.any():
            continue
        scores["arr-stream"].append((*score_cells(mask, patches.cells_xyxy, grid.cell_px), patches.tokens))
        scores["oracle"].append((oracle(mask, (grid.rows, grid.columns), patches.tokens), 0.0, patches.tokens))
    return [
        CoverageRow(method, footage.name, budget, *np.mean(values, axis=0).tolist())
        for method, values in scores.items()
    ]


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


def oracle(mask: BoolArray, grid_hw: tuple[int, int], tokens: int) -> float:
    """Return the coverage of the best fine cells, chosen with knowledge of the mask."""
    return best_share(pixels_by_cell(mask, grid_hw), tokens)


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
