"""Small text on pictures: anti-aliased, cached by string, blended in place."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from arr_stream.types import ByteArray

Colour = tuple[int, int, int]

_Inked = tuple[npt.NDArray[np.uint16], npt.NDArray[np.uint16]]

WHITE: Colour = (244, 246, 248)
GREY: Colour = (158, 166, 176)
ACCENT: Colour = (255, 196, 61)
ALARM: Colour = (255, 96, 84)

MIN_SIDE_PX = 160
"""Least side of a picture with text, which would hide too much of a smaller one."""


def font_px(width: int, height: int) -> int:
    """Return the font size for a picture of this size, 0 if no readable text fits."""
    if min(width, height) < MIN_SIDE_PX:
        return 0
    return max(11, min(round(height * 0.0245), round(width / 40)))


def band_px(size_px: int) -> int:
    """Return the height of the strip for a font size."""
    return round(size_px * 1.85)


@functools.lru_cache(maxsize=32)
def font(size_px: int, bold: bool = False) -> ImageFont.FreeTypeFont:
    """Return DejaVu Sans, which comes with matplotlib: many scripts, and digits of one width that do not jitter."""
    spec = importlib.util.find_spec("matplotlib")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("matplotlib, which brings the font, is not installed")
    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    return ImageFont.truetype(str(Path(spec.origin).parent / "mpl-data" / "fonts" / "ttf" / name), size_px)


@functools.lru_cache(maxsize=1024)
def mask(text: str, size_px: int, bold: bool = False) -> npt.NDArray[np.uint16]:
    """Return the coverage `[h, w, 1]`, 0 to 256, of one line of text; all lines of a size have the same height."""
    face = font(size_px, bold)
    ascent, descent = face.getmetrics()
    image = Image.new("L", (max(1, int(np.ceil(face.getlength(text)))), ascent + descent))
    ImageDraw.Draw(image).text((0, 0), text, fill=255, font=face)
    coverage = np.asarray(image, dtype=np.uint16)[:, :, None]
    coverage = coverage + (coverage >> 7)
    coverage.setflags(write=False)
    return coverage


def width_px(text: str, size_px: int, bold: bool = False) -> int:
    """Return the width of the text when drawn."""
    return int(mask(text, size_px, bold).shape[1])


def draw(
    picture: ByteArray, text: str, xy: tuple[int, int], size_px: int, colour: Colour, *, bold: bool = False
) -> int:
    """Write one line of text into `picture` `[H, W, 3]`, its top left corner at `xy`, cut at the picture's edges.

    Returns:
        The column after the text.
    """
    return _lay(picture, _inked(text, size_px, bold, colour), xy)


def shade(ground: ByteArray) -> None:
    """Darken part of a picture in place, so that text on it can be read."""
    ground[...] = cv2.convertScaleAbs(ground, alpha=0.26, beta=5)


class Piece(NamedTuple):
    """Part of a line.

    Args:
        gap: Space before it, in font sizes.
    """

    text: str
    colour: Colour
    bold: bool = False
    gap: float = 0.35


def draw_line(picture: ByteArray, pieces: Sequence[Piece], xy: tuple[int, int], size_px: int) -> int:
    """Draw one piece after the other as `draw` does, in a single blend."""
    inks = []
    for piece in pieces:
        inks += [_gap(round(piece.gap * size_px), size_px), _inked(piece.text, size_px, piece.bold, piece.colour)]
    kept, ink = (np.concatenate(of_all, axis=1) for of_all in zip(*inks, strict=True))
    return _lay(picture, (kept, ink), xy)


def line_px(pieces: Sequence[Piece], size_px: int) -> int:
    """Return the width of a line when drawn."""
    return sum(round(piece.gap * size_px) + width_px(piece.text, size_px, piece.bold) for piece in pieces)


def _lay(picture: ByteArray, inked: _Inked, xy: tuple[int, int]) -> int:
    kept, ink = inked
    (x, y), (height, width, _) = xy, ink.shape
    target = picture[max(0, y) : max(0, y + height), max(0, x) : max(0, x + width)]
    if target.size:
        part = np.s_[max(0, -y) : max(0, -y) + target.shape[0], max(0, -x) : max(0, -x) + target.shape[1]]
        target[...] = (target * kept[part] + ink[part]) >> 8
    return x + int(width)


@functools.lru_cache(maxsize=256)
def _inked(text: str, size_px: int, bold: bool, colour: Colour) -> _Inked:
    """Return the share of the ground that stays, 0 to 256, and the text's part, in 256ths; both `[h, w, 3]`."""
    coverage = np.repeat(mask(text, size_px, bold), 3, axis=2)
    return 256 - coverage, np.array(colour, dtype=np.uint16) * coverage


@functools.lru_cache(maxsize=64)
def _gap(width_px: int, size_px: int) -> _Inked:
    height = mask("0", size_px).shape[0]
    return np.full((height, width_px, 3), 256, np.uint16), np.zeros((height, width_px, 3), np.uint16)


def fitted(text: str, size_px: int, limit_px: int, bold: bool = False) -> str:
    """Return the text, or its beginning with an ellipsis if it is too long; empty if too little would fit."""
    if width_px(text, size_px, bold) <= limit_px:
        return text
    end = _most_that_fit(text, font(size_px, bold), limit_px, 0, len(text), "…")
    return text[:end].rstrip() + "…" if end >= 3 else ""


def _most_that_fit(
    text: str, face: ImageFont.FreeTypeFont, limit_px: int, low: int, high: int, suffix: str = ""
) -> int:
    """Return the number of characters that fit, between `low` and `high`."""
    while low < high:
        middle = (low + high + 1) // 2
        fits = face.getlength(text[:middle].rstrip() + suffix) <= limit_px
        low, high = (middle, high) if fits else (low, middle - 1)
    return low


def drawable(text: str) -> str:
    """Return the text in one line, without control characters."""
    return " ".join("".join(sign for sign in text if sign.isprintable() or sign.isspace()).split())


def wrapped(text: str, size_px: int, limit_px: int, most_lines: int) -> list[str]:
    """Return the text in at most `most_lines` lines of at most `limit_px`, broken between words where there are any.

    An ellipsis ends a longer text.
    """
    lines: list[str] = []
    # Only the beginning of a long text can fit: characters are wider than two pixels.
    most = max(1, limit_px // 2)
    while text and len(lines) < most_lines - 1:
        end = _most_that_fit(text, font(size_px), limit_px, 1, min(len(text), most))
        if end < len(text):
            end = max(text.rfind(" ", 0, end + 1), 0) or end
        lines.append(text[:end].rstrip())
        text = text[end:].lstrip()
    return [*lines, fitted(text[: most + 1], size_px, limit_px) or "…"] if text else lines
