"""Marks and text on the picture: chosen cells, boxes, objects, the strip of numbers, and the latest answer."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import cv2
import numpy as np

from arr_stream.consumer import total_ms
from arr_stream.draw import typeface
from arr_stream.draw.typeface import ACCENT, ALARM, GREY, WHITE, Colour, band_px, font_px
from arr_stream.patch_set import Answer, Feeding, PatchSet, most_attended
from arr_stream.plain_text import one_line
from arr_stream.types import ByteArray, DetectedObject, Grid

SCORE_COLOURS = np.array(
    [(58, 124, 204), (46, 172, 196), (98, 201, 142), (214, 206, 76), (255, 186, 59), (255, 122, 64)], np.uint8
)
"""Outline of fine cells by score, lowest to highest."""

ANSWERED: Colour = (226, 112, 255)
"""Colour of the cells that an answer used; scores and maps do not use it."""

_DIM = 0.35
"""Brightness of cells that were not chosen."""
_COARSE = (1.0 + 2 * _DIM) / 3

MARKS_SECONDS = 1.2
"""Duration of the outlines of an answer's cells."""

_MOST_LINES = 3
_TALLEST = 0.4
"""Largest share of the picture's height that a caption covers."""
_SIGNS_A_SECOND = 15.0
"""Usual reading speed for subtitles, in characters a second."""
_SHORTEST_SECONDS, _LONGEST_SECONDS = 3.0, 10.0
_MOST_SIGNS = 4000
_DOUBTFUL = 0.5
"""Confidence below which its number is in the colour of an alarm."""


def draw_patches(rgb: ByteArray, patches: PatchSet) -> ByteArray:
    """Return a copy of a picture `[H, W, 3]` of the frame, of any size, with the chosen cells drawn.

    Fine cells keep their brightness and share one outline a region, coloured by score; coarse cells are half-way
    bright; the rest is dimmed.
    """
    shape = patches.grid.rows, patches.grid.columns
    fine, coarse, colours = np.zeros(shape, np.uint8), np.zeros(shape, np.uint8), np.zeros((*shape, 3), np.uint8)
    is_coarse = patches.level > 0
    for row, column, span in np.stack([patches.rows, patches.columns, patches.span], axis=1)[is_coarse].tolist():
        coarse[row : row + span, column : column + span] = 1
    places = patches.rows[~is_coarse], patches.columns[~is_coarse]
    fine[places] = 1
    steps = np.clip(patches.score[~is_coarse] * len(SCORE_COLOURS), 0, len(SCORE_COLOURS) - 1)
    colours[places] = SCORE_COLOURS[steps.astype(np.int32)]

    size_wh = rgb.shape[1], rgb.shape[0]
    bright, half = (cv2.resize(mask, size_wh, interpolation=cv2.INTER_NEAREST) for mask in (fine, coarse))
    picture = cv2.convertScaleAbs(rgb, alpha=_DIM)
    cv2.copyTo(cv2.convertScaleAbs(rgb, alpha=_COARSE), half, picture)
    cv2.copyTo(rgb, bright, picture)
    kernel = np.ones((2 * stroke_px(size_wh[1]) + 1,) * 2, np.uint8)
    inside = cv2.erode(bright, kernel, borderType=cv2.BORDER_CONSTANT, borderValue=0)
    cv2.copyTo(cv2.resize(colours, size_wh, interpolation=cv2.INTER_NEAREST), bright - inside, picture)
    return np.asarray(picture, dtype=np.uint8)


def stroke_px(height: int) -> int:
    """Return the width of an outline on a picture of this height."""
    return max(1, round(height / 400))


def draw_objects(picture: ByteArray, objects: Sequence[DetectedObject]) -> None:
    """Mark detected objects, in place: a fine frame with the class and the number."""
    height, width = picture.shape[:2]
    size = max(11, round(height * 0.0245))
    for each in objects:
        x0, y0, x1, y1 = (round(side * scale) for side, scale in zip(each.box_xyxy, (width, height) * 2, strict=True))
        cv2.rectangle(picture, (x0, y0), (x1 - 1, y1 - 1), WHITE, stroke_px(height))
        text = f"{each.label} {each.track}"
        line_height, line_width, _ = typeface.mask(text, size, True).shape
        # Above the box if there is room, else inside.
        left = max(0, min(x0, width - line_width))
        top = y0 - line_height if y0 >= line_height else max(0, y0)
        typeface.shade(picture[top : top + line_height, left : left + line_width])
        typeface.draw(picture, text, (left, top), size, WHITE, bold=True)


def draw_answered(picture: ByteArray, answer: Answer, grid: Grid) -> None:
    """Outline the cells that an answer used, in place.

    Args:
        picture: The frame `[H, W, 3]`, of any size.
        answer: Its cells are in source pixels.
        grid: The fine cells of the frame.
    """
    scale = np.divide(picture.shape[1::-1], grid.size_wh)
    boxes = answer.cells[most_attended(answer.cells), :4] * [*scale, *scale]
    for x0, y0, x1, y1 in boxes.round().astype(int).tolist():
        cv2.rectangle(picture, (x0, y0), (x1 - 1, y1 - 1), ANSWERED, stroke_px(picture.shape[0]))


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
        x = margin
        for text, colour in self._pieces(patches):
            x = typeface.draw(band, text, (x, y), size, colour) + size
        if self._asked:
            text = typeface.fitted(self._asked, size, width - margin - x)
            typeface.draw(band, text, (width - margin - typeface.width_px(text, size), y), size, ACCENT)

    def _pieces(self, patches: PatchSet) -> list[tuple[str, Colour]]:
        pieces = [
            (f"{patches.tokens}/{patches.grid.cells} tokens", WHITE),
            (f"◆ {self._reason or ''} +{patches.keyframe_age}", ACCENT if patches.keyframe else GREY),
        ]
        # Before anything is propagated there is no confidence to show.
        if patches.keyframe_index is not None:
            colour = WHITE if patches.confidence >= _DOUBTFUL else ALARM
            pieces.append((f"confidence {patches.confidence:.2f}", colour))
        if patches.latency_ms:
            pieces.append((f"{total_ms(patches.latency_ms):.1f} ms", WHITE))
        if self._feeding is not None:
            pieces.append((f"memory {self._feeding.memory_tokens}", ALARM if self._feeding.error else WHITE))
        return pieces


class Caption:
    """Caption that shows each answer for as long as it takes to read, or until the next one."""

    def __init__(self) -> None:
        self._answer: Answer | None = None
        self._since = 0.0

    def update(self, patches: PatchSet) -> None:
        """Look for a newer answer; one that was cancelled before its first word is not shown."""
        shown = [answer for answer in patches.answers if answer.text.strip() or answer.finish != "cancelled"]
        if shown:
            self._answer, self._since = shown[-1], patches.pts_seconds
        elif self._answer is not None and self._age(patches) >= reading_seconds(self._answer):
            self._answer = None

    def draw_marks(self, picture: ByteArray, patches: PatchSet) -> None:
        """Outline the cells that the answer used, in place; the picture is the whole frame, of any size."""
        if self._answer is not None and self._age(patches) < MARKS_SECONDS:
            draw_answered(picture, self._answer, patches.grid)

    def draw(self, picture: ByteArray) -> None:
        """Write question and answer above the strip, in place; does nothing if the picture is too small."""
        height, width = picture.shape[:2]
        size = font_px(width, height)
        if self._answer is None or not size:
            return
        margin, line_px = round(size * 0.7), round(size * 1.35)
        most = int((_TALLEST * height - margin) / line_px) - 1
        lines = _lines(self._answer, size, width - 5 * margin, min(_MOST_LINES, most))
        foot = height - band_px(size) - margin
        top = foot - margin - len(lines) * line_px
        typeface.shade(picture[top:foot, margin : width - margin])
        picture[top:foot, margin : 2 * margin] = ANSWERED
        for place, (text, colour) in enumerate(lines):
            y = top + margin // 2 + place * line_px
            typeface.draw(picture[:, : width - margin], text, (3 * margin, y), size, colour)

    def fresh_seconds(self, patches: PatchSet) -> float:
        """Return the reading time of the answer that came with this frame; 0 without an answer."""
        return 0.0 if self._answer is None or self._age(patches) > 0 else reading_seconds(self._answer)

    def _age(self, patches: PatchSet) -> float:
        return patches.pts_seconds - self._since


def reading_seconds(answer: Answer) -> float:
    """Return the duration of a caption: 15 characters a second and one second to look there, between 3 and 10."""
    signs = len(answer.question) + len(answer.text)
    return max(_SHORTEST_SECONDS, min(_LONGEST_SECONDS, 1.0 + signs / _SIGNS_A_SECOND))


def _lines(answer: Answer, size_px: int, room_px: int, most: int) -> list[tuple[str, Colour]]:
    """Return the question and at most so many lines of the answer."""
    question, text = one_line(answer.question[:_MOST_SIGNS]), one_line(answer.text[:_MOST_SIGNS])
    if answer.finish == "failed":
        text = f"no answer: {one_line(answer.error) or 'it failed'}"
    signs = max(1, int(room_px / typeface.font(size_px).getlength("n")))
    lines = textwrap.wrap(text or "no words came", signs, max_lines=most, placeholder=" …")
    colour = ALARM if answer.finish == "failed" else WHITE
    return [(typeface.fitted(question, size_px, room_px), GREY), *((line, colour) for line in lines)]
