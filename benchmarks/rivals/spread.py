"""Rules that look at nothing: evenly spread cells, random ones, and the whole frame scaled down."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from arr_stream.selection.allocation import Allocation
from arr_stream.types import COARSEST, Grid


def uniform(grid: Grid, tokens: int) -> Allocation:
    """Choose fine cells that are evenly spread at every number of tokens: the first ones in ordered dithering.

    The order is that of Bayer ("An optimum method for two-level rendition of continuous-tone pictures", 1973).
    """
    return _fine(grid, np.sort(spread(grid)[:tokens]))


def random_cells(grid: Grid, tokens: int, seed: int | tuple[int, ...] = 0) -> Allocation:
    """Choose fine cells at random, each equally likely."""
    return _fine(grid, np.sort(np.random.default_rng(seed).permutation(grid.cells)[:tokens]))


def scaled(grid: Grid, tokens: int) -> Allocation:
    """Cover the whole picture once, as finely as the tokens allow: coarse cells, some of them divided in four.

    The divided ones are evenly spread. If there are more of the coarsest cells than tokens, evenly spread ones are left
    out.
    """
    level = COARSEST
    while level and _blocks(grid, level - 1).cells <= tokens:
        level -= 1
    blocks = _blocks(grid, level)
    order, span = spread(blocks)[:tokens], 1 << level
    left = tokens - len(order)
    places: list[tuple[int, int, int]] = []
    for block in order.tolist():
        row, column = block // blocks.columns * span, block % blocks.columns * span
        quarters = [
            (r, c, level - 1)
            for r in (row, row + span // 2)
            for c in (column, column + span // 2)
            if level and r < grid.rows and c < grid.columns
        ]
        divide = 0 < len(quarters) <= left + 1
        left -= len(quarters) - 1 if divide else 0
        places += quarters if divide else [(row, column, level)]
    return _cells(*np.array(sorted(places), int).T)


def _blocks(grid: Grid, level: int) -> Grid:
    """Return the grid of that level's cells; the last ones may extend beyond the edge."""
    return Grid(grid.size_wh, -(-grid.rows >> level), -(-grid.columns >> level))


def spread(grid: Grid) -> npt.NDArray[np.int64]:
    """Return flat indices, `[cells]`, of which every prefix is evenly spread."""
    order = np.zeros((1, 1), int)
    while len(order) < max(grid.rows, grid.columns):
        order = np.block([[4 * order, 4 * order + 2], [4 * order + 3, 4 * order + 1]])
    return np.argsort(order[: grid.rows, : grid.columns].ravel(), kind="stable")


def _fine(grid: Grid, flat: Any) -> Allocation:
    rows, columns = np.divmod(flat, grid.columns)
    return _cells(rows, columns, np.zeros(len(flat), int))


def _cells(rows: Any, columns: Any, level: Any) -> Allocation:
    score = np.ones(len(rows), np.float32)
    return Allocation(rows.astype(np.int32), columns.astype(np.int32), level.astype(np.int32), score)
