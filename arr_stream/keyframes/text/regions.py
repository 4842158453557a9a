"""Regions of text between the models: sizes to detect at, upright lines to recognise, and the mask that is carried."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import cv2
import numpy as np
import numpy.typing as npt

from arr_stream.keyframes.base import KeyframeInput, TextFinding
from arr_stream.types import ByteArray, FloatArray, TextRegion

Floats = npt.NDArray[np.floating]

TALL = 1.5
"""From this height, in widths, a region is taken for a line that runs down the picture."""


def finding(
    picture: KeyframeInput, found: tuple[TextRegion, ...], read: Callable[[ByteArray, TextRegion], TextRegion] | None
) -> TextFinding:
    """What was found, its words read where there is something to `read` them; the mask keeps the detector's scores."""
    mask = text_mask(found, picture.quarter_hw)
    return TextFinding(mask, tuple(read(picture.frame.rgb, region) for region in found) if read else found)


def region_of(corners: Floats, size_wh: tuple[int, int], confidence: float) -> TextRegion:
    """A region from corners `[n, 2]` in pixels of a picture, cut at its edges."""
    unit = np.clip(corners / size_wh, 0.0, 1.0)
    return TextRegion(tuple((float(x), float(y)) for x, y in unit), float(np.clip(confidence, 0.0, 1.0)))


def straightened(rgb: ByteArray, region: TextRegion) -> ByteArray:
    """`[h, w, 3]`: the region's quadrilateral as an upright line; tall ones are turned by a quarter."""
    corners = (np.array(region.polygon_xy) * (rgb.shape[1], rgb.shape[0])).astype(np.float32)
    width = max(1, round(max(_distance(corners, 0, 1), _distance(corners, 3, 2))))
    height = max(1, round(max(_distance(corners, 0, 3), _distance(corners, 1, 2))))
    target = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float32)
    warp = cv2.getPerspectiveTransform(corners, target)
    line = cv2.warpPerspective(rgb, warp, (width, height), flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE)
    upright = np.rot90(line) if height >= TALL * width else line
    return np.ascontiguousarray(upright, dtype=np.uint8)


def detect_wh(size_wh: tuple[int, int], side_px: float, stride_px: int = 32) -> tuple[int, int]:
    """The size at which a detector sees a frame: the long side about `side_px`, both sides multiples of the stride."""
    scale = side_px / max(size_wh)
    width, height = (max(stride_px, round(side * scale / stride_px) * stride_px) for side in size_wh)
    return width, height


def _distance(corners: FloatArray, a: int, b: int) -> float:
    return float(np.linalg.norm(corners[a] - corners[b]))


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
