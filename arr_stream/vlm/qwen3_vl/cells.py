"""Cells as the model takes them: in reading order, each with the part of the frame that it covers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from arr_stream.patch_set import PatchSet
from arr_stream.types import FloatArray, IntArray

GridHW = tuple[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """Chosen cells of one frame, or of a pair of frames that share one block.

    Args:
        grid_hw: Rows and columns of the frame's fine cells.
        rows, columns: `[K]` int32, top-left fine cell.
        level: `[K]` int32, 0 covers one fine cell, 1 covers 2x2, 2 covers 4x4; less where the grid ends.
        score: `[K]` float32 in [0, 1], relevance.
    """

    grid_hw: GridHW
    rows: IntArray
    columns: IntArray
    level: IntArray
    score: FloatArray

    def __post_init__(self) -> None:
        if not len(self.rows) == len(self.columns) == len(self.level) == len(self.score):
            raise ValueError("rows, columns, level and score differ in length")
        inside = (self.rows >= 0) & (self.rows < self.grid_hw[0]) & (self.columns >= 0)
        if not (inside & (self.columns < self.grid_hw[1]) & (self.level >= 0)).all():
            raise ValueError(f"cells outside of the grid {self.grid_hw}")

    def __len__(self) -> int:
        return len(self.rows)

    @classmethod
    def whole(cls, grid_hw: GridHW, score: FloatArray | None = None) -> Cells:
        """Every fine cell; `score` is `[gh, gw]`, 1 everywhere if not given."""
        rows, columns = np.divmod(np.arange(grid_hw[0] * grid_hw[1], dtype=np.int32), np.int32(grid_hw[1]))
        flat = np.ones(len(rows), np.float32) if score is None else score.reshape(-1).astype(np.float32)
        return cls(grid_hw, rows, columns, np.zeros_like(rows), flat)

    @classmethod
    def chosen(cls, patches: PatchSet) -> Cells:
        """The cells of a patch set, in reading order."""
        grid_hw = (patches.grid.rows, patches.grid.columns)
        return cls(grid_hw, patches.rows, patches.columns, patches.level, patches.score).in_reading_order()

    @property
    def blocks(self) -> IntArray:
        """`[K, 4]` first row, first column, rows and columns covered, cut off where the grid ends."""
        span = np.left_shift(1, self.level)
        height = np.minimum(span, self.grid_hw[0] - self.rows)
        width = np.minimum(span, self.grid_hw[1] - self.columns)
        blocks: IntArray = np.stack([self.rows, self.columns, height, width], axis=1).astype(np.int32)
        return blocks

    def take(self, keep: npt.NDArray[np.bool_] | IntArray) -> Cells:
        """Some of them, by mask or by index."""
        return Cells(self.grid_hw, self.rows[keep], self.columns[keep], self.level[keep], self.score[keep])

    def in_reading_order(self) -> Cells:
        """Line by line, by the middle of what each cell covers: the order in which the model meets them."""
        blocks = self.blocks
        middle = blocks[:, :2] + (blocks[:, 2:] - 1) / 2
        return self.take(np.lexsort((self.level, middle[:, 1], middle[:, 0])).astype(np.int32))

    def best(self, most: int) -> Cells:
        """At most so many, the highest scores, in reading order."""
        if len(self) <= most:
            return self
        return self.take(np.argsort(-self.score, kind="stable")[:most].astype(np.int32)).in_reading_order()

    def ring(self, width: int) -> Cells:
        """The fine cells within `width` of the chosen ones that are not chosen themselves."""
        near = np.zeros(self.grid_hw, bool)
        own = np.zeros(self.grid_hw, bool)
        for row, column, height, breadth in self.blocks.tolist():
            near[max(0, row - width) : row + height + width, max(0, column - width) : column + breadth + width] = True
            own[row : row + height, column : column + breadth] = True
        rows, columns = (index.astype(np.int32) for index in np.nonzero(near & ~own))
        return Cells(self.grid_hw, rows, columns, np.zeros_like(rows), np.zeros(len(rows), np.float32))


def merged(parts: Sequence[Cells]) -> Cells:
    """Cells of several frames of one size as one set, each place and level once with its highest score."""
    best: dict[tuple[int, int, int], float] = {}
    for part in parts:
        if part.grid_hw != parts[0].grid_hw:
            raise ValueError(f"grids differ: {part.grid_hw} and {parts[0].grid_hw}")
        for *place, score in zip(
            part.rows.tolist(), part.columns.tolist(), part.level.tolist(), part.score.tolist(), strict=True
        ):
            key = (place[0], place[1], place[2])
            best[key] = max(score, best.get(key, 0.0))
    places = np.array(list(best), np.int32).reshape(-1, 3)
    score = np.fromiter(best.values(), np.float32, len(best))
    return Cells(parts[0].grid_hw, places[:, 0], places[:, 1], places[:, 2], score).in_reading_order()
