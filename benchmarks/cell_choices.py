"""Which cells of a picture a model might be shown: chosen for a query, evenly spread, random, or all scaled down."""

from __future__ import annotations

import time
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from arr_stream.config import Settings
from arr_stream.keyframes.base import PARTS
from arr_stream.keyframes.embeddings import find_pca, make_text_encoder
from arr_stream.keyframes.generate import InStepKeyframes, make_generator
from arr_stream.pipeline import Pipeline
from arr_stream.relevance.query import parse_text
from arr_stream.selection.allocation import Allocation
from arr_stream.types import ByteArray, FloatArray, Frame, Grid
from benchmarks.ablation_runs import Made, RememberedGenerator
from benchmarks.picture_questions import PictureQuestion

COARSEST = 2
"""Highest level of detail: 4x4 fine cells."""


def uniform(grid: Grid, tokens: int) -> Allocation:
    """Fine cells as evenly spread as may be at every number of them: those that come first in ordered dithering.

    The order is that of Bayer ("An optimum method for two-level rendition of continuous-tone pictures", 1973).
    """
    return _fine(grid, np.sort(spread(grid)[:tokens]))


def random_cells(grid: Grid, tokens: int, seed: int | tuple[int, ...] = 0) -> Allocation:
    """Fine cells, each as likely as any other."""
    return _fine(grid, np.sort(np.random.default_rng(seed).permutation(grid.cells)[:tokens]))


def scaled(grid: Grid, tokens: int) -> Allocation:
    """The whole picture once, as finely as the tokens allow: coarse cells, some of them divided in four.

    The divided ones are evenly spread. Where there are more of the coarsest cells than tokens, evenly spread ones are
    left out.
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
    """The cells of that level, the last ones reaching beyond the edge."""
    return Grid(grid.size_wh, -(-grid.rows >> level), -(-grid.columns >> level))


def spread(grid: Grid) -> npt.NDArray[np.int64]:
    """`[cells]` flat indices; as many as are taken from its beginning are evenly spread."""
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


def shown_detail(cells: Allocation, shape_hw: tuple[int, int]) -> FloatArray:
    """`[gh, gw]`, share of the texture's pixels at which each cell is shown, by the finest that shows it: 0 for none,
    1 fine or finer."""
    shown = np.zeros(shape_hw, np.float32)
    for level in sorted(set(cells.level.tolist()), reverse=True):
        span = 1 << max(level, 0)
        for row, column in zip(cells.rows[cells.level == level], cells.columns[cells.level == level], strict=True):
            shown[row : row + span, column : column + span] = 0.25 ** max(level, 0)
    return shown


def covered(regions: ByteArray, cells: Allocation, grid: Grid) -> tuple[FloatArray, FloatArray]:
    """How much of each thing lies in the cells.

    Args:
        regions: `[H, W]`, 1 to n for the things, 0 elsewhere.
        cells: Of the grid.
        grid: Of the picture.

    Returns:
        `[n]` shares in fine cells, and `[n]` in cells of any level.
    """
    detail = shown_detail(cells, (grid.rows, grid.columns))
    pixels = np.bincount(regions.ravel())[1:]
    shares = []
    for chosen in (detail == 1, detail > 0):
        inside = cv2.resize(chosen.astype(np.uint8), regions.shape[::-1], interpolation=cv2.INTER_NEAREST) > 0
        hit = np.bincount(regions[inside], minlength=len(pixels) + 1)[1:]
        shares.append((hit / pixels).astype(np.float32))
    return shares[0], shares[1]


class OurChoice:
    """What the pipeline chooses for a picture and its query, as on the first frame of a stream.

    Args:
        settings: All but the budget.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._encoder = make_text_encoder(settings)
        self._pca = find_pca(settings, self._encoder)
        self._inner = make_generator(settings)
        self._picture: ByteArray | None = None
        self._made: Made = {}

    def choose(self, asked: PictureQuestion, tokens: int) -> tuple[Allocation, float]:
        """The cells, and the milliseconds that it took, generation counted in even where it was remembered."""
        if self._picture is not asked.rgb:
            self._picture, self._made = asked.rgb, {}
        generator = RememberedGenerator(self._inner, self._made, PARTS)
        pipeline = Pipeline(
            self._settings.with_values({"selection.budget": str(tokens)}),
            InStepKeyframes(generator),
            [parse_text(query) for query in asked.queries],
            encoder=self._encoder,
            pca=self._pca,
        )
        started = time.perf_counter()
        patches = pipeline.step(Frame(0, 0.0, asked.rgb))
        milliseconds = (time.perf_counter() - started) * 1e3 + generator.owed_ms - generator.spent_ms
        return Allocation(patches.rows, patches.columns, patches.level, patches.score), milliseconds
