"""Chosen cells: the area of the frame that each covers, and its pixels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import cv2
import numpy as np
import torch
from torch import Tensor

from arr_stream.patch_set import PatchSet
from arr_stream.selection.allocation import Allocation
from arr_stream.texture.pictures import finer_pictures
from arr_stream.types import CELL_PX, FINER, BoolArray, ByteArray, FloatArray, Grid, IntArray, tokens_of
from arr_stream.vlm.qwen3_vl.places import GridHW, covered_blocks, covered_extents, normalised, patch_pixels

_NAMES = ("rows", "columns", "level", "score", "quarter")


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """Chosen cells of one frame, or of a pair of frames that share one block, one token each; `[K]` arrays.

    Args:
        grid_hw: Rows and columns of the frame's fine cells.
        rows, columns: Top-left fine cell.
        level: 0 covers one fine cell, 1 covers 2x2, 2 covers 4x4, fewer at the grid's end; -1 is a quarter of one.
        score: Relevance in [0, 1].
        quarter: Index of the quarter at level -1, 0 to 3 in reading order; 0 elsewhere.
    """

    grid_hw: GridHW
    rows: IntArray
    columns: IntArray
    level: IntArray
    score: FloatArray
    quarter: IntArray = field(default_factory=lambda: np.zeros(0, np.int32))

    def __post_init__(self) -> None:
        if not len(self.quarter):
            object.__setattr__(self, "quarter", np.zeros_like(self.rows))
        if len({len(self.rows), len(self.columns), len(self.level), len(self.score), len(self.quarter)}) > 1:
            raise ValueError("rows, columns, level, score and quarter differ in length")
        inside = (self.rows >= 0) & (self.rows < self.grid_hw[0]) & (self.columns >= 0)
        if not (inside & (self.columns < self.grid_hw[1]) & (self.level >= FINER)).all():
            raise ValueError(f"cells outside of the grid {self.grid_hw}")

    def __len__(self) -> int:
        return len(self.rows)

    @classmethod
    def whole(cls, grid_hw: GridHW, score: FloatArray | None = None) -> Cells:
        """Return every fine cell; `score` is `[gh, gw]`, 1 everywhere by default."""
        rows, columns = np.divmod(np.arange(grid_hw[0] * grid_hw[1], dtype=np.int32), np.int32(grid_hw[1]))
        flat = np.ones(len(rows), np.float32) if score is None else score.reshape(-1).astype(np.float32)
        return cls(grid_hw, rows, columns, np.zeros_like(rows), flat)

    @classmethod
    def chosen(cls, patches: PatchSet) -> Cells:
        """Return the cells of a patch set, in reading order."""
        allocation = Allocation(patches.rows, patches.columns, patches.level, patches.score)
        return cls.allocated(allocation, patches.grid)

    @classmethod
    def allocated(cls, chosen: Allocation, grid: Grid) -> Cells:
        """Return the cells of an allocation in reading order, finer ones as their quarters."""
        count = tokens_of(chosen.level)
        entry = np.repeat(np.arange(len(chosen)), count)
        quarter = (np.arange(len(entry)) - np.repeat(np.cumsum(count) - count, count)).astype(np.int32)
        rows, columns, level = chosen.rows[entry], chosen.columns[entry], chosen.level[entry]
        cells = cls((grid.rows, grid.columns), rows, columns, level, chosen.score[entry], quarter)
        return cells.in_reading_order()

    @property
    def blocks(self) -> IntArray:
        """First row, first column, rows and columns covered, `[K, 4]`, cut at the end; for a quarter its cell's."""
        return covered_blocks(self.grid_hw, self.rows, self.columns, self.level)

    @property
    def extents(self) -> FloatArray:
        """`[K, 4]` as `blocks`, but with half rows and columns for a quarter."""
        return covered_extents(self.blocks, self.level, self.quarter)

    def select(self, keep: BoolArray | IntArray) -> Cells:
        """Return some of the cells, by mask or by index."""
        return Cells(self.grid_hw, *(getattr(self, name)[keep] for name in _NAMES))

    def in_reading_order(self) -> Cells:
        """Return the cells row by row, ordered by the centre of their area: the order in which the model reads them."""
        extents = self.extents
        middle = extents[:, :2] + (extents[:, 2:] - 1) / 2
        return self.select(np.lexsort((self.level, middle[:, 1], middle[:, 0])).astype(np.int32))

    def best(self, most: int) -> Cells:
        """Return at most `most` tokens with the highest scores, in reading order; of a cell all quarters or none."""
        if len(self) <= most:
            return self
        places = np.stack([self.rows, self.columns, self.level], axis=1)
        _, first, of = np.unique(places, axis=0, return_index=True, return_inverse=True)
        first = first[of.reshape(-1)]
        order = np.lexsort((first, -self.score))
        kept = order[:most]
        if most and first[order[most]] == first[kept[-1]]:
            kept = kept[first[kept] != first[order[most]]]
        return self.select(kept.astype(np.int32)).in_reading_order()

    def covered(self) -> BoolArray:
        """Return `[gh, gw]`, the fine cells that are covered."""
        covered = np.zeros(self.grid_hw, bool)
        for row, column, height, width in self.blocks.tolist():
            covered[row : row + height, column : column + width] = True
        return covered


def merged(parts: Sequence[Cells]) -> Cells:
    """Merge cells of several frames of one size; each place and level appears once with its highest score.

    A cell that one frame gives finer appears only so.
    """
    if len({part.grid_hw for part in parts}) > 1:
        raise ValueError(f"grids differ: {parts[0].grid_hw} and {parts[-1].grid_hw}")
    joined = concatenated(parts)
    finer = np.zeros(joined.grid_hw, bool)
    finer[joined.rows[joined.level == FINER], joined.columns[joined.level == FINER]] = True
    joined = joined.select((joined.level != 0) | ~finer[joined.rows, joined.columns])
    names = ("rows", "columns", "level", "quarter")
    places, of = np.unique(np.stack([getattr(joined, name) for name in names], axis=1), axis=0, return_inverse=True)
    score = np.zeros(len(places), np.float32)
    np.maximum.at(score, of.reshape(-1), joined.score)
    rows, columns, level, quarter = places.T
    return Cells(joined.grid_hw, rows, columns, level, score, quarter).in_reading_order()


def concatenated(parts: Sequence[Cells]) -> Cells:
    return Cells(parts[0].grid_hw, *(np.concatenate([getattr(part, name) for part in parts]) for name in _NAMES))


def texture_picture(rgb: ByteArray, texture_wh: tuple[int, int]) -> ByteArray:
    """Resize a frame `[H, W, 3]` to whole cells as Qwen's image processor does: bicubic, antialiased, on bytes."""
    width, height = texture_wh
    if rgb.shape[:2] == (height, width):
        return rgb
    planes = torch.from_numpy(np.ascontiguousarray(rgb)).permute(2, 0, 1)[None]
    resized = torch.nn.functional.interpolate(planes, size=(height, width), mode="bicubic", antialias=True)
    picture: ByteArray = resized[0].permute(1, 2, 0).contiguous().numpy()
    return picture


def cell_pictures(picture: ByteArray, cells: Cells, source: ByteArray | None = None) -> ByteArray:
    """Cut the cells from a picture `[32 gh, 32 gw, 3]`, coarse ones scaled down; `[K, 32, 32, 3]`.

    Quarters of cells are cut from `source`, the frame in source pixels.
    """
    rows, columns = cells.grid_hw
    if picture.shape != (rows * CELL_PX, columns * CELL_PX, 3):
        raise ValueError(
            f"picture is {list(picture.shape)}, expected {rows * CELL_PX}x{columns * CELL_PX} pixels of RGB"
        )
    tiles = picture.reshape(rows, CELL_PX, columns, CELL_PX, 3).swapaxes(1, 2)
    cut: ByteArray = tiles[cells.rows, cells.columns]
    blocks = cells.blocks * CELL_PX
    for index in np.flatnonzero(cells.level > 0):
        row, column, height, width = blocks[index]
        block = picture[row : row + height, column : column + width]
        cut[index] = cv2.resize(block, (CELL_PX, CELL_PX), interpolation=cv2.INTER_AREA)
    finer = cells.level == FINER
    if finer.any():
        cut[finer] = _quarter_pictures(cells.select(finer), source)
    return cut


def _quarter_pictures(quarters: Cells, source: ByteArray | None) -> ByteArray:
    """Cut quarters of cells from the frame itself; `[K, 32, 32, 3]`."""
    if source is None:
        raise ValueError("cells are given finer, and there is no frame in source pixels to cut them from")
    grid = Grid((source.shape[1], source.shape[0]), *quarters.grid_hw)
    places, of = np.unique(np.stack([quarters.rows, quarters.columns], axis=1), axis=0, return_inverse=True)
    pictures = finer_pictures(source, grid, *places.T)
    # [cells, 2, 32, 2, 32, 3] -> [cells, 2, 2, 32, 32, 3]
    parts = pictures.reshape(-1, 2, CELL_PX, 2, CELL_PX, 3).swapaxes(2, 3)
    row, column = np.divmod(quarters.quarter, 2)
    cut: ByteArray = parts[of.reshape(-1), row, column]
    return cut


@dataclass(frozen=True, slots=True)
class Normalisation:
    """Mean and standard deviation of each channel, for pixels in [0, 1]."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]


def patch_rows(
    first: ByteArray,
    second: ByteArray,
    cells: Cells,
    normalisation: Normalisation,
    sources: tuple[ByteArray, ByteArray] | None = None,
) -> Tensor:
    """Return `[4 * K, 3 * 2 * 16 * 16]` float32, four rows a cell in the order of its 2x2 patches.

    A row holds channel, frame, pixel row and pixel column, as the processor of Qwen3-VL lays them out. `first` and
    `second` are the frames of a temporal patch, at the texture's size; `sources` are the same in source pixels, for
    quarters of cells. A single frame is given twice.
    """
    before, after = sources or (None, None)
    cut = [cell_pictures(first, cells, before)]
    cut.append(cut[0] if second is first else cell_pictures(second, cells, after))
    rows = normalised(patch_pixels(np.stack(cut, axis=1)), normalisation.mean, normalisation.std)
    return torch.from_numpy(rows.reshape(len(cells) * 4, -1))
