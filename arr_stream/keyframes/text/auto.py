"""Text by RapidOCR in two passes: a cheap one at a low resolution, and a close one near the hints of the first.

Edge detection or a smaller picture cannot replace the first pass; the figures are in docs/results.md. Since text must
be detected at two scales, there are fewer false detections than in one pass, and smaller words are found.
All passes and the reader use the source's pixels, scaled down.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import cv2
import numpy as np
import numpy.typing as npt

from arr_stream.keyframes.base import KeyframeInput, TextBefore, TextFinding
from arr_stream.keyframes.text.rapid import LEAST_SCORE, RapidOcrFinder
from arr_stream.keyframes.text.regions import LEAST_CONFIDENCE, STRIDE_PX, Floats, finding, look_of
from arr_stream.types import ByteArray, FloatArray, TextRegion

LOOK_SIDE_PX = 640
"""Long side of the frame in the first look."""
LOOK_SCORE = 0.1
"""Least score of a first-look hint that gets a close look."""
CLOSE_SIDE_PX = 1280
"""Long side of the frame in the close look; a frame is never enlarged beyond `LOOK_SIDE_PX`."""

# Margins, in pixels of the first look.
MARGIN_PX = 24
"""Margin of the close look around a hint."""
DOUBT_PX = 16
"""Additional margin around text that is not at its expected place."""
_NEW_MARGIN_PX = 12
"""Margin of the first look around a new place."""
_MOST_NEW = 0.5
"""Share of the frame covered by windows above which the whole frame is searched."""
_MISSED = 0.7
"""Factor on the confidence of text that a later look misses."""

_PART = "auto: rapidocr"


class Tile(NamedTuple):
    """Part of a frame, in pixels: columns `x0` to `x1` and rows `y0` to `y1`, the latter excluded."""

    x0: int
    y0: int
    x1: int
    y1: int

    def touches(self, other: Tile) -> bool:
        return self.x0 < other.x1 and other.x0 < self.x1 and self.y0 < other.y1 and other.y0 < self.y1

    def joined(self, other: Tile) -> Tile:
        return Tile(min(self.x0, other.x0), min(self.y0, other.y0), max(self.x1, other.x1), max(self.y1, other.y1))

    @property
    def area(self) -> int:
        return (self.x1 - self.x0) * (self.y1 - self.y0)

    def widened(self, stride_px: float, size_wh: tuple[int, int]) -> Tile:
        """Return an enclosing window within a frame, with sides that are multiples of the stride or the frame's."""
        x0, x1 = _widened(self.x0, self.x1, stride_px, size_wh[0])
        y0, y1 = _widened(self.y0, self.y1, stride_px, size_wh[1])
        return Tile(x0, y0, x1, y1)

    def paste(self, plane: FloatArray, whole: FloatArray, size_wh: tuple[int, int]) -> None:
        """Write a plane of the crop, of any resolution, into its place in a plane of the whole frame."""
        height, width = whole.shape
        x0, x1 = (round(x * width / size_wh[0]) for x in (self.x0, self.x1))
        y0, y1 = (round(y * height / size_wh[1]) for y in (self.y0, self.y1))
        if x0 < x1 and y0 < y1:
            part = cv2.resize(plane, (x1 - x0, y1 - y0), interpolation=cv2.INTER_AREA)
            whole[y0:y1, x0:x1] = part.reshape(y1 - y0, x1 - x0)

    def to_frame(self, region: TextRegion, size_wh: tuple[int, int]) -> TextRegion:
        """Convert a region of the crop to frame coordinates."""
        width, height = self.x1 - self.x0, self.y1 - self.y0
        corners = tuple(
            ((self.x0 + x * width) / size_wh[0], (self.y0 + y * height) / size_wh[1]) for x, y in region.polygon_xy
        )
        return replace(region, polygon_xy=corners)


def _widened(start: int, end: int, stride_px: float, whole: int) -> tuple[int, int]:
    # Half a pixel is rounding.
    strides = max(1, math.ceil((end - start - 0.5) / stride_px))
    length = min(whole, max(end - start, round(strides * stride_px)))
    start = min(max(0, (start + end - length) // 2), whole - length)
    return start, start + length


class AutoText:
    """Text finder that searches cheaply, then closely near hints, and keeps only readable text.

    Args:
        threads: Threads for onnxruntime; None leaves the choice to it.

    Raises:
        BackendUnavailable: As for `RapidOcrFinder`.
    """

    def __init__(self, *, threads: int | None = None) -> None:
        self._finder = RapidOcrFinder(threads=threads)
        self.name = _PART
        """Name of the steps that ran on the last frame."""

    def find(self, picture: KeyframeInput) -> TextFinding:
        rgb, size_wh = picture.frame.rgb, picture.frame.size_wh
        places, known, doubtful = search(picture.text_before, size_wh)
        likely = np.zeros(picture.quarter_hw, np.float32) if picture.text_before is None else picture.text_before.likely
        long_side = max(size_wh)
        hints = [_corners(region) for region in self._look(rgb, places, LOOK_SIDE_PX, LOOK_SCORE, likely)]
        close_px = min(CLOSE_SIDE_PX, max(LOOK_SIDE_PX, long_side))
        for region in doubtful:
            box = _box(_corners(region), size_wh, DOUBT_PX * long_side / LOOK_SIDE_PX)
            hints.append(np.array([box[:2], box[2:]]) / size_wh)
        windows = windows_around(hints, size_wh, MARGIN_PX, close_px)
        seen = self._look(rgb, windows, close_px, LEAST_SCORE)
        read = self._finder.read(rgb, [region for region in seen if not _within(region, known, size_wh)])
        found = [replace(region, look=look_of(rgb, region)) for region in read]
        known = [region for region in known if not _within(region, found, size_wh)]
        self.name = _name(known, windows)
        return finding(picture, [*known, *found, *_missed(doubtful, found, size_wh)], likely)

    def _look(
        self,
        rgb: ByteArray,
        windows: Sequence[Tile],
        side_px: float,
        least_score: float,
        likely: FloatArray | None = None,
    ) -> list[TextRegion]:
        """Return the regions found in windows of a picture scaled to `side_px`; write text-likeness into `likely`."""
        found, size_wh = [], (rgb.shape[1], rgb.shape[0])
        scale = side_px / max(size_wh)
        for window in windows:
            crop = np.ascontiguousarray(rgb[window.y0 : window.y1, window.x0 : window.x1])
            regions, hints = self._finder.search(crop, max(crop.shape[:2]) * scale, least_score)
            found += [window.to_frame(region, size_wh) for region in regions]
            if likely is not None:
                window.paste(hints, likely, size_wh)
        return found


def search(
    before: TextBefore | None, size_wh: tuple[int, int]
) -> tuple[list[Tile], list[TextRegion], list[TextRegion]]:
    """Return windows to search, regions that are still valid, and regions whose places a close look checks."""
    everywhere = [Tile(0, 0, *size_wh)]
    if before is None:
        return everywhere, [], []
    places = windows_around(_spots(before.new), size_wh, _NEW_MARGIN_PX, LOOK_SIDE_PX)
    if sum(place.area for place in places) > _MOST_NEW * size_wh[0] * size_wh[1]:
        return everywhere, [], [*before.known, *before.doubtful]
    return places, list(before.known), list(before.doubtful)


def windows_around(spots: Iterable[Floats], size_wh: tuple[int, int], margin_px: float, side_px: float) -> list[Tile]:
    """Return windows around spots with a margin, merged until no two overlap.

    Args:
        spots: Corners `[n, 2]` of each, normalised.
        size_wh: Size of the frame.
        margin_px: At the scale of the first look.
        side_px: Long side of the frame at the scale of this look; the sides of windows are such that the detector need
            not stretch them.
    """
    margin_px *= max(size_wh) / LOOK_SIDE_PX
    stride_px = STRIDE_PX * max(size_wh) / side_px
    separate: list[Tile] = []
    for spot in spots:
        window = _box(spot, size_wh, margin_px).widened(stride_px, size_wh)
        # A union may touch windows that neither part touched, so each is tried again on all remaining ones.
        while touching := next((other for other in separate if window.touches(other)), None):
            separate.remove(touching)
            window = window.joined(touching).widened(stride_px, size_wh)
        separate.append(window)
    return separate


def _missed(known: Sequence[TextRegion], found: Sequence[TextRegion], size_wh: tuple[int, int]) -> list[TextRegion]:
    """Return known regions that were not found again, with lower confidence, so that they expire gradually.

    A region is found again where another touches it, or once for each new place of the same words, to which it moved.
    """
    old, new = ([_box(_corners(region), size_wh) for region in each] for each in (known, found))
    moved = Counter(region.text for region, box in zip(found, new, strict=True) if not any(map(box.touches, old)))
    fading = []
    for region, box in zip(known, old, strict=True):
        if any(map(box.touches, new)):
            continue
        moved[region.text] -= 1
        if moved[region.text] < 0:
            fading.append(replace(region, confidence=region.confidence * _MISSED))
    return [region for region in fading if region.confidence >= LEAST_CONFIDENCE]


def _within(region: TextRegion, others: Sequence[TextRegion], size_wh: tuple[int, int]) -> bool:
    """Return whether its middle is inside the box of another region at least as large."""
    box = _box(_corners(region), size_wh)
    x, y = (box.x0 + box.x1) // 2, (box.y0 + box.y1) // 2
    boxes = [_box(_corners(other), size_wh) for other in others]
    return any(other.touches(Tile(x, y, x + 1, y + 1)) and other.area >= box.area for other in boxes)


def _name(known: Sequence[TextRegion], windows: Sequence[Tile]) -> str:
    places = "1 place" if len(windows) == 1 else f"{len(windows)} places"
    looked = f"looked closely at {places}" if windows else "nothing found cheaply"
    return ", ".join([_PART, *([f"{len(known)} known"] if known else []), looked])


def _spots(mask: npt.NDArray[np.bool_]) -> list[Floats]:
    """Return two opposite corners `[2, 2]`, normalised, of the box of each connected part of a mask."""
    _, _, boxes, _ = cv2.connectedComponentsWithStats(mask.astype(np.uint8))
    size_wh = mask.shape[::-1]
    return [np.array([[x, y], [x + w, y + h]]) / size_wh for x, y, w, h, _ in boxes[1:]]


def _corners(region: TextRegion) -> Floats:
    return np.array(region.polygon_xy)


def _box(corners: Floats, size_wh: tuple[int, int], margin_px: float = 0.0) -> Tile:
    """Return the upright box around normalised corners `[n, 2]`, within the frame."""
    corners = corners * size_wh
    (x0, y0), (x1, y1) = corners.min(axis=0) - margin_px, corners.max(axis=0) + margin_px
    return Tile(
        max(0, math.floor(x0)), max(0, math.floor(y0)), min(size_wh[0], math.ceil(x1)), min(size_wh[1], math.ceil(y1))
    )
