"""The picture that a live window shows: one view of a frame, or two side by side, with the strip and the answers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from arr_stream.draw.annotate import Annotator
from arr_stream.draw.strip import band_px, font_px
from arr_stream.live.pictures import Shown
from arr_stream.patch_set import PatchSet
from arr_stream.types import ByteArray, Frame

GROUND = (13, 15, 19)
"""Colour around the pictures."""

_GAP_PX = 4


@dataclass(frozen=True, slots=True)
class Pane:
    """Where a frame is seen on the picture of a window.

    Args:
        x, y, width, height: In pixels of that picture.
    """

    x: int
    y: int
    width: int
    height: int

    def frame_point(self, x: float, y: float, frame_wh: tuple[int, int], *, hold: bool = False) -> tuple[float, float]:
        """The place on the frame that is seen at `x, y`; with `hold` the nearest one of the frame."""
        u, v = (x - self.x) / self.width, (y - self.y) / self.height
        if hold:
            u, v = min(1.0, max(0.0, u)), min(1.0, max(0.0, v))
        return u * frame_wh[0], v * frame_wh[1]

    def window_box(self, xyxy: tuple[float, float, float, float], frame_wh: tuple[int, int]) -> tuple[float, ...]:
        """Where a box of the frame is seen."""
        scale_x, scale_y = self.width / frame_wh[0], self.height / frame_wh[1]
        x0, y0, x1, y1 = xyxy
        return self.x + x0 * scale_x, self.y + y0 * scale_y, self.x + x1 * scale_x, self.y + y1 * scale_y

    def holds(self, x: float, y: float) -> bool:
        return self.x <= x < self.x + self.width and self.y <= y < self.y + self.height


def bars_px(size_wh: tuple[int, int]) -> tuple[int, int]:
    """Heights of the bar at the head and of the strip at the foot; the latter 0 where it has no room."""
    size = font_px(*size_wh)
    return band_px(max(11, size)), band_px(size) if size else 0


def panes(size_wh: tuple[int, int], frame_wh: tuple[int, int], count: int) -> tuple[Pane, ...]:
    """Where one frame, or several side by side, are seen on a picture: as large as they fit between the bars."""
    width, height = size_wh
    head, foot = bars_px(size_wh)
    room_w, room_h = max(1, (width - _GAP_PX * (count - 1)) // count), max(1, height - head - foot)
    scale = min(room_w / frame_wh[0], room_h / frame_wh[1])
    pane_w, pane_h = (max(1, round(side * scale)) for side in frame_wh)
    pane_w, pane_h = min(pane_w, room_w), min(pane_h, room_h)
    left = (width - pane_w * count - _GAP_PX * (count - 1)) // 2
    y = head + (room_h - pane_h) // 2
    return tuple(Pane(left + place * (pane_w + _GAP_PX), y, pane_w, pane_h) for place in range(count))


class LiveAnnotator:
    """Draws a frame for a window.

    Args:
        dim: Brightness of what was not chosen, in [0, 1].
        asked: What was asked for, for the strip.
    """

    def __init__(self, *, dim: float, asked: str | None = None) -> None:
        self._annotator = Annotator(dim=dim, asked=asked)
        self._source = Annotator("source", dim=dim)
        self._taken: Shown | None = None

    def ask(self, asked: str | None, region_xyxy: tuple[float, float, float, float] | None, at_seconds: float) -> None:
        """Something else is asked for; a region is shown for a moment from `at_seconds` on."""
        self._annotator.ask(asked, region_xyxy, at_seconds)

    def draw(self, shown: Shown, view: str, size_wh: tuple[int, int], *, beside: bool = False) -> ByteArray:
        """The picture, `[H, W, 3]` uint8 of `size_wh`; the bar at its head is left free.

        Args:
            shown: The frame; may be drawn again in another view.
            view: What to show, see `arr_stream.draw.views`.
            size_wh: Of the picture.
            beside: The source is on the left and the view on the right.
        """
        frame, patches = shown.frame, shown.patches
        if shown is not self._taken:
            self._annotator.take(patches)
            self._taken = shown
        self._annotator.view = view
        annotators = [self._source, self._annotator] if beside else [self._annotator]
        canvas = np.empty((size_wh[1], size_wh[0], 3), np.uint8)
        canvas[...] = GROUND
        for annotator, pane in zip(annotators, panes(size_wh, frame.size_wh, len(annotators)), strict=True):
            self._lay(canvas, annotator, pane, frame, patches)
        self._annotator.finish(canvas, patches)
        return canvas

    @staticmethod
    def _lay(canvas: ByteArray, annotator: Annotator, pane: Pane, frame: Frame, patches: PatchSet) -> None:
        picture = annotator.picture(frame, patches, (pane.width, pane.height))
        canvas[pane.y : pane.y + pane.height, pane.x : pane.x + pane.width] = picture
