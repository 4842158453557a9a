"""The few reduced pictures of a frame from which everything else is computed, each made once, when first needed."""

from __future__ import annotations

from functools import cached_property

from arr_stream.texture.arrays import Array, as_bytes, is_bytes
from arr_stream.texture.pixels import lightness, reduced
from arr_stream.types import Frame, Grid


class Pictures:
    """A frame at full, half, quarter and an eighth of the texture's size.

    Args:
        frame: The frame, or its `[H, W, 3]` uint8, upright, at the source's size, on a device as well.
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
    def full(self) -> Array:
        """The frame itself, or brought to the texture's size where the texture is smaller.

        Frames up to the texture's own size stay as they are; the texture's channels are read through a
        resampling operator, so copying them would only cost time.
        """
        width, height = self.grid.texture_wh
        source_h, source_w = self.rgb.shape[:2]
        if source_w > width * 1.05 and source_h > height * 1.05:
            return as_bytes(reduced(self.rgb, (width, height)))
        return self.rgb

    @cached_property
    def half(self) -> Array:
        """RGB at half size."""
        return reduced(self.full, self.reduced_wh(2))

    @cached_property
    def grey(self) -> Array:
        """`[H/2, W/2]` lightness (BT.601 luma), half size."""
        return lightness(self.half)

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
        """Size of the texture divided by `factor`."""
        width, height = self.grid.texture_wh
        return width // factor, height // factor
