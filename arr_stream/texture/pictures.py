"""The few reduced pictures of a frame from which everything else is computed, each made once, when first needed."""

from __future__ import annotations

from functools import cached_property

import cv2
import numpy as np

from arr_stream.types import ByteArray, Frame, Grid


class Pictures:
    """A frame at full, half, quarter and an eighth of the texture's size.

    Args:
        frame: The frame.
        grid: Its grid; `grid.texture_wh` fixes the sizes.
    """

    def __init__(self, frame: Frame, grid: Grid) -> None:
        self.frame = frame
        self.grid = grid

    @cached_property
    def full(self) -> ByteArray:
        """`[H, W, 3]`: the frame itself, or brought to the texture's size where the texture is smaller.

        Frames up to the texture's own size stay as they are; the texture's channels are read through a
        resampling operator, so copying them would only cost time.
        """
        width, height = self.grid.texture_wh
        source_w, source_h = self.frame.size_wh
        if source_w > width * 1.05 and source_h > height * 1.05:
            return _resize(self.frame.rgb, (width, height))
        return self.frame.rgb

    @cached_property
    def half(self) -> ByteArray:
        """`[H/2, W/2, 3]` RGB."""
        return _resize(self.full, self.reduced_wh(2))

    @cached_property
    def grey(self) -> ByteArray:
        """`[H/2, W/2]` lightness (BT.601 luma), half size."""
        grey: ByteArray = cv2.cvtColor(self.half, cv2.COLOR_RGB2GRAY)
        return grey

    @cached_property
    def quarter(self) -> ByteArray:
        """`[H/4, W/4, 3]` RGB."""
        return _resize(self.half, self.reduced_wh(4))

    @cached_property
    def quarter_grey(self) -> ByteArray:
        """`[H/4, W/4]` lightness."""
        return _resize(self.grey, self.reduced_wh(4))

    @cached_property
    def eighth(self) -> ByteArray:
        """`[H/8, W/8, 3]` RGB."""
        return _resize(self.quarter, self.reduced_wh(8))

    @cached_property
    def eighth_grey(self) -> ByteArray:
        """`[H/8, W/8]` lightness."""
        return _resize(self.quarter_grey, self.reduced_wh(8))

    def reduced_wh(self, factor: int) -> tuple[int, int]:
        """Size of the texture divided by `factor`."""
        width, height = self.grid.texture_wh
        return width // factor, height // factor


def _resize(picture: ByteArray, size_wh: tuple[int, int]) -> ByteArray:
    """Area average where a side shrinks by whole or large factors, linear where it is cheaper and as good."""
    height, width = picture.shape[:2]
    if (width, height) == size_wh:
        return picture
    across, down = width / size_wh[0], height / size_wh[1]
    # The area average costs ten times a linear resize unless both factors are exactly 2; below about 2.2 linear
    # sampling reads nearly every pixel anyway.
    whole = across == down == 2.0
    method = cv2.INTER_AREA if whole or max(across, down) > 2.2 else cv2.INTER_LINEAR
    resized = cv2.resize(picture, size_wh, interpolation=method)
    return np.ascontiguousarray(resized)
