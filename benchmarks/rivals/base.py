"""Interface of rules: a clip's inputs, and the cells of its every frame under one budget."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from arr_stream.errors import BudgetError
from arr_stream.selection.allocation import Allocation
from arr_stream.types import BoolArray, ByteArray, FloatArray, Grid
from benchmarks.rivals.spread import spread

Needs = Literal["nothing", "pixels", "features"]
Scores = npt.NDArray[np.floating]

PIXELS_A_CELL = 16
"""Side of a cell in a clip's pictures: half the texture's."""


@dataclass(frozen=True, slots=True, eq=False)
class Clip:
    """Inputs of a rule on a clip.

    Args:
        grid: The cells of every frame.
        rgb: `[T, gh * 16, gw * 16, 3]` uint8, the frames by area average at half the texture's size.
        features: `[T, gh, gw, D]` float32, one vector a cell, of whichever maker; None for rules that need none.
        made_ms: What making the features took a frame; without any, the pictures, reading left out.

    Raises:
        ValueError: No frames, or shapes that do not fit each other.
    """

    grid: Grid
    rgb: ByteArray
    features: FloatArray | None = None
    made_ms: float = 0.0

    def __post_init__(self) -> None:
        rows, columns = self.grid.rows, self.grid.columns
        expected = (rows * PIXELS_A_CELL, columns * PIXELS_A_CELL, 3)
        if self.rgb.ndim != 4 or not len(self.rgb) or self.rgb.shape[1:] != expected or self.rgb.dtype != np.uint8:
            raise ValueError(f"rgb is {self.rgb.dtype} {list(self.rgb.shape)}, expected uint8 [T, *{expected}], T >= 1")
        if self.features is None:
            return
        shape = self.features.shape
        if len(shape) != 4 or shape[:3] != (len(self.rgb), rows, columns) or not shape[3]:
            raise ValueError(f"features are {list(shape)}, expected [{len(self.rgb)}, {rows}, {columns}, D]")
        if not np.isfinite(self.features).all():
            raise ValueError("features hold values that are not numbers")

    def __len__(self) -> int:
        return len(self.rgb)

    @property
    def described(self) -> FloatArray:
        """The features.

        Raises:
            ValueError: There are none.
        """
        if self.features is None:
            raise ValueError("this rule looks at features, and the clip has none; give make_clip a FeatureMaker")
        return self.features


Choose = Callable[[Clip, int], list[Allocation]]


@dataclass(frozen=True, slots=True)
class Rule:
    """Chooses cells without knowing what is asked for.

    Args:
        name: As it is printed.
        needs: What it looks at.
        cells: Given a clip and the tokens of a frame: one allocation a frame, cells best first by the rule's own score,
            highest first. A frame may get none. All together have at most `tokens * len(clip)` cells, or one whole
            frame where a rule keeps the first frame whole and the budget is less.
        causal: What it keeps of a frame does not depend on what later frames show.
    """

    name: str
    needs: Needs
    cells: Choose
    causal: bool = True

    def choose(self, clip: Clip, tokens: int) -> list[Allocation]:
        """The cells of every frame.

        Raises:
            BudgetError: Not between one cell a frame and all of them.
            ValueError: The clip lacks the features that the rule needs.
        """
        grid = clip.grid
        if not 1 <= tokens <= grid.cells:
            raise BudgetError(
                f"budget of {tokens} tokens a frame on a grid of {grid.rows}x{grid.columns}",
                remedy=f"give 1 to {grid.cells}",
            )
        return self.cells(clip, tokens)


def kept_cells(score: Scores, keep: BoolArray) -> Allocation:
    """The cells of a frame's mask, highest score first, ties in reading order.

    Args:
        score: `[gh, gw]`.
        keep: `[gh, gw]`.
    """
    flat = np.flatnonzero(keep)
    values = score.ravel()[flat]
    order = np.argsort(-values, kind="stable")
    rows, columns = np.divmod(flat[order].astype(np.int32), np.int32(score.shape[1]))
    return Allocation(rows, columns, np.zeros_like(rows), values[order].astype(np.float32))


def kept_each(scores: Iterable[Scores], keep: Iterable[BoolArray]) -> list[Allocation]:
    """`kept_cells` of every frame."""
    return [kept_cells(score, mask) for score, mask in zip(scores, keep, strict=True)]


def most_of(score: Scores, tokens: int, grid: Grid) -> Allocation:
    """The highest scores of a frame; among equal ones those that lie most evenly, as in a uniform grid."""
    rank = np.empty(grid.cells, np.int64)
    rank[spread(grid)] = np.arange(grid.cells)
    keep = np.zeros(grid.cells, bool)
    keep[np.lexsort((rank, -score.ravel()))[:tokens]] = True
    return kept_cells(score, keep.reshape(score.shape))
