"""Reduced pictures of a frame, from which all features are computed; each is made once, on first access."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from arr_stream.keyframes.base import resized
from arr_stream.texture.arrays import Array, as_bytes, is_bytes
from arr_stream.texture.pixels import lightness, reduced
from arr_stream.types import CELL_PX, ByteArray, Frame, Grid, IntArray

_LARGER = 1.05
"""Ratio of sizes from which a frame counts as larger than the texture."""
_ABOUT = 0.95
"""Least size of an exactly halved frame, as a share of half size."""


class Pictures:
    """A frame at full, half, quarter and an eighth of the texture's size.

    Args:
        frame: The frame, or its `[H, W, 3]` uint8, upright, at the source's size, possibly on a device.
        grid: Its grid; `grid.texture_wh` fixes the sizes.

    Raises:
        ValueError: Not uint8 `[H, W, 3]`.
    """

    def __init__(self, frame: Frame | Array, grid: Grid) -> None:
        self.rgb: Array = frame.rgb if isinstance(frame, Frame) else frame
        self.grid = grid
        if self.rgb.ndim != 3 or self.rgb.shape[2] != 3 or not is_bytes(self.rgb):
            raise ValueError(f"rgb must be uint8 [H, W, 3], got {self.rgb.dtype} {list(self.rgb.shape)}")

    @cached_property
    def half(self) -> Array:
        """RGB at about half size or above: the frame halved exactly, which is cheap, or resized to half size."""
        picture, (width, height), wanted_wh = self.rgb, self.rgb.shape[1::-1], self.reduced_wh(2)
        while not (width % 2 or height % 2) and min(width / 2 / wanted_wh[0], height / 2 / wanted_wh[1]) >= _ABOUT:
            width, height = width // 2, height // 2
            picture = reduced(picture, (width, height))
        return reduced(picture, wanted_wh) if picture is self.rgb else picture

    @cached_property
    def grey(self) -> Array:
        """`[H/2, W/2]` lightness (BT.601 luma), half size."""
        return reduced(lightness(self.half), self.reduced_wh(2))

    @cached_property
    def quarter(self) -> Array:
        """RGB at a quarter."""
        return reduced(self.half, self.reduced_wh(4))

    @cached_property
    def quarter_grey(self) -> Array:
        """`[H/4, W/4]` lightness."""
        return reduced(self.grey, self.reduced_wh(4))

    @cached_property
    def eighth(self) -> Array:
        """RGB at an eighth."""
        return reduced(self.quarter, self.reduced_wh(8))

    @cached_property
    def eighth_grey(self) -> Array:
        """`[H/8, W/8]` lightness."""
        return reduced(self.quarter_grey, self.reduced_wh(8))

    def reduced_wh(self, factor: int) -> tuple[int, int]:
        """Return the texture's size divided by `factor`."""
        width, height = self.grid.texture_wh
        return width // factor, height // factor


def finer_pictures(rgb: ByteArray, grid: Grid, rows: IntArray, columns: IntArray) -> ByteArray:
    """Return `[N, 64, 64, 3]`: cells at twice the texture's resolution, each way, cut from the frame and resampled.

    Args:
        rgb: `[H, W, 3]` uint8, the frame in source pixels.
        grid: Its grid.
        rows, columns: `[N]`.
    """
    side, (cell_w, cell_h) = 2 * CELL_PX, grid.cell_px
    cut = np.empty((len(rows), side, side, 3), np.uint8)
    for index, (row, column) in enumerate(zip(rows.tolist(), columns.tolist(), strict=True)):
        x0, x1 = round(column * cell_w), round((column + 1) * cell_w)
        y0, y1 = round(row * cell_h), round((row + 1) * cell_h)
        cut[index] = resized(rgb[y0:y1, x0:x1], (side, side))
    return cut


def full_picture(rgb: Array, texture_wh: tuple[int, int]) -> Array:
    """Return a frame `[H, W, 3]` uint8, resized to the texture's size if the texture is smaller.

    Frames up to the texture's own size are returned unchanged, since the texture's channels are read through a
    resampling operator anyway.
    """
    height, width = rgb.shape[:2]
    if width > texture_wh[0] * _LARGER and height > texture_wh[1] * _LARGER:
        return as_bytes(reduced(rgb, texture_wh))
    return rgb
