"""Text at the foot of an annotated picture: the strip of numbers, and the latest answer with the cells that it used."""

from __future__ import annotations

import unicodedata

import numpy as np
from PIL import Image, ImageDraw

from arr_stream.consumer import total_ms
from arr_stream.draw import typeface
from arr_stream.draw.overlay import ANSWERED, Layer, answer_marks
from arr_stream.draw.typeface import ACCENT, ALARM, GREY, WHITE, Colour, Piece, band_px, font_px
from arr_stream.patch_set import Answer, Feeding, PatchSet
from arr_stream.plain_text import one_line, redact_url
from arr_stream.types import ByteArray

MARKS_SECONDS = 1.2
"""Duration of the outlines; they fade during the last second."""

_GLOW_FRAMES = 12
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
_GROUND = (13, 15, 19, 214)
_SUBDUED: Colour = (172, 146, 148)

Line = tuple[str, int, Colour]
"""Text, its size in pixels, and its colour."""


class Strip:
    """Strip of tokens, keyframe, confidence, latency and memory; keeps the last keyframe's reason and the memory.

    Args:
        asked: The queries, shown at the right if there is room; None without any.
    """

    def __init__(self, asked: str | None = None) -> None:
        self._asked = one_line(asked)
        self._reason: str | None = None
        self._feeding: Feeding | None = None

    def draw(self, picture: ByteArray, patches: PatchSet) -> None:
        """Write onto the foot of `picture` `[H, W, 3]`, in place."""
        if patches.keyframe:
            self._reason = patches.refresh_reason
        self._feeding = patches.feeding or self._feeding
        height, width = picture.shape[:2]
        size = font_px(width, height)
        if not size:
            return
        band = picture[height - band_px(size) :]
        typeface.shade(band)
        margin, y = round(size * 0.7), (band.shape[0] - typeface.mask("0", size).shape[0]) // 2
        pieces = self._pieces(patches, with_labels=True)
        if 2 * margin + typeface.line_px(pieces, size) > width:
            pieces = self._pieces(patches, with_labels=False)
        x = typeface.draw_line(band, pieces, (margin, y), size) + round(size * 1.5)
        if self._asked:
            text = typeface.fitted(self._asked, size, width - margin - x)
            typeface.draw(band, text, (width - margin - typeface.width_px(text, size), y), size, ACCENT)

    def _pieces(self, patches: PatchSet, *, with_labels: bool) -> list[Piece]:
        gap, age = 1.4 if with_labels else 0.7, patches.keyframe_age
        glow = _mix(GREY, ACCENT, 1.0 if patches.keyframe else max(0.0, 1.0 - age / _GLOW_FRAMES))
        # Before anything is propagated there is no confidence to show.
        confidence = None if patches.keyframe_index is None else max(0.0, min(1.0, patches.confidence))
        pieces = [
            Piece(f"{patches.tokens}", WHITE, True, 0.0),
            Piece(f"/{patches.grid.cells}", GREY, gap=0.0),
            Piece("◆", glow, gap=gap),
            Piece(f"+{age}", WHITE, True),
            Piece("–" if confidence is None else f"{confidence:.2f}", _trust_colour(confidence), True, gap),
        ]
        if patches.latency_ms:
            pieces += [Piece(f"{total_ms(patches.latency_ms):.1f}", WHITE, True, gap), Piece("ms", GREY, gap=0.25)]
        if self._feeding is not None:
            colour = ALARM if self._feeding.error else ACCENT if self._feeding.rebuilt else WHITE
            pieces += [Piece("mem", GREY, gap=gap), Piece(f"{self._feeding.memory_tokens}", colour, True)]
        if with_labels:
            pieces.insert(5, Piece("confidence", GREY))
            pieces[4:4] = [Piece(self._reason, glow)] if self._reason else []
            pieces.insert(2, Piece("tokens", GREY))
        return pieces


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
        shown = [answer for answer in patches.answers if answer.text.strip() or answer.finish != "cancelled"]
        if shown and shown[-1] is not self._answer:
            self._answer, self._since = shown[-1], patches.pts_seconds
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
    bar, gap = max(2, round(small * 0.22)), round(small * 0.2)
    lines = _lines(answer, small, width - 2 * margin - 2 * pad_x - bar)
    heights = [sum(typeface.font(size).getmetrics()) + gap for _, size, _ in lines]
    room_h = height * _MOST_HEIGHT - 2 * pad_y
    while lines and sum(heights) > room_h:
        # With little room, no question, then fewer lines of the answer.
        place = 0 if lines[0][1] == small and len(lines) > 1 else -1
        del lines[place], heights[place]
    if not lines:
        return None
    plate_w = bar + 2 * pad_x + max(typeface.width_px(text, size) for text, size, _ in lines)
    plate_h = 2 * pad_y + sum(heights)
    image = Image.new("RGBA", (plate_w, plate_h))
    paint = ImageDraw.Draw(image)
    paint.rounded_rectangle((0, 0, plate_w - 1, plate_h - 1), round(small * 0.5), fill=_GROUND)
    paint.rectangle((0, 0, bar - 1, plate_h - 1), fill=_SUBDUED if answer.finish == "failed" else ANSWERED)
    y = pad_y
    for (text, size, colour), line_h in zip(lines, heights, strict=True):
        paint.text((bar + pad_x, y), text, fill=colour, font=typeface.font(size))
        y += line_h
    rgba = np.array(image)
    opacity = np.repeat(rgba[..., 3:], 3, axis=2)
    return Layer((margin, height - band_px(small) - margin - plate_h), rgba[..., :3].copy(), opacity)


def _lines(answer: Answer, small: int, room_w: int) -> list[Line]:
    """Return question and answer in lines of at most `room_w` pixels."""
    text, size, colour = _shown(answer.text), max(small + 2, round(small * 1.4)), WHITE
    if answer.finish == "failed":
        text, size, colour = f"no answer: {_shown(answer.error or '') or 'it failed'}", small, _SUBDUED
    elif not text:
        text, size, colour = "no words came", small, _SUBDUED
    elif answer.finish in ("length", "cancelled"):
        text += " …"
    room_w = min(room_w, _MOST_EMS * size)
    lines = [(line, size, colour) for line in typeface.wrapped(text, size, room_w, _MOST_LINES)]
    question = typeface.fitted(_shown(answer.question), small, room_w)
    return [(question, small, GREY), *lines] if question else lines


def _shown(text: str) -> str:
    """Return the text to draw; of a very long one, far more than three lines hold."""
    return typeface.drawable(redact_url(text[:_MOST_SIGNS]))


def _mix(low: Colour, high: Colour, share: float) -> Colour:
    red, green, blue = (round(a + (b - a) * share) for a, b in zip(low, high, strict=True))
    return red, green, blue


def _trust_colour(confidence: float | None) -> Colour:
    """Return a colour from red through amber to white, so that low confidence stands out; grey without any."""
    if confidence is None:
        return GREY
    if confidence >= 0.5:
        return _mix(ACCENT, WHITE, (confidence - 0.5) * 2)
    return _mix(ALARM, ACCENT, confidence * 2)
