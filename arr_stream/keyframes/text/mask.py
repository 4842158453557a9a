"""From polygons to the mask at a quarter of the texture's size."""

from __future__ import annotations

from collections.abc import Iterable

import cv2
import numpy as np

from arr_stream.types import FloatArray, TextRegion

_SHIFT = 4
"""Bits of sub-pixel precision for OpenCV's polygon filling."""


def text_mask(regions: Iterable[TextRegion], size_hw: tuple[int, int]) -> FloatArray:
    """`[h, w]` float32 in [0, 1]: each region filled with its confidence; where regions overlap the surest counts."""
    height, width = size_hw
    mask = np.zeros(size_hw, np.float32)
    for region in sorted(regions, key=lambda region: region.confidence):
        corners = np.array(region.polygon_xy) * (width, height) - 0.5
        points = np.rint(corners * (1 << _SHIFT)).astype(np.int32)
        cv2.fillPoly(mask, [points], region.confidence, shift=_SHIFT)
    return mask
