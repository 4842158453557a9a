"""Flow by dense inverse search (Kroeger, Timofte, Dai and Van Gool, ECCV 2016), as OpenCV implements it."""

from __future__ import annotations

from types import MappingProxyType

import cv2
import numpy as np

from arr_stream.errors import InvalidSetting
from arr_stream.motion.flow import Flow, FlowInput, photometric_check, raster_hw, resize_offsets, to_raster
from arr_stream.types import ByteArray, FloatArray

PRESETS = MappingProxyType(
    {
        "ultrafast": cv2.DISOPTICAL_FLOW_PRESET_ULTRAFAST,
        "fast": cv2.DISOPTICAL_FLOW_PRESET_FAST,
        "medium": cv2.DISOPTICAL_FLOW_PRESET_MEDIUM,
    }
)

# The presets stop the search at a quarter of the picture, where a patch of 8x8 covers 32x32 of its pixels. In a small
# picture that is an object; searching on to a finer level costs little there.
_FINER_BELOW_PIXELS = ((14_000, 0), (56_000, 1))

# OpenCV matches 8x8 patches on a pyramid whose finest level is a quarter: with a side below 32 some shapes and presets
# abort (12x400) and others read past the picture.
_LEAST_SIDE_PX = 32


class DisFlow:
    """Dense inverse search on the grey pictures.

    Args:
        preset: `ultrafast`, `fast` or `medium`; each is two to four times as dear as the one before.
        raster_divisor: Flow is returned on the grey picture's size divided by this; 2 is a quarter of the texture.

    Attributes:
        reduction: The search runs on the grey pictures' size divided by this; may be changed between frames.

    Raises:
        InvalidSetting: An unknown preset or a divisor below 1.
    """

    def __init__(self, preset: str = "ultrafast", *, raster_divisor: int = 2) -> None:
        if preset not in PRESETS:
            raise InvalidSetting(f"motion.preset={preset!r} is not known", remedy=f"use one of {', '.join(PRESETS)}")
        if raster_divisor < 1:
            raise InvalidSetting(f"raster_divisor={raster_divisor} is below 1", remedy="use a whole number from 1 on")
        self._search = cv2.DISOpticalFlow.create(PRESETS[preset])
        self._preset_scale = self._search.getFinestScale()
        self._divisor = raster_divisor
        self.reduction = 1

    def estimate(self, previous: FlowInput, present: FlowInput) -> Flow:
        """Backward flow on the raster, with photometric confidence.

        Pictures with a side below 32 px are continued by their border for the search, so that flow there is found
        as far as their content allows; without content it is zero.

        Raises:
            ValueError: The pictures differ in size.
        """
        if previous.grey.shape != present.grey.shape:
            raise ValueError(f"grey pictures differ in size: {previous.grey.shape} and {present.grey.shape}")
        hw = raster_hw(present.grey, self._divisor)
        pictures = (self._reduced(previous.grey), self._reduced(present.grey))
        offset_px = resize_offsets(self._search_offsets(*pictures), hw)
        confidence, residual = photometric_check(to_raster(previous.grey, hw), to_raster(present.grey, hw), offset_px)
        return Flow(offset_px, confidence, residual)

    def _reduced(self, grey: ByteArray) -> ByteArray:
        if self.reduction == 1:
            return grey
        height, width = grey.shape
        size_wh = max(1, width // self.reduction), max(1, height // self.reduction)
        return np.asarray(cv2.resize(grey, size_wh, interpolation=cv2.INTER_AREA), dtype=np.uint8)

    def _finest_scale(self, pixels: int) -> int:
        """The pyramid level at which the search ends: the preset's own, or finer for small pictures."""
        finer = (scale for limit, scale in _FINER_BELOW_PIXELS if pixels <= limit)
        return min(self._preset_scale, next(finer, self._preset_scale))

    def _search_offsets(self, previous: ByteArray, present: ByteArray) -> FloatArray:
        """`[h, w, 2]` on the grey picture's own raster."""
        height, width = present.shape
        below, right = max(0, _LEAST_SIDE_PX - height), max(0, _LEAST_SIDE_PX - width)
        if below or right:
            previous, present = (
                cv2.copyMakeBorder(picture, 0, below, 0, right, cv2.BORDER_REPLICATE) for picture in (previous, present)
            )
        self._search.setFinestScale(self._finest_scale(present.size))
        offsets: FloatArray = self._search.calc(present, previous, None)
        return np.ascontiguousarray(offsets[:height, :width])
