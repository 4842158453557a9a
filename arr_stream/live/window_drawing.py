"""What a live window draws over its picture: the bar at the head, what is being typed, help, and short messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cv2

from arr_stream.draw import typeface
from arr_stream.draw.overlay import draw_box
from arr_stream.draw.strip import font_px
from arr_stream.draw.typeface import ACCENT, ALARM, GREY, WHITE, Colour
from arr_stream.live.annotator import bars_px
from arr_stream.plain_text import redact_url
from arr_stream.types import ByteArray

KEYS = (
    ("v  V", "next view, the one before"),
    ("c  C", "next channel, the one before"),
    ("b", "beside the source"),
    ("/  Enter", "say what to look for"),
    ("drag", "look for what is in a box"),
    ("r", "forget the box"),
    ("p", "look where the pointer is"),
    ("space", "pause"),
    ("s", "save the picture"),
    ("f", "full screen"),
    ("h", "this help"),
    ("q  Esc", "quit"),
)

GOOD: Colour = (92, 214, 140)
_SHADE = 0.16
_GAZE_RADIUS = 0.016


@dataclass(frozen=True, slots=True)
class Status:
    """What the bar at the head says.

    Args:
        name: Of the source.
        view: That is shown.
        state: Of the source, or `paused`.
        fps: Frames a second that are processed.
        age_ms: Of the pictures when they are shown; None before it is known.
        dropped: Frames passed over so far.
        quality: How far quality is lowered, 0 for not at all.
    """

    name: str
    view: str
    state: str
    fps: float
    age_ms: float | None
    dropped: int
    quality: int


def draw_status(picture: ByteArray, status: Status) -> None:
    """Write the bar onto the head of a picture, in place: the source on the left, figures on the right."""
    size, pad = _size(picture), _size(picture) // 2 + 3
    head = picture[: bars_px((picture.shape[1], picture.shape[0]))[0]]
    y = (head.shape[0] - typeface.mask("0", size).shape[0]) // 2
    colour = GOOD if status.state == "live" else ALARM if status.state == "failed" else ACCENT
    cv2.circle(head, (pad + size // 2, head.shape[0] // 2), max(3, size * 2 // 5), colour, cv2.FILLED, cv2.LINE_AA)
    right = picture.shape[1] - pad
    for text, tint, bold in reversed(_figures(status)):
        right -= typeface.width_px(text, size, bold)
        if right < pad + 2 * size:
            break
        typeface.draw(head, text, (right, y), size, tint, bold=bold)
        right -= size if bold else size // 3
    x = pad + size + size // 2
    for title, tint in _titles(status):
        text = typeface.fitted(typeface.drawable(title), size, right - x - size)
        x = typeface.draw(head, text, (x, y), size, tint) + size if text else x


def _titles(status: Status) -> list[tuple[str, Colour]]:
    state = [(status.state, ACCENT)] if status.state != "live" else []
    return [(redact_url(status.name), WHITE), (status.view.replace("_", " "), GREY), *state]


def _figures(status: Status) -> list[tuple[str, Colour, bool]]:
    """Number and unit by turns, from the left; a number is bold."""
    figures: list[tuple[str, Colour, bool]] = [(f"{status.fps:.1f}", WHITE, True), ("fps", GREY, False)]
    if status.age_ms is not None:
        figures += [(f"{status.age_ms:.0f}", WHITE, True), ("ms old", GREY, False)]
    if status.dropped:
        figures += [(f"{status.dropped}", WHITE, True), ("dropped", GREY, False)]
    if status.quality:
        figures += [(f"-{status.quality}", ACCENT, True), ("quality", GREY, False)]
    return figures


def draw_prompt(picture: ByteArray, typed: str) -> None:
    """The line in which a query is typed, above the strip."""
    size = round(_size(picture) * 1.35)
    small = _size(picture)
    width = min(picture.shape[1] - 4 * small, 46 * small)
    hint = "Enter: look for it   Esc: leave it"
    line_h, hint_h = typeface.mask("0", size).shape[0], typeface.mask("0", small).shape[0]
    height = line_h + hint_h + 2 * small
    foot = bars_px((picture.shape[1], picture.shape[0]))[1]
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
    """All keys, in the middle."""
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
    """Short messages below the bar at the head, the newest last."""
    size = _size(picture)
    y = bars_px((picture.shape[1], picture.shape[0]))[0] + size // 2
    for line, colour in lines:
        text = typeface.fitted(typeface.drawable(redact_url(line)), size, picture.shape[1] - 4 * size)
        if not text:
            continue
        height = typeface.mask(text, size).shape[0] + size // 2
        panel = _panel(picture, size // 2, y, typeface.width_px(text, size) + size, height)
        typeface.draw(panel, text, (size // 2, size // 4), size, colour)
        y += height + size // 4


def draw_drag(picture: ByteArray, xyxy: tuple[float, float, float, float]) -> None:
    """The box that is being dragged."""
    draw_box(picture, xyxy, ACCENT)


def draw_gaze(picture: ByteArray, xy: tuple[int, int]) -> None:
    """A ring where someone looks."""
    radius = max(6, round(picture.shape[0] * _GAZE_RADIUS))
    cv2.circle(picture, xy, radius, (20, 20, 20), 4, cv2.LINE_AA)
    cv2.circle(picture, xy, radius, ACCENT, 2, cv2.LINE_AA)


def _size(picture: ByteArray) -> int:
    return max(11, font_px(picture.shape[1], picture.shape[0]))


def _panel(picture: ByteArray, x: int, y: int, width: int, height: int) -> ByteArray:
    """A darkened part of the picture, cut at its edges."""
    x, y = max(0, x), max(0, y)
    panel = picture[y : y + max(0, height), x : x + max(0, width)]
    if panel.size:
        panel[...] = cv2.convertScaleAbs(panel, alpha=_SHADE, beta=6)
    return panel
