"""Small text on pictures: anti-aliased, cached by string, blended in place."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from arr_stream.types import ByteArray

Colour = tuple[int, int, int]

WHITE: Colour = (244, 246, 248)
GREY: Colour = (158, 166, 176)
ACCENT: Colour = (255, 196, 61)


@functools.lru_cache(maxsize=32)
def font(size_px: int, bold: bool = False) -> ImageFont.FreeTypeFont:
    """DejaVu Sans, which matplotlib brings along: many scripts, and digits of one width that do not jitter."""
    spec = importlib.util.find_spec("matplotlib")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("matplotlib, which brings the font, is not installed")
    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    return ImageFont.truetype(str(Path(spec.origin).parent / "mpl-data" / "fonts" / "ttf" / name), size_px)


@functools.lru_cache(maxsize=1024)
def mask(text: str, size_px: int, bold: bool = False) -> npt.NDArray[np.uint16]:
    """Coverage `[h, w, 1]` in 0 to 256 of one line of text; all lines of a size are equally high."""
    face = font(size_px, bold)
    ascent, descent = face.getmetrics()
    image = Image.new("L", (max(1, int(np.ceil(face.getlength(text)))), ascent + descent))
    ImageDraw.Draw(image).text((0, 0), text, fill=255, font=face)
    coverage = np.asarray(image, dtype=np.uint16)[:, :, None]
    coverage = coverage + (coverage >> 7)
    coverage.setflags(write=False)
    return coverage


def width_px(text: str, size_px: int, bold: bool = False) -> int:
    """How wide `draw` makes it."""
    return int(mask(text, size_px, bold).shape[1])


def draw(
    picture: ByteArray, text: str, xy: tuple[int, int], size_px: int, colour: Colour, *, bold: bool = False
) -> int:
    """Write one line of text into `picture` `[H, W, 3]`, its top left corner at `xy`, cut at the picture's edges.

    Returns:
        The column after the text.
    """
    coverage = mask(text, size_px, bold)
    x, y = xy
    blend(picture, coverage, x, y, colour)
    return x + int(coverage.shape[1])


def blend(picture: ByteArray, coverage: npt.NDArray[np.uint16], x: int, y: int, colour: Colour) -> None:
    """Lay `colour` over `picture` in place, as much as `coverage` `[h, w, 1]` in 0 to 256 says."""
    left, top = max(0, -x), max(0, -y)
    target = picture[max(0, y) : max(0, y + coverage.shape[0]), max(0, x) : max(0, x + coverage.shape[1])]
    if target.size == 0:
        return
    part = coverage[top : top + target.shape[0], left : left + target.shape[1]]
    ink = np.array(colour, dtype=np.uint16)
    target[...] = (target * (256 - part) + ink * part) >> 8


def fitted(text: str, size_px: int, limit_px: int, bold: bool = False) -> str:
    """The text, or as much of its beginning as fits, with an ellipsis; empty when nothing worth reading fits."""
    if width_px(text, size_px, bold) <= limit_px:
        return text
    face = font(size_px, bold)
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if face.getlength(text[:middle].rstrip() + "…") <= limit_px else (low, middle - 1)
    return text[:low].rstrip() + "…" if low >= 3 else ""
