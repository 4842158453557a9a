"""Positions of cells in the three coordinate systems of Qwen3-VL, and the order of their pixels.

The vision tower rotates by the row and column of each 16-px patch and adds a learned embedding that is interpolated
from a square table; the language model rotates by time, row and column of each 32-px cell (interleaved M-RoPE). Coarse
cells and quarters of finer ones have the positions of their centres, which may be halves or quarters. The module needs
only NumPy and torch, because the plugin on a server uses it too.
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
"""Positions in a server's rotary table for each token: a few cells of a large frame take as many as all of them."""


class Placed(Protocol):
    """K cells of a grid with the `extents` `[K, 4]` of `covered_extents`."""

    @property
    def grid_hw(self) -> GridHW: ...

    @property
    def extents(self) -> FloatArray: ...


def covered_blocks(grid_hw: GridHW, rows: IntArray, columns: IntArray, level: IntArray) -> IntArray:
    """Return first row, first column, rows and columns of the fine cells that each covers, `[K, 4]`, cut at the end."""
    span = span_cells(level)
    height, width = np.minimum(span, grid_hw[0] - rows), np.minimum(span, grid_hw[1] - columns)
    blocks: IntArray = np.stack([rows, columns, height, width], axis=1).astype(np.int32)
    return blocks


def covered_extents(blocks: IntArray, level: IntArray, quarter: IntArray) -> FloatArray:
    """Return `[K, 4]` as `covered_blocks`, but with half rows and columns for a quarter."""
    extents = blocks.astype(np.float32)
    finer = level == FINER
    extents[finer, :2] += np.stack(np.divmod(quarter[finer], 2), axis=1) / 2
    extents[finer, 2:] = 0.5
    return extents


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


def patch_positions(cells: Placed) -> Tensor:
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


def token_positions(cells: Placed, start: float) -> Tensor:
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
