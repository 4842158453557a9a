"""Optical flow by dense inverse search (Kroeger, Timofte, Dai and Van Gool, ECCV 2016), as OpenCV implements it."""

from __future__ import annotations

import math
from types import MappingProxyType

import cv2
import numpy as np

from arr_stream.motion.flow import Flow, FlowInput, checked_flow, preset_of, raster_hw, reduced_hw, resize_offsets
from arr_stream.types import ByteArray, FloatArray

PRESETS = MappingProxyType(
    {
        "ultrafast": cv2.DISOPTICAL_FLOW_PRESET_ULTRAFAST,
        "fast": cv2.DISOPTICAL_FLOW_PRESET_FAST,
        "medium": cv2.DISOPTICAL_FLOW_PRESET_MEDIUM,
    }
)

# The presets end the search at a quarter of the picture, where a patch of 8x8 covers 32x32 of its pixels. In a small
# picture, that is a whole object; a search on a finer level costs little there.
_FINER_BELOW_PIXELS = ((14_000, 0), (56_000, 1))

# OpenCV matches 8x8 patches: on pictures smaller than a few of them it aborts or reads past the picture.
_LEAST_SIDE_PX = 32


# `ultrafast` places its patches of 8x8 every 4 pixels. On pictures that hold many of them every 6 halves the search's
# time, and more rounds, which cost little, make up for most of it: on DAVIS, coverage at 40 tokens 0.817 -> 0.814,
# overlap of carried masks 0.771 -> 0.770. Every 5 on smaller ones, where what covers something is a few patches wide:
# on DAVIS at 640x360, coverage at 24 tokens 0.833 -> 0.831, overlap 0.762 -> 0.764.
_SEARCHES = ((40_000, 4, 12), (80_000, 5, 16), (math.inf, 6, 16))
"""Pixel count below which a search applies, its patch stride, and its iterations."""


class DisFlow:
    """Dense inverse search on the grey pictures.

    Args:
        preset: `ultrafast`, `fast` or `medium`; each costs two to four times as much as the previous one.

    Attributes:
        reduction: The search runs on the grey pictures' size divided by this; may be changed between frames.

    Raises:
        InvalidSetting: An unknown preset.
    """

    def __init__(self, preset: str = "ultrafast") -> None:
        self._search = cv2.DISOpticalFlow.create(preset_of(PRESETS, preset))
        self._preset_scale = self._search.getFinestScale()
        self._preset = preset
        self.reduction = 1

    def estimate(self, previous: FlowInput, present: FlowInput) -> Flow:
        """Return the backward flow on the raster, with photometric confidence.

        Pictures with a side below 32 px are continued by their border for the search, so that flow there is found
        as far as their content allows; without content it is zero.

        Raises:
            ValueError: The pictures differ in size.
        """
        hw = raster_hw(previous, present)
        search_hw = self._set_search(present.grey)
        offset_px = resize_offsets(self._search_offsets(previous.reduced(search_hw), present.reduced(search_hw)), hw)
        return checked_flow(previous.reduced(hw), present.reduced(hw), offset_px)

    def _set_search(self, grey: ByteArray) -> tuple[int, int]:
        """Set the search and return the rows and columns of its finest level; small pictures are halved less often."""
        pixels = grey.size // self.reduction**2
        finer = (scale for limit, scale in _FINER_BELOW_PIXELS if pixels <= limit)
        scale = min(self._preset_scale, next(finer, self._preset_scale))
        if self._preset == "ultrafast":
            _, stride_px, rounds = next(search for search in _SEARCHES if pixels < search[0])
            self._search.setPatchStride(stride_px)
            self._search.setGradientDescentIterations(rounds)
        return reduced_hw(grey, self.reduction << scale)

    def _search_offsets(self, previous: ByteArray, present: ByteArray) -> FloatArray:
        """Return `[h, w, 2]` on the pictures' raster.

        OpenCV gets the reduced pictures that it would compute itself for a search that ends at a smaller size.
        """
        height, width = present.shape
        below, right = max(0, _LEAST_SIDE_PX - height), max(0, _LEAST_SIDE_PX - width)
        if below or right:
            previous, present = (
                cv2.copyMakeBorder(picture, 0, below, 0, right, cv2.BORDER_REPLICATE) for picture in (previous, present)
            )
        self._search.setFinestScale(0)
        offsets: FloatArray = self._search.calc(present, previous, None)
        return np.ascontiguousarray(offsets[:height, :width])
