"""A 4K street front that a camera pans along: many words too small for the texture, some large ones, and a van.

Heights are in texture pixels, from the top of a tall letter to the foot of a long one. The boxes that a detector draws
around such words are about twice as high.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
from PIL import Image, ImageDraw

from arr_stream.draw.typeface import font
from arr_stream.types import ByteArray, Frame
from benchmarks.scenes.drawing import photograph
from benchmarks.text import TruthWord

SIZE_WH = (3840, 2160)
FPS = 30
PAN_PX = 6
"""How far the camera moves a frame."""

_TEXTURE_SCALE = 0.35
"""Texture pixels per source pixel of such frames."""
SMALL_PX = 4.0, 5.0
"""Least and most height of small words: boxes of about 9 to 12 px."""
_LARGE_PX = 40.0, 56.0
_SMALL_WORDS, _LARGE_WORDS = 48, 6
_MARGIN_PX = 320
_WORDS = """
    Bakery Parking Library Pharmacy Station Keyhole Dentist Jeweller Platform Grocery Hospital Butchery Springtime
    Playground Lighthouse Typography Philosophy Shipyard Geography Laundry Biology Cyclepath Thursday Holiday
    Monopoly Polygraph Hydrogen Symphony Delivery Copyright Happening Mythology Dragonfly Gallery Lullaby Harmony
    Property Factory Highway Journey Kingfisher Mahogany Nightly Oxygen Pyjamas Quality Railway Strategy Therapy
    Upholstery Vocabulary Waterfly Yearly Zoology
"""
_COLOURS = ((250, 250, 245), (24, 28, 34)), ((20, 24, 30), (236, 228, 196)), ((250, 246, 230), (36, 74, 128))
"""Letters and their plate."""


@dataclass(frozen=True, slots=True, eq=False)
class _Word:
    """A word of the front: its tight box in pixels of the whole front, and whether it is of the small kind."""

    text: str
    x0: float
    y0: float
    x1: float
    y1: float
    small: bool


@dataclass(frozen=True, slots=True, eq=False)
class SmallPrint:
    """One frame with what is written on it.

    Args:
        frame: 3840x2160.
        small, large: The words that are wholly on it, by kind.
    """

    frame: Frame
    small: tuple[TruthWord, ...]
    large: tuple[TruthWord, ...]


def small_print(count: int, *, small_px: tuple[float, float] = SMALL_PX, seed: int = 0) -> Iterator[SmallPrint]:
    """So many frames of the pan; another front for another seed."""
    front, words = _front(small_px, seed)
    width = SIZE_WH[0]
    for index in range(count):
        x0 = index * PAN_PX % _MARGIN_PX
        rgb = front[:, x0 : x0 + width].copy()
        _draw_van(rgb, index)
        seen = [word for word in words if word.x0 >= x0 and word.x1 <= x0 + width]
        small, large = (
            tuple(_truth(word, x0) for word in seen if word.small == kind and not _hidden(word, x0, index))
            for kind in (True, False)
        )
        yield SmallPrint(Frame(index, index / FPS, rgb), small, large)


def _truth(word: _Word, x0: int) -> TruthWord:
    (left, right), (top, bottom) = (
        ((low - offset) / side, (high - offset) / side)
        for low, high, offset, side in ((word.x0, word.x1, x0, SIZE_WH[0]), (word.y0, word.y1, 0, SIZE_WH[1]))
    )
    return TruthWord(((left, top), (right, top), (right, bottom), (left, bottom)), word.text, True)


@cache
def _front(small_px: tuple[float, float], seed: int) -> tuple[ByteArray, tuple[_Word, ...]]:
    """A wall of brick with plates and words, wide enough for the pan."""
    draw = np.random.default_rng(seed)
    width, height = SIZE_WH[0] + _MARGIN_PX, SIZE_WH[1]
    brick = photograph("brick")
    repeats = -(-height // brick.shape[0]), -(-width // brick.shape[1])
    wall = (60 + 0.5 * np.tile(brick, repeats)[:height, :width].astype(np.float32)).astype(np.uint8)
    image = Image.fromarray(np.stack([wall, wall - wall // 8, wall - wall // 5], axis=2))
    pen = ImageDraw.Draw(image)
    taken: list[tuple[int, int, int, int]] = []
    words: list[_Word] = []
    kinds = [_LARGE_PX] * _LARGE_WORDS + [small_px] * _SMALL_WORDS
    for text, (least, most) in zip(draw.permutation(_WORDS.split()).tolist(), kinds, strict=False):
        face = font(round(float(draw.uniform(least, most)) / _TEXTURE_SCALE), bold=False)
        left, top, right, bottom = (round(side) for side in face.getbbox(text, anchor="la"))
        pad = (bottom - top) // 2
        for _ in range(1000):
            x, y = int(draw.integers(pad, width - right - pad)), int(draw.integers(pad, height - bottom - pad))
            plate = (x + left - pad, y + top - pad, x + right + pad, y + bottom + pad)
            if not any(plate[0] < b[2] and b[0] < plate[2] and plate[1] < b[3] and b[1] < plate[3] for b in taken):
                break
        else:
            raise ValueError(f"no room for {text!r} on the wall")
        taken.append(plate)
        ink, ground = _COLOURS[len(taken) % len(_COLOURS)]
        pen.rectangle(plate, fill=ground)
        pen.text((x, y), text, fill=ink, font=face, anchor="la")
        words.append(_Word(text, x + left, y + top, x + right, y + bottom, (least, most) == small_px))
    return np.asarray(image, np.uint8).copy(), tuple(words)


def _van_xyxy(index: int) -> tuple[int, int, int, int]:
    x0 = 200 + 24 * index % (SIZE_WH[0] - 900)
    return x0, 1640, x0 + 620, 2000


def _draw_van(rgb: ByteArray, index: int) -> None:
    x0, y0, x1, y1 = _van_xyxy(index)
    rgb[y0:y1, x0:x1] = (176, 40, 36)
    rgb[y0 + 40 : y0 + 160, x1 - 180 : x1 - 30] = (150, 190, 210)


def _hidden(word: _Word, x0: int, index: int) -> bool:
    left, top, right, bottom = _van_xyxy(index)
    return word.x0 - x0 < right and left < word.x1 - x0 and word.y0 < bottom and top < word.y1
