"""Chosen cells: the area of the frame that each covers, its positions in Qwen3-VL, and its pixels.

The vision tower rotates by the row and column of each 16-px patch and adds a learned embedding that is interpolated
from a square table; the language model rotates by time, row and column of each 32-px cell (interleaved M-RoPE). Coarse
cells and quarters of finer ones have the positions of their centres, which may be halves or quarters. Importing this
module needs only NumPy and torch, because the plugin on a server uses it too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from arr_stream.types import (
    CELL_PX,
    FINER,
    BoolArray,
    ByteArray,
    FloatArray,
    Grid,
    IntArray,
    span_cells,
    tokens_of,
)

if TYPE_CHECKING:
    from arr_stream.patch_set import PatchSet
    from arr_stream.selection.allocation import Allocation

GridHW = tuple[int, int]
PATCH_PX = 16
POSITIONS_PER_TOKEN = 4
"""Positions in a server's rotary table for each token: a few cells of a large frame take as many as all of them."""
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
    def of_table(cls, grid_hw: GridHW, table: IntArray) -> Cells:
        """Return the cells of a `table`, with score 1."""
        rows, columns, level, quarter = table.T
        return cls(grid_hw, rows, columns, level, np.ones(len(table), np.float32), quarter)

    @classmethod
    def chosen(cls, patches: PatchSet) -> Cells:
        """Return the cells of a patch set, in reading order."""
        return cls.allocated(patches, patches.grid)

    @classmethod
    def allocated(cls, chosen: Allocation | PatchSet, grid: Grid) -> Cells:
        """Return the chosen cells in reading order, finer ones as their quarters."""
        count = tokens_of(chosen.level)
        entry = np.repeat(np.arange(len(chosen)), count)
        quarter = (np.arange(len(entry)) - np.repeat(np.cumsum(count) - count, count)).astype(np.int32)
        rows, columns, level = chosen.rows[entry], chosen.columns[entry], chosen.level[entry]
        cells = cls((grid.rows, grid.columns), rows, columns, level, chosen.score[entry], quarter)
        return cells.in_reading_order()

    @property
    def table(self) -> IntArray:
        """Row, column, level and quarter of each cell, `[K, 4]`."""
        return np.stack([self.rows, self.columns, self.level, self.quarter], axis=1).astype(np.int32)

    @property
    def blocks(self) -> IntArray:
        """First row, first column, rows and columns covered, `[K, 4]`, cut at the end; for a quarter its cell's."""
        span = span_cells(self.level)
        height = np.minimum(span, self.grid_hw[0] - self.rows)
        width = np.minimum(span, self.grid_hw[1] - self.columns)
        return np.stack([self.rows, self.columns, height, width], axis=1).astype(np.int32)

    @property
    def extents(self) -> FloatArray:
        """`[K, 4]` as `blocks`, but with half rows and columns for a quarter."""
        extents = self.blocks.astype(np.float32)
        finer = self.level == FINER
        extents[finer, :2] += np.stack(np.divmod(self.quarter[finer], 2), axis=1) / 2
        extents[finer, 2:] = 0.5
        return extents

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
        _, first, of = np.unique(self.table[:, :3], axis=0, return_index=True, return_inverse=True)
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
    joined = concatenated(parts)
    finer = np.zeros(joined.grid_hw, bool)
    finer[joined.rows[joined.level == FINER], joined.columns[joined.level == FINER]] = True
    joined = joined.select((joined.level != 0) | ~finer[joined.rows, joined.columns])
    places, of = np.unique(joined.table, axis=0, return_inverse=True)
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
    import cv2

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
    from arr_stream.texture.pictures import finer_pictures

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


def patch_pixels(pictures: ByteArray) -> ByteArray:
    """Lay out cells `[K, F, 32, 32, 3]` as patches, like the processor of Qwen3-VL; `[K, 2, 2, 3, F, 16, 16]`.

    A cell has four patches, each of them channel, frame, pixel row and pixel column.
    """
    halves = pictures.reshape(len(pictures), -1, 2, PATCH_PX, 2, PATCH_PX, 3)
    laid_out: ByteArray = halves.transpose(0, 2, 4, 6, 1, 3, 5)
    return laid_out


def normalised(pixels: ByteArray, mean: Sequence[float], std: Sequence[float]) -> FloatArray:
    """Normalise pixels of `patch_pixels`; mean and standard deviation are for pixels in [0, 1].

    The order of operations is the processor's, so that the numbers are equal to the last bit.
    """
    shift, scale = ((255 * np.array(part, np.float32)).reshape(3, 1, 1, 1) for part in (mean, std))
    return np.ascontiguousarray((pixels.astype(np.float32) - shift) / scale, dtype=np.float32)


def patch_positions(cells: Cells) -> Tensor:
    """Return row and column of every patch in patches of the full grid, block by block; `[4 * K, 2]` float32."""
    extents = cells.extents
    first, covered = 2 * extents[:, :2], extents[:, 2:]
    half = np.array([[0, 0], [0, 1], [1, 0], [1, 1]], np.float32)
    # Half i of a block starts i * covered patches after its first and is that many patches long.
    middles = first[:, None] + half * covered[:, None] + (covered[:, None] - 1) / 2
    return torch.from_numpy(middles.reshape(-1, 2).astype(np.float32))


def interpolation(positions: Tensor, grid_hw: GridHW, side: int) -> tuple[Tensor, Tensor]:
    """Return indices and weights, both `[N, 4]`, that read the `side` by `side` table at `[N, 2]` patch positions.

    The interpolation is bilinear, with the corners of the table on the corner patches of the frame.
    """
    patches = torch.tensor(grid_hw, dtype=torch.float32) * 2
    # Finer cells may be half a patch beyond the corners, where the table ends.
    places = (positions.to(torch.float32) * (side - 1) / (patches - 1).clamp(min=1)).clamp(0, side - 1)
    low = places.floor()
    share = places - low
    low_index = low.long().clamp(0, side - 1)
    high_index = (low_index + 1).clamp(max=side - 1)
    rows = torch.stack([low_index[:, 0], high_index[:, 0]], dim=1)
    columns = torch.stack([low_index[:, 1], high_index[:, 1]], dim=1)
    row_weights = torch.stack([1 - share[:, 0], share[:, 0]], dim=1)
    column_weights = torch.stack([1 - share[:, 1], share[:, 1]], dim=1)
    indices = rows[:, :, None] * side + columns[:, None, :]
    weights = row_weights[:, :, None] * column_weights[:, None, :]
    return indices.reshape(-1, 4), weights.reshape(-1, 4)


def token_positions(cells: Cells, start: float) -> Tensor:
    """Return time, row and column of every cell of a block that starts at `start`; `[3, K]` float32."""
    extents = torch.from_numpy(cells.extents)
    middle = extents[:, :2] + (extents[:, 2:] - 1) / 2
    return torch.cat([torch.zeros(1, len(extents)), middle.T]) + start


def text_positions(count: int, start: float) -> Tensor:
    """Return positions of text, which advances by one on all three axes; `[3, count]` float32."""
    return (torch.arange(count, dtype=torch.float32) + start).expand(3, -1)


def block_extent(grid_hw: GridHW) -> int:
    """Return the number of positions that a block takes, regardless of how few of its cells are sent."""
    return max(grid_hw)
