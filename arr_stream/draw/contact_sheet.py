"""A contact sheet: frames spread evenly over a run of unknown length, each with its time and what was chosen on it."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

from arr_stream.draw import typeface
from arr_stream.draw.overlay import draw_patches
from arr_stream.draw.typeface import ACCENT, GREY, WHITE
from arr_stream.patch_set import PatchSet
from arr_stream.types import ByteArray, Frame

_SHOWN = 16
_COLUMNS = 4
_THUMB_WIDTH, _THUMB_MOST_HEIGHT = 400, 420
_GAP, _MARGIN, _CAPTION = 14, 28, 26
_GROUND = (17, 19, 23)


@dataclass(frozen=True, slots=True, eq=False)
class Thumbnail:
    """One small annotated picture.

    Args:
        rgb: `[h, w, 3]`, at most 400x420.
        pts_seconds: Its time.
        tokens: Cells chosen on it.
        reason: Why it was a keyframe; None when it was none.
    """

    rgb: ByteArray
    pts_seconds: float
    tokens: int
    reason: str | None


class ContactSheet:
    """Keeps every n-th frame, and doubles n whenever there are too many.

    Args:
        dim: Brightness of what was not chosen.
    """

    def __init__(self, dim: float) -> None:
        self._dim = dim
        self._seen = 0
        self._stride = 1
        self._kept: list[Thumbnail] = []

    def add(self, frame: Frame, patches: PatchSet) -> None:
        """Look at one frame."""
        if self._seen % self._stride == 0:
            if len(self._kept) == 2 * _SHOWN:
                self._kept = self._kept[::2]
                self._stride *= 2
            self._kept.append(self._thumbnail(frame, patches))
        self._seen += 1

    def picture(self, title: str, subtitle: str) -> ByteArray:
        """The sheet, `[H, W, 3]`; at least one frame must have been added."""
        shown = min(_SHOWN, len(self._kept))
        places = np.linspace(0, len(self._kept) - 1, shown).round().astype(int)
        chosen = [self._kept[place] for place in places]
        columns = min(_COLUMNS, shown)
        cell_w = max(thumb.rgb.shape[1] for thumb in chosen)
        cell_h = max(thumb.rgb.shape[0] for thumb in chosen)
        rows = -(-shown // columns)
        header = 84
        width = max(640, 2 * _MARGIN + columns * cell_w + (columns - 1) * _GAP)
        height = header + rows * (cell_h + _CAPTION + _GAP) + _MARGIN - _GAP
        sheet = np.full((height, width, 3), _GROUND, dtype=np.uint8)
        room = width - 2 * _MARGIN
        typeface.draw(sheet, typeface.fitted(title, 22, room, True), (_MARGIN, 18), 22, WHITE, bold=True)
        typeface.draw(sheet, typeface.fitted(subtitle, 14, room), (_MARGIN, 50), 14, GREY)
        for place, thumb in enumerate(chosen):
            x = _MARGIN + place % columns * (cell_w + _GAP)
            y = header + place // columns * (cell_h + _CAPTION + _GAP)
            _paste(sheet, thumb, (x, y), (cell_w, cell_h))
        return sheet

    def _thumbnail(self, frame: Frame, patches: PatchSet) -> Thumbnail:
        width, height = frame.size_wh
        scale = min(_THUMB_WIDTH / width, _THUMB_MOST_HEIGHT / height)
        size = max(1, round(width * scale)), max(1, round(height * scale))
        method = cv2.INTER_AREA if scale < 1 else cv2.INTER_NEAREST
        small = np.asarray(cv2.resize(frame.rgb, size, interpolation=method), dtype=np.uint8)
        reason = patches.refresh_reason if patches.keyframe else None
        return Thumbnail(draw_patches(small, patches, self._dim), frame.pts_seconds, len(patches), reason)


def clock_time(seconds: float) -> str:
    """`1:02:03.4` or `2:03.4`."""
    tenths = round(seconds * 10)
    minutes, rest = divmod(abs(tenths), 600)
    hours, minutes = divmod(minutes, 60)
    text = f"{hours}:{minutes:02}:" if hours else f"{minutes}:"
    return ("-" if tenths < 0 else "") + text + f"{rest // 10:02}.{rest % 10}"


def _paste(sheet: ByteArray, thumb: Thumbnail, xy: tuple[int, int], cell_wh: tuple[int, int]) -> None:
    (x, y), (cell_w, cell_h) = xy, cell_wh
    height, width = thumb.rgb.shape[:2]
    left, top = x + (cell_w - width) // 2, y + (cell_h - height) // 2
    sheet[top : top + height, left : left + width] = thumb.rgb
    line = y + cell_h + 4
    after = typeface.draw(sheet, clock_time(thumb.pts_seconds), (x, line), 13, WHITE, bold=True)
    after = typeface.draw(sheet, f"{thumb.tokens} tokens", (after + 10, line), 13, GREY)
    if thumb.reason:
        label = typeface.fitted(f"◆ {thumb.reason}", 13, cell_w - (after + 10 - x))
        typeface.draw(sheet, label, (after + 10, line), 13, ACCENT)
