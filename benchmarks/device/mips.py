"""All 40 channels as one tensor that is there already, and its pyramid."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from arr_stream.texture.array import CELL_LEVEL, Plane, Texture
from arr_stream.texture.layout import CHANNELS

_NEAREST = tuple(channel.index for channel in CHANNELS if channel.interpolation == "nearest")


def dense_into(texture: Texture, out: Tensor) -> None:
    """Writes the full texture, equal to `Texture.dense` to rounding, without another full-size tensor.

    Args:
        texture: On any device.
        out: `[40, H, W]` float32, contiguous, on the texture's device; everything in it is overwritten.
    """
    for first, plane in texture.all_planes():
        _write(plane, out[first : first + plane.data.shape[0]])


def pyramid(out: Tensor) -> list[Tensor]:
    """Mip levels of a dense texture.

    Args:
        out: `[40, H, W]`, sides whole numbers of cells.

    Returns:
        Levels 0 (`out` itself) to 5 (one value a cell), `[40, H >> level, W >> level]`: means over blocks of
        `2**level` pixels, ids and their like by the nearest sample; as `Texture.mip` gives them.
    """
    levels = [out]
    for level in range(1, CELL_LEVEL + 1):
        made = functional.avg_pool2d(levels[-1], 2)
        step = 1 << level
        for channel in _NEAREST:
            made[channel].copy_(out[channel, step // 2 :: step, step // 2 :: step])
        levels.append(made)
    return levels


def _write(plane: Plane, out: Tensor) -> None:
    """One plane at full size. `out` is `[C, H, W]`."""
    _, rows, columns = plane.data.shape
    height, width = out.shape[1:]
    across, down = width // columns, height // rows
    if rows in (1, height) and columns in (1, width):
        torch.mul(plane.data.expand(-1, height, width), plane.scale, out=out)
    elif plane.nearest and (rows * down, columns * across) == (height, width):
        blocks = out.view(-1, rows, down, columns, across)
        blocks.copy_(plane.values(plane.data)[:, :, None, :, None].expand_as(blocks))
    elif plane.nearest:
        out.copy_(plane.mip((width, height), 0))
    else:
        source = plane.values(plane.data)[None]
        torch.ops.aten.upsample_bilinear2d.out(source, [height, width], False, out=out[None])
