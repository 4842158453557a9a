"""Drawing of a live window: a view of a frame, with bars and messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np

from arr_stream.draw import typeface
from arr_stream.draw.annotate import Annotator
from arr_stream.draw.strip import band_px, font_px
from arr_stream.draw.typeface import ACCENT, ALARM, GREY, WHITE, Colour
from arr_stream.live.pictures import Shown
from arr_stream.plain_text import redact_url
from arr_stream.types import ByteArray

KEYS = (
    ("v  V", "next view, the one before"),
    ("/  Enter", "set the query"),
    ("drag", "look for the object in a box"),
    ("r", "forget the box"),
    ("space", "pause"),
    ("f", "full screen"),
    ("h", "this help"),
    ("q  Esc", "quit"),
)

_GOOD: Colour = (92, 214, 140)
_BACKGROUND: Colour = (13, 15, 19)
_MOST_WH = (1280, 800)
_LEAST_WIDTH = 800
_SHADE = 0.16


@dataclass(frozen=True, slots=True)
class Pane:
    """Rectangle of a frame on the picture of a window.

    Args:
        x, y, width, height: In pixels of that picture.
    """

    x: int
    y: int
    width: int
    height: int

    def frame_point(self, x: float, y: float, frame_wh: tuple[int, int]) -> tuple[float, float]:
        """Return the point of the frame at `x, y` of the picture, clamped to the frame."""
        u, v = (x - self.x) / self.width, (y - self.y) / self.height
        return min(1.0, max(0.0, u)) * frame_wh[0], min(1.0, max(0.0, v)) * frame_wh[1]

    def contains(self, x: float, y: float) -> bool:
        return self.x <= x < self.x + self.width and self.y <= y < self.y + self.height


def bars_px(size_wh: tuple[int, int]) -> tuple[int, int]:
    """Return the heights of the head bar and of the foot strip, the latter 0 if it does not fit."""
    size = font_px(*size_wh)
    return band_px(max(11, size)), band_px(size) if size else 0


def first_size(frame_wh: tuple[int, int]) -> tuple[int, int]:
    """Return a window's initial size: the frame's size within bounds, plus the height of the bars."""
    width, height = frame_wh

    def around(bars: int) -> tuple[int, int]:
        scale = min(max(1.0, _LEAST_WIDTH / width), _MOST_WH[0] / width, (_MOST_WH[1] - bars) / height)
        return max(160, round(width * scale)), max(120, round(height * scale)) + bars

    return around(sum(bars_px(around(0))))


def frame_pane(size_wh: tuple[int, int], frame_wh: tuple[int, int]) -> Pane:
    """Return the rectangle of a frame, as large as it fits between the bars."""
    width, height = size_wh
    head, foot = bars_px(size_wh)
    room_h = max(1, height - head - foot)
    scale = min(width / frame_wh[0], room_h / frame_wh[1])
    pane_w, pane_h = (max(1, round(side * scale)) for side in frame_wh)
    pane_w, pane_h = min(pane_w, width), min(pane_h, room_h)
    return Pane((width - pane_w) // 2, head + (room_h - pane_h) // 2, pane_w, pane_h)


def draw_frame(annotator: Annotator, shown: Shown, size_wh: tuple[int, int]) -> ByteArray:
    """Draw a picture `[H, W, 3]` uint8 of `size_wh`: the frame below an empty head bar, with caption and strip."""
    frame, patches = shown.frame, shown.patches
    canvas = np.empty((size_wh[1], size_wh[0], 3), np.uint8)
    canvas[...] = _BACKGROUND
    pane = frame_pane(size_wh, frame.size_wh)
    picture = annotator.picture(frame, patches, (pane.width, pane.height))
    canvas[pane.y : pane.y + pane.height, pane.x : pane.x + pane.width] = picture
    annotator.finish(canvas, patches)
    return canvas


def draw_status(
    picture: ByteArray, shown: Shown, *, name: str, view: str, state: str, fps: float, age_ms: float | None
) -> None:
    """Write the head bar onto a picture, in place: the source and its state on the left, figures on the right.

    Args:
        fps: Frames processed per second.
        age_ms: Age of the pictures when they are shown; None if unknown.
    """
    size, pad = _size(picture), _size(picture) // 2 + 3
    head = picture[: bars_px(picture.shape[1::-1])[0]]
    y = (head.shape[0] - typeface.mask("0", size).shape[0]) // 2
    colour = _GOOD if state == "live" else ALARM if state == "failed" else ACCENT
    cv2.circle(head, (pad + size // 2, head.shape[0] // 2), max(3, size * 2 // 5), colour, cv2.FILLED, cv2.LINE_AA)
    right = picture.shape[1] - pad
    for text, tint, bold in reversed(_figures(shown, fps, age_ms)):
        right -= typeface.width_px(text, size, bold)
        if right < pad + 2 * size:
            break
        typeface.draw(head, text, (right, y), size, tint, bold=bold)
        right -= size if bold else size // 3
    x = pad + size + size // 2
    titles = [(redact_url(name), WHITE), (view.replace("_", " "), GREY), (state if state != "live" else "", ACCENT)]
    for title, tint in titles:
        text = typeface.fitted(typeface.drawable(title), size, right - x - size)
        x = typeface.draw(head, text, (x, y), size, tint) + size if text else x


def _figures(shown: Shown, fps: float, age_ms: float | None) -> list[tuple[str, Colour, bool]]:
    """Return numbers, bold, and units in turn, from the left."""
    quality = shown.patches.quality
    figures = [(f"{fps:.1f}", "fps", WHITE)]
    figures += [(f"{age_ms:.0f}", "ms old", WHITE)] if age_ms is not None else []
    figures += [(f"{shown.dropped}", "dropped", WHITE)] if shown.dropped else []
    figures += [(f"-{quality}", "quality", ACCENT)] if quality else []
    return [part for text, unit, tint in figures for part in ((text, tint, True), (unit, GREY, False))]


def draw_prompt(picture: ByteArray, typed: str) -> None:
    """Draw the input line for a query, above the strip."""
    size = round(_size(picture) * 1.35)
    small = _size(picture)
    width = min(picture.shape[1] - 4 * small, 46 * small)
    hint = "Enter: look for it   Esc: leave it"
    line_h, hint_h = typeface.mask("0", size).shape[0], typeface.mask("0", small).shape[0]
    height = line_h + hint_h + 2 * small
    foot = bars_px(picture.shape[1::-1])[1]
    panel = _panel(picture, (picture.shape[1] - width) // 2, picture.shape[0] - foot - height - small, width, height)
    label_end = typeface.draw(panel, "look for", (small, small * 3 // 4), size, GREY) + size // 2
    typed = typeface.drawable(typed) + (" " if typed.endswith(" ") else "")
    room = panel.shape[1] - label_end - 2 * small
    while len(typed) > 1 and typeface.width_px(typed, size) > room:
        typed = typed[1:]
    x = typeface.draw(panel, typed, (label_end, small * 3 // 4), size, WHITE)
    panel[small * 3 // 4 : small * 3 // 4 + line_h, x + 1 : x + max(3, size // 8)] = ACCENT
    typeface.draw(panel, hint, (small, small + line_h), small, GREY)


def draw_help(picture: ByteArray) -> None:
    """Draw all keys, in the middle."""
    size = _size(picture)
    step = round(size * 1.75)
    keys_w = max(typeface.width_px(key, size, bold=True) for key, _ in KEYS)
    width = keys_w + max(typeface.width_px(text, size) for _, text in KEYS) + 5 * size
    height = step * len(KEYS) + 2 * size
    panel = _panel(picture, (picture.shape[1] - width) // 2, (picture.shape[0] - height) // 2, width, height)
    for place, (key, text) in enumerate(KEYS):
        y = size + place * step
        typeface.draw(panel, key, (size * 3 // 2, y), size, ACCENT, bold=True)
        typeface.draw(panel, text, (keys_w + 3 * size, y), size, WHITE)


def draw_message(picture: ByteArray, lines: Sequence[tuple[str, Colour]]) -> None:
    """Draw short messages below the head bar, the newest last."""
    size = _size(picture)
    y = bars_px(picture.shape[1::-1])[0] + size // 2
    for line, colour in lines:
        text = typeface.fitted(typeface.drawable(redact_url(line)), size, picture.shape[1] - 4 * size)
        if not text:
            continue
        height = typeface.mask(text, size).shape[0] + size // 2
        panel = _panel(picture, size // 2, y, typeface.width_px(text, size) + size, height)
        typeface.draw(panel, text, (size // 2, size // 4), size, colour)
        y += height + size // 4


def _size(picture: ByteArray) -> int:
    return max(11, font_px(picture.shape[1], picture.shape[0]))


def _panel(picture: ByteArray, x: int, y: int, width: int, height: int) -> ByteArray:
    """Darken a part of the picture, cut at its edges, and return it."""
    x, y = max(0, x), max(0, y)
    panel = picture[y : y + max(0, height), x : x + max(0, width)]
    if panel.size:
        panel[...] = cv2.convertScaleAbs(panel, alpha=_SHADE, beta=6)
    return panel
