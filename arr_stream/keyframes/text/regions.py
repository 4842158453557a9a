"""Regions of text between the models: sizes to detect at, upright lines to recognise, and the mask that is carried."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import cv2
import numpy as np
import numpy.typing as npt

from arr_stream.keyframes.base import TEXT_READ, KeyframeInput, TextFinding
from arr_stream.types import ByteArray, FloatArray, TextRegion

Floats = npt.NDArray[np.floating]

TALL = 1.5
"""Ratio of height to width from which a region is treated as a vertical line."""


LEAST_CONFIDENCE = 0.2
"""Confidence below which a region is not text."""
_ALONE = 0.5
"""Confidence factor of a single character: a wheel may be read as an 8, a gable as an A."""

SMALL_PX = 13.0
"""Height of a box, in texture pixels, below which a line is read at the source's resolution. Boxes are about twice as
high as their words: of words 5 to 6 px high RapidOCR reads 11 of 39 in the texture and 38 at twice its size, of words 7
px high or more nearly all in either."""

LEAST_LIKENESS = 0.5
"""Correlation with its earlier appearance below which a region counts as gone."""
_LOOK_WH = 48, 12
_FINEST_LOOK = 8
_LOOK_MARGIN_PX = 6
"""Search margin around a region's place, half of its height."""

STRIDE_PX = 32
"""Divisor of the sides of the detector's input."""

_SHIFT = 4
"""Bits of sub-pixel precision for OpenCV's polygon filling."""


def finding(picture: KeyframeInput, found: Sequence[TextRegion], hints: FloatArray | None = None) -> TextFinding:
    """Return the found regions with a mask, over text-like places (`hints`, at any resolution)."""
    mask = (1 - TEXT_READ) * text_mask(found, picture.quarter_hw)
    mask[mask > 0] += TEXT_READ
    if hints is not None:
        size_wh = picture.quarter_hw[::-1]
        mask = np.maximum(mask, cv2.resize(hints, size_wh, interpolation=cv2.INTER_AREA).reshape(mask.shape))
    return TextFinding(mask, tuple(found))


def believed(read: Iterable[tuple[TextRegion, tuple[str, float]]]) -> list[TextRegion]:
    """Return the readable regions with their words; combines the confidences of detector and reader.

    A detector alone takes wheels, windows and lines on a road for text; nothing can be read there. On the ten photos
    of ICDAR 2015 and 18 frames of film, the mask that RapidOCR's detector gives at 1280 px covers 6% of frames without
    text, and 0.3% once unreadable places are left out; no legible word is lost.

    Args:
        read: Regions with the detector's score, and with its words and the reader's confidence.
    """
    sure = (
        TextRegion(
            region.polygon_xy, region.confidence * min(1.0, confidence) * (_ALONE if len(text) == 1 else 1), text
        )
        for region, (text, confidence) in read
    )
    return [region for region in sure if region.text and region.confidence >= LEAST_CONFIDENCE]


def region_of(corners: Floats, size_wh: tuple[int, int], confidence: float) -> TextRegion:
    """Return a region from corners `[n, 2]` in pixels of a picture, clipped to it."""
    return placed(TextRegion((), float(np.clip(confidence, 0.0, 1.0))), corners / size_wh)


def placed(region: TextRegion, corners: Floats) -> TextRegion:
    """Return the region moved to normalised corners `[n, 2]`, clipped to the frame."""
    return replace(region, polygon_xy=tuple((float(x), float(y)) for x, y in np.clip(corners, 0.0, 1.0)))


def straightened(rgb: ByteArray, region: TextRegion) -> ByteArray:
    """Return `[h, w, 3]`: the region's quadrilateral as an upright line; tall ones are rotated by 90 degrees."""
    corners = (np.array(region.polygon_xy) * (rgb.shape[1], rgb.shape[0])).astype(np.float32)
    width = max(1, round(max(_distance(corners, 0, 1), _distance(corners, 3, 2))))
    height = max(1, round(max(_distance(corners, 0, 3), _distance(corners, 1, 2))))
    target = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float32)
    warp = cv2.getPerspectiveTransform(corners, target)
    line = cv2.warpPerspective(rgb, warp, (width, height), flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE)
    upright = np.rot90(line) if height >= TALL * width else line
    return np.ascontiguousarray(upright, dtype=np.uint8)


def look_of(rgb: ByteArray, region: TextRegion, margin_px: int = 0) -> ByteArray:
    """Return a region's appearance as `[12, 48]` grey, with a margin at that scale."""
    corners = (np.array(region.polygon_xy[:4]) * (rgb.shape[1], rgb.shape[0])).astype(np.float32)
    # Crop at the picture's resolution first, so that shrinking a large word averages all pixels.
    finer = max(_distance(corners, 0, 1) / _LOOK_WH[0], _distance(corners, 0, 3) / _LOOK_WH[1])
    scale = min(max(1, math.ceil(finer)), _FINEST_LOOK)
    target = scale * (np.array([[0, 0], [_LOOK_WH[0], 0], _LOOK_WH, [0, _LOOK_WH[1]]], np.float32) + margin_px)
    small_wh = _LOOK_WH[0] + 2 * margin_px, _LOOK_WH[1] + 2 * margin_px
    large_wh = small_wh[0] * scale, small_wh[1] * scale
    warp = cv2.getPerspectiveTransform(corners, target)
    large = cv2.warpPerspective(rgb, warp, large_wh, flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    grey: ByteArray = cv2.resize(cv2.cvtColor(large, cv2.COLOR_RGB2GRAY), small_wh, interpolation=cv2.INTER_AREA)
    return grey


def settled(rgb: ByteArray, region: TextRegion) -> tuple[TextRegion, float]:
    """Return a region at the nearby place most like its earlier appearance, and the correlation there, in [-1, 1]; 1 if
    the earlier appearance is unknown."""
    if region.look is None:
        return region, 1.0
    likeness = cv2.matchTemplate(look_of(rgb, region, _LOOK_MARGIN_PX), region.look, cv2.TM_CCOEFF_NORMED)
    _, most, _, (x, y) = cv2.minMaxLoc(likeness)
    corners = np.array(region.polygon_xy)
    across, down = (corners[1] - corners[0]) / _LOOK_WH[0], (corners[3] - corners[0]) / _LOOK_WH[1]
    return placed(region, corners + (x - _LOOK_MARGIN_PX) * across + (y - _LOOK_MARGIN_PX) * down), most


def small_regions(regions: Iterable[TextRegion], texture_wh: tuple[int, int]) -> list[TextRegion]:
    """Return the regions whose lines, of any orientation, are too low to be read well in the texture."""
    corners = ((region, (np.array(region.polygon_xy) * texture_wh).astype(np.float32)) for region in regions)
    return [region for region, polygon in corners if min(cv2.minAreaRect(polygon)[1]) < SMALL_PX]


def detect_wh(size_wh: tuple[int, int], side_px: float) -> tuple[int, int]:
    """Return the detector's input size: long side about `side_px`, both sides multiples of the stride."""
    scale = side_px / max(size_wh)
    width, height = (max(STRIDE_PX, round(side * scale / STRIDE_PX) * STRIDE_PX) for side in size_wh)
    return width, height


def _distance(corners: FloatArray, a: int, b: int) -> float:
    return float(np.linalg.norm(corners[a] - corners[b]))


def text_mask(regions: Iterable[TextRegion], size_hw: tuple[int, int]) -> FloatArray:
    """Return `[h, w]` float32 in [0, 1]: regions filled with their confidence; overlaps take the maximum."""
    height, width = size_hw
    mask = np.zeros(size_hw, np.float32)
    for region in sorted(regions, key=lambda region: region.confidence):
        corners = np.array(region.polygon_xy) * (width, height) - 0.5
        points = np.rint(corners * (1 << _SHIFT)).astype(np.int32)
        cv2.fillPoly(mask, [points], region.confidence, shift=_SHIFT)
    return mask
