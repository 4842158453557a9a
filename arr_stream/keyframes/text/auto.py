"""Text in two looks: a cheap one at a low resolution, and a close one where the first saw something.

Both looks are RapidOCR's detector. Edges alone could not be the cheap one, and neither could a smaller picture; the
figures are in docs/results.md. Because a place must hold up at two scales, fewer things are taken for text than by one
look, and because the second look is close, smaller words are found.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from arr_stream.keyframes.base import KeyframeInput, TextFinding
from arr_stream.keyframes.text.mask import text_mask
from arr_stream.keyframes.text.rapid import RapidOcrFinder
from arr_stream.types import ByteArray, TextRegion

LOOK_SIDE_PX = 544
"""Long side of the frame in the first look."""
LOOK_SCORE = 0.2
"""Score from which the first look's hints are followed up."""
CLOSE_SIDE_PX = 1280
"""Long side of the frame in the close look; it is never enlarged for it beyond `LOOK_SIDE_PX`."""
MARGIN_PX = 32
"""How far around a hint the close look goes, at the scale of the first."""

_PART = "auto: rapidocr"


@dataclass(frozen=True, slots=True)
class Window:
    """Part of a frame, in pixels: columns `x0` to `x1` and rows `y0` to `y1`, the latter excluded."""

    x0: int
    y0: int
    x1: int
    y1: int

    def touches(self, other: Window) -> bool:
        return self.x0 < other.x1 and other.x0 < self.x1 and self.y0 < other.y1 and other.y0 < self.y1

    def joined(self, other: Window) -> Window:
        return Window(min(self.x0, other.x0), min(self.y0, other.y0), max(self.x1, other.x1), max(self.y1, other.y1))

    def crop(self, rgb: ByteArray) -> ByteArray:
        return np.ascontiguousarray(rgb[self.y0 : self.y1, self.x0 : self.x1])

    def to_frame(self, region: TextRegion, size_wh: tuple[int, int]) -> TextRegion:
        """A region of the crop as one of the frame."""
        width, height = self.x1 - self.x0, self.y1 - self.y0
        corners = tuple(
            ((self.x0 + x * width) / size_wh[0], (self.y0 + y * height) / size_wh[1]) for x, y in region.polygon_xy
        )
        return TextRegion(corners, region.confidence, region.text)


class AutoText:
    """Looks for text cheaply, then closely where it saw something, and reads only when asked.

    Args:
        threads: Threads for onnxruntime; None leaves the choice to it.

    Raises:
        BackendUnavailable: rapidocr or onnxruntime is missing.
    """

    def __init__(self, *, threads: int | None = None) -> None:
        self._finder = RapidOcrFinder(threads=threads, detect_side_px=LOOK_SIDE_PX)
        self._name = _PART

    @property
    def name(self) -> str:
        """What ran on the last frame."""
        return self._name

    def find(self, picture: KeyframeInput, *, read: bool) -> TextFinding:
        rgb = picture.frame.rgb
        size_wh = picture.frame.size_wh
        hints = self._finder.regions(rgb, LOOK_SIDE_PX, LOOK_SCORE)
        windows = close_windows(hints, size_wh)
        found = tuple(self._close_look(rgb, windows))
        mask = text_mask(found, picture.quarter_hw)
        if read:
            found = tuple(self._finder.read(rgb, region) for region in found)
        self._name = _account(len(windows), read and bool(found))
        return TextFinding(mask, found)

    def _close_look(self, rgb: ByteArray, windows: Sequence[Window]) -> Iterator[TextRegion]:
        height, width = rgb.shape[:2]
        long_side = max(width, height)
        scale = min(CLOSE_SIDE_PX, max(LOOK_SIDE_PX, long_side)) / long_side
        for window in windows:
            crop = window.crop(rgb)
            for region in self._finder.regions(crop, max(crop.shape[:2]) * scale):
                yield window.to_frame(region, (width, height))


def close_windows(hints: Sequence[TextRegion], size_wh: tuple[int, int]) -> list[Window]:
    """The parts of a frame to look at closely: each hint with a margin, joined until no two overlap."""
    width, height = size_wh
    margin = MARGIN_PX * max(size_wh) / LOOK_SIDE_PX
    separate: list[Window] = []
    for hint in hints:
        corners = np.array(hint.polygon_xy) * size_wh
        (x0, y0), (x1, y1) = corners.min(axis=0) - margin, corners.max(axis=0) + margin
        window = Window(
            max(0, math.floor(x0)), max(0, math.floor(y0)), min(width, math.ceil(x1)), min(height, math.ceil(y1))
        )
        # A union may reach what neither of its parts did, so each is tried again on all that are left.
        while touching := next((other for other in separate if window.touches(other)), None):
            separate.remove(touching)
            window = window.joined(touching)
        separate.append(window)
    return separate


def _account(windows: int, read: bool) -> str:
    if not windows:
        return f"{_PART}, nothing found cheaply"
    places = "1 place" if windows == 1 else f"{windows} places"
    return f"{_PART}, looked closely at {places}{', read' if read else ''}"
