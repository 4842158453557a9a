"""Small text on pictures: anti-aliased, cached by string, blended in place."""

from __future__ import annotations

import functools
import importlib.util
from bisect import bisect_right
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from arr_stream.types import ByteArray

Colour = tuple[int, int, int]

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
    """Write one line of text into `picture` `[H, W, 3]`, its top left corner at `xy`, cut at the right and the foot.

    Returns:
        The column after the text.
    """
    (x, y), coverage = xy, mask(text, size_px, bold)
    target = picture[y : y + coverage.shape[0], x : x + coverage.shape[1]]
    coverage = coverage[: target.shape[0], : target.shape[1]]
    target[...] = (target * (256 - coverage) + np.array(colour, np.uint16) * coverage) >> 8
    return x + width_px(text, size_px, bold)


def shade(ground: ByteArray) -> None:
    """Darken part of a picture in place, so that text on it can be read."""
    ground[...] = cv2.convertScaleAbs(ground, alpha=0.26, beta=5)


@functools.lru_cache(maxsize=64)
def fitted(text: str, size_px: int, limit_px: int, bold: bool = False) -> str:
    """Return the text, or its beginning with an ellipsis if it is too long; empty if too little would fit."""
    if width_px(text, size_px, bold) <= limit_px:
        return text
    end = bisect_right(range(len(text)), limit_px, key=lambda end: width_px(text[:end] + "…", size_px, bold)) - 1
    return text[:end].rstrip() + "…" if end >= 3 else ""
