"""The places of cells in the three frames of reference of Qwen3-VL, and the order of their pixels.

The vision tower rotates by the row and column of each 16-px patch and adds a learned embedding that is interpolated
from a square table; the language model rotates by time, row and column of each 32-px cell (interleaved M-RoPE). A
coarse cell is put at the centre of what it covers, so its positions may be halves; so is each quarter of a cell that is
given finer, so its positions are off by a quarter.

Needs NumPy and torch alone: a server that is handed cells places them by these same lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from arr_stream.types import FINER, ByteArray, FloatArray, IntArray, span_cells

GridHW = tuple[int, int]
PATCH_PX = 16
POSITIONS_PER_TOKEN = 4
"""Positions that a server's rotary table has for each token of the context: a few cells of a large frame take as many
as the whole of it."""


class Placed(Protocol):
    """K cells of a grid.

    Attributes:
        grid_hw: Rows and columns of fine cells.
        extents: `[K, 4]` of `covered_extents`.
    """

    @property
    def grid_hw(self) -> GridHW: ...

    @property
    def extents(self) -> FloatArray: ...


def covered_blocks(grid_hw: GridHW, rows: IntArray, columns: IntArray, level: IntArray) -> IntArray:
    """`[K, 4]` first row, first column, rows and columns of the fine cells that each covers, cut off where the grid
    ends."""
    span = span_cells(level)
    height, width = np.minimum(span, grid_hw[0] - rows), np.minimum(span, grid_hw[1] - columns)
    blocks: IntArray = np.stack([rows, columns, height, width], axis=1).astype(np.int32)
    return blocks


def covered_extents(blocks: IntArray, level: IntArray, quarter: IntArray) -> FloatArray:
    """`[K, 4]` as `covered_blocks`, but of a quarter its own half rows and columns."""
    extents = blocks.astype(np.float32)
    finer = level == FINER
    extents[finer, :2] += np.stack(np.divmod(quarter[finer], 2), axis=1) / 2
    extents[finer, 2:] = 0.5
    return extents


def patch_pixels(pictures: ByteArray) -> ByteArray:
    """`[K, 2, 2, 3, F, 16, 16]`: cells as the processor of Qwen3-VL lays out patches, from `[K, F, 32, 32, 3]`.

    Four patches a cell, each of them channel, frame, pixel row and pixel column.
    """
    halves = pictures.reshape(len(pictures), -1, 2, PATCH_PX, 2, PATCH_PX, 3)
    laid_out: ByteArray = halves.transpose(0, 2, 4, 6, 1, 3, 5)
    return laid_out


def normalised(pixels: ByteArray, mean: Sequence[float], std: Sequence[float]) -> FloatArray:
    """Pixels of `patch_pixels` by mean and deviation of each channel, for pixels in [0, 1].

    In the processor's own order of operations, so that the numbers are the same to the last bit.
    """
    shift, scale = ((255 * np.array(part, np.float32)).reshape(3, 1, 1, 1) for part in (mean, std))
    return np.ascontiguousarray((pixels.astype(np.float32) - shift) / scale, dtype=np.float32)


def patch_positions(cells: Placed) -> Tensor:
    """`[4 * K, 2]` float32, row and column of every patch in patches of the full grid, block by block."""
    extents = cells.extents
    first, covered = 2 * extents[:, :2], extents[:, 2:]
    half = np.array([[0, 0], [0, 1], [1, 0], [1, 1]], np.float32)
    # Half i of a block begins i * covered patches on, and is that many patches long.
    middles = first[:, None] + half * covered[:, None] + (covered[:, None] - 1) / 2
    return torch.from_numpy(middles.reshape(-1, 2).astype(np.float32))


def interpolation(positions: Tensor, grid_hw: GridHW, side: int) -> tuple[Tensor, Tensor]:
    """Indices and weights, both `[N, 4]`, that read the `side` by `side` table at patch positions.

    Bilinear, with the corners of the table on the corner patches of the frame.

    Args:
        positions: `[N, 2]` of `patch_positions`.
        grid_hw: Rows and columns of the frame's cells.
        side: Rows and columns of the table.
    """
    patches = torch.tensor(grid_hw, dtype=torch.float32) * 2
    # Half a patch beyond the corners, where finer cells may be, the table has nothing more to tell.
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


def token_positions(cells: Placed, start: float) -> Tensor:
    """`[3, K]` float32: time, row and column of every cell of a block that starts at `start`."""
    extents = torch.from_numpy(cells.extents)
    middle = extents[:, :2] + (extents[:, 2:] - 1) / 2
    return torch.cat([torch.zeros(1, len(extents)), middle.T]) + start


def text_positions(count: int, start: float) -> Tensor:
    """`[3, count]` float32: text moves on by one in all three."""
    return (torch.arange(count, dtype=torch.float32) + start).expand(3, -1)


def block_extent(grid_hw: GridHW) -> int:
    """How far a block moves the position on, however few of its cells are there."""
    return max(grid_hw)
