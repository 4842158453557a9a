"""Where cells are, in the three frames of reference of Qwen3-VL.

The vision tower rotates by the row and column of each 16-px patch and adds a learned embedding that is interpolated
from a square table; the language model rotates by time, row and column of each 32-px cell (interleaved M-RoPE). A
coarse cell is put at the centre of what it covers, so its positions may be halves.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from arr_stream.vlm.qwen3_vl.cells import Cells, GridHW


def patch_positions(cells: Cells) -> Tensor:
    """`[4 * K, 2]` float32, row and column of every patch in patches of the full grid, block by block."""
    blocks = cells.blocks.astype(np.float32)
    first, covered = 2 * blocks[:, :2], blocks[:, 2:]
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
    places = positions.to(torch.float32) * (side - 1) / (patches - 1).clamp(min=1)
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
    """`[3, K]` float32: time, row and column of every cell of a block that starts at `start`."""
    blocks = torch.from_numpy(cells.blocks.astype(np.float32))
    middle = blocks[:, :2] + (blocks[:, 2:] - 1) / 2
    return torch.cat([torch.zeros(1, len(cells)), middle.T]) + start


def text_positions(count: int, start: float) -> Tensor:
    """`[3, count]` float32: text moves on by one in all three."""
    return (torch.arange(count, dtype=torch.float32) + start).expand(3, -1)


def block_extent(grid_hw: GridHW) -> int:
    """How far a block moves the position on, however few of its cells are there."""
    return max(grid_hw)
