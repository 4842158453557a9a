"""Caption with the latest answer above the strip, and outlines around the cells that it used."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw

from arr_stream.draw import typeface
from arr_stream.draw.overlay import ANSWERED, Layer, answer_marks
from arr_stream.draw.strip import band_px, font_px
from arr_stream.draw.typeface import GREY, WHITE, Colour
from arr_stream.patch_set import Answer, PatchSet
from arr_stream.plain_text import redact_url
from arr_stream.types import ByteArray

MARKS_SECONDS = 1.2
"""Duration of the outlines; they fade during the last second."""

_MOST_LINES = 3
_SIGNS_A_SECOND = 15.0
"""Usual reading speed for subtitles, in characters a second."""
_SHORTEST_SECONDS, _LONGEST_SECONDS = 3.0, 10.0
_FADE_SECONDS = 0.3
_MOST_SIGNS = 4000
_MOST_HEIGHT = 0.4
"""Largest share of the picture's height for a caption."""
_MOST_EMS = 44
"""Longest line in ems; longer lines are hard to read."""
_GROUND: Colour = (13, 15, 19)
_GROUND_OPACITY = 0.84
_SUBDUED: Colour = (172, 146, 148)


@dataclass(frozen=True, slots=True)
class _Line:
    text: str
    size_px: int
    colour: Colour


class Caption:
    """Caption that shows each answer for as long as it takes to read, or until the next one.

    The text is rendered when an answer is first shown, and blended into the picture from then on.
    """

    def __init__(self) -> None:
        self._answer: Answer | None = None
        self._since = 0.0
        self._plate: Layer | None = None
        self._plate_size: tuple[int, int] | None = None
        self._marks: Layer | None = None
        self._marks_size: tuple[int, int] | None = None

    def update(self, patches: PatchSet) -> None:
        """Look for a newer answer; one that was cancelled before its first word is not shown."""
        told = [answer for answer in patches.answers if answer.text.strip() or answer.finish != "cancelled"]
        if told and told[-1] is not self._answer:
            self._answer, self._since = told[-1], patches.pts_seconds
            self._plate_size = self._marks_size = None
        elif self._answer is not None and self._age(patches) >= reading_seconds(self._answer):
            self._answer = self._plate = self._marks = None

    def draw_marks(self, picture: ByteArray, patches: PatchSet) -> None:
        """Outline the cells that the answer used, in place; the picture is the whole frame, of any size."""
        opacity = min(1.0, MARKS_SECONDS - self._age(patches))
        if self._answer is None or opacity <= 0 or not len(self._answer.cells):
            return
        size_wh = picture.shape[1], picture.shape[0]
        if self._marks_size != size_wh:
            self._marks, self._marks_size = answer_marks(self._answer, patches.grid, size_wh), size_wh
        if self._marks is not None:
            self._marks.draw(picture, opacity)

    def draw(self, picture: ByteArray, patches: PatchSet) -> None:
        """Write question and answer above the strip, in place; does nothing if the picture is too small."""
        if self._answer is None:
            return
        size_wh = picture.shape[1], picture.shape[0]
        if self._plate_size != size_wh:
            self._plate, self._plate_size = _plate(self._answer, size_wh), size_wh
        left = reading_seconds(self._answer) - self._age(patches)
        if self._plate is not None and left > 0:
            self._plate.draw(picture, min(1.0, left / _FADE_SECONDS))

    def fresh_seconds(self, patches: PatchSet) -> float:
        """Return the reading time of the answer that came with this frame; 0 without an answer or without room."""
        if self._answer is None or self._plate is None or self._age(patches) > 0:
            return 0.0
        return reading_seconds(self._answer)

    def _age(self, patches: PatchSet) -> float:
        return patches.pts_seconds - self._since


def reading_seconds(answer: Answer) -> float:
    """Return the duration of a caption: 15 characters a second and one second to look there, between 3 and 10."""
    # A character of Chinese or Japanese carries about as much as two letters.
    words = answer.question + (answer.error or "" if answer.finish == "failed" else answer.text)
    signs = sum(2 if unicodedata.east_asian_width(sign) == "W" else 1 for sign in words[:400])
    return max(_SHORTEST_SECONDS, min(_LONGEST_SECONDS, 1.0 + signs / _SIGNS_A_SECOND))


def _plate(answer: Answer, size_wh: tuple[int, int]) -> Layer | None:
    width, height = size_wh
    small = font_px(width, height)
    if not small:
        return None
    pad_x, pad_y, margin = round(small * 0.95), round(small * 0.55), round(small * 0.7)
    bar = max(2, round(small * 0.22))
    room_h = height * _MOST_HEIGHT - 2 * pad_y
    lines = _lines(answer, small, width - 2 * margin - 2 * pad_x - bar, room_h)
    if not lines:
        return None
    gap = round(small * 0.2)
    heights = [typeface.mask(line.text, line.size_px).shape[0] for line in lines]
    plate_w = bar + 2 * pad_x + max(typeface.width_px(line.text, line.size_px) for line in lines)
    plate_h = 2 * pad_y + sum(heights) + (gap if len(lines) > 1 else 0)
    ground = _rounded(plate_w, plate_h, round(small * 0.5))
    colours = np.full((plate_h, plate_w, 3), _GROUND, np.uint8)
    opacity = np.repeat((ground * _GROUND_OPACITY)[..., None], 3, axis=2).astype(np.uint8)
    colours[:, :bar] = _SUBDUED if answer.finish == "failed" else ANSWERED
    opacity[:, :bar] = ground[:, :bar, None]
    y = pad_y
    for place, (line, line_h) in enumerate(zip(lines, heights, strict=True)):
        for layer, colour in ((colours, line.colour), (opacity, (255, 255, 255))):
            typeface.draw(layer, line.text, (bar + pad_x, y), line.size_px, colour)
        y += line_h + (gap if place == 0 else 0)
    return Layer((margin, height - band_px(small) - margin - plate_h), colours, opacity)


def _lines(answer: Answer, small: int, room_w: int, room_h: float) -> list[_Line]:
    """Return question and answer in lines; with little room, fewer lines of the answer, then no question."""
    large = max(small + 2, round(small * 1.4))
    question = _shown(answer.question)
    text, size, colour = _shown(answer.text), large, WHITE
    if answer.finish == "failed":
        text, size, colour = f"no answer: {_shown(answer.error or '') or 'it failed'}", small, _SUBDUED
    elif not text:
        text, size, colour = "no words came", small, _SUBDUED
    elif answer.finish in ("length", "cancelled"):
        text += " …"
    room_w = min(room_w, _MOST_EMS * size)
    # As with `wrapped`, no more of a long text is measured than could fit.
    head = typeface.fitted(question[: max(1, room_w // 2)], small, room_w)
    head_h = typeface.mask(head, small).shape[0] + round(small * 0.2) if head else 0
    line_h = typeface.mask(text[:1], size).shape[0]
    for with_head, most in ((head, _MOST_LINES), (head, 2), ("", 2), ("", 1)):
        lines = typeface.wrapped(text, size, room_w, most)
        if len(lines) * line_h + (head_h if with_head else 0) <= room_h:
            first = [_Line(with_head, small, GREY)] if with_head else []
            return [*first, *(_Line(line, size, colour) for line in lines)]
    return []


def _shown(text: str) -> str:
    """Return the text to draw; of a very long one, far more than three lines hold."""
    return typeface.drawable(redact_url(text[:_MOST_SIGNS]))


def _rounded(width: int, height: int, radius: int) -> ByteArray:
    """Return the coverage of a rectangle with round corners, `[h, w]` uint8."""
    fine = 4
    image = Image.new("L", (width * fine, height * fine))
    ImageDraw.Draw(image).rounded_rectangle((0, 0, width * fine - 1, height * fine - 1), radius * fine, fill=255)
    return np.asarray(image.resize((width, height), Image.Resampling.BOX), np.uint8)
