"""From pictures to the rows that the vision tower takes, for the chosen cells alone."""

from __future__ import annotations

import cv2
import numpy as np
import torch
from torch import Tensor

from arr_stream.types import CELL_PX, ByteArray, FloatArray
from arr_stream.vlm.qwen3_vl.cells import Cells

PATCH_PX = 16


def texture_picture(rgb: ByteArray, texture_wh: tuple[int, int]) -> ByteArray:
    """A frame `[H, W, 3]` at a whole number of cells, by the resampling of Qwen's own image processor.

    That is bicubic with antialiasing on bytes.
    """
    width, height = texture_wh
    if rgb.shape[:2] == (height, width):
        return rgb
    planes = torch.from_numpy(np.ascontiguousarray(rgb)).permute(2, 0, 1)[None]
    resized = torch.nn.functional.interpolate(planes, size=(height, width), mode="bicubic", antialias=True)
    picture: ByteArray = resized[0].permute(1, 2, 0).contiguous().numpy()
    return picture


def cell_pictures(picture: ByteArray, cells: Cells) -> ByteArray:
    """`[K, 32, 32, 3]`: the cells cut from a picture of the texture's size, coarse ones scaled down."""
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
    return cut


def patch_rows(first: ByteArray, second: ByteArray, cells: Cells, mean: FloatArray, std: FloatArray) -> Tensor:
    """`[4 * K, 3 * 2 * 16 * 16]` float32, four rows a cell in the order of its 2x2 patches.

    A row holds channel, frame, pixel row and pixel column, as the processor of Qwen3-VL lays them out.

    Args:
        first, second: The two frames of a temporal patch, at the texture's size; twice the same for one that
            stands alone.
        cells: What to cut out.
        mean, std: `[3]` of the processor's normalisation, on [0, 1].
    """
    cut = [cell_pictures(first, cells)]
    cut.append(cut[0] if second is first else cell_pictures(second, cells))
    # [K, frame, 2, 16, 2, 16, channel] -> [K, 2, 2, channel, frame, 16, 16]
    pixels = np.stack(cut, axis=1).reshape(-1, 2, 2, PATCH_PX, 2, PATCH_PX, 3).transpose(0, 2, 4, 6, 1, 3, 5)
    # In the processor's own order of operations, so that the numbers are the same to the last bit.
    rows = (pixels.astype(np.float32) - (255 * mean).reshape(3, 1, 1, 1)) / (255 * std).reshape(3, 1, 1, 1)
    return torch.from_numpy(np.ascontiguousarray(rows, dtype=np.float32).reshape(len(cells) * 4, -1))
