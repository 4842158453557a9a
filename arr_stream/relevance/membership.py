"""How well each place of a frame fits a text query.

Each kind of word gives one map in [0, 1] of absolute membership: nothing is stretched to the frame, so where nothing
is red, "red" is near 0 everywhere. Words of one kind widen (red blue: either), kinds narrow (red left: both), hence
maximum within a kind and product across kinds.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from arr_stream.relevance.lexicon import ColourTerm, LightTerm, MotionTerm, Place, PlaceTerm, Shade, Term
from arr_stream.relevance.query import TextQuery
from arr_stream.types import ByteArray, FloatArray, IntArray

HUE_SOFT_DEGREES = 8.0
SATURATION_SOFT = 0.25
LIGHTNESS_SOFT = 0.06
CHROMA_SOFT = 0.015
"""Half-widths of a shade's soft limits; saturation's is a share of the limit itself."""

BRIGHT_LUMA = (0.60, 0.85)
DARK_LUMA = (0.15, 0.40)
MOVING = (0.08, 0.35)
"""Motion at which a place begins to count as moving, and at which it surely does."""


@dataclass(frozen=True, slots=True, eq=False)
class Senses:
    """What a text query is evaluated on.

    Args:
        rgb: `[h, w, 3]`, uint8, usually a quarter of the texture.
        motion: `[h, w]` in [0, 1], the motion channel; needed only by queries with motion words.
        word_map: Gives `[h, w]` in [0, 1] for a text, usually `word_mask` of the last keyframe, carried; needed only
            by queries with words to read.
    """

    rgb: ByteArray
    motion: FloatArray | None = None
    word_map: Callable[[str], FloatArray] | None = None
    meaning: FloatArray | None = None

    def __post_init__(self) -> None:
        if self.rgb.ndim != 3 or self.rgb.shape[2] != 3 or self.rgb.dtype != np.uint8:
            raise ValueError(f"rgb must be uint8 [h, w, 3], got {self.rgb.dtype} {list(self.rgb.shape)}")
        if self.motion is not None and self.motion.shape != self.hw:
            raise ValueError(f"motion is {list(self.motion.shape)} where rgb is {list(self.hw)}")
        if self.meaning is not None and self.meaning.shape != self.hw:
            raise ValueError(f"meaning is {list(self.meaning.shape)} where rgb is {list(self.hw)}")

    @property
    def hw(self) -> tuple[int, int]:
        return self.rgb.shape[0], self.rgb.shape[1]


@dataclass(frozen=True, slots=True, eq=False)
class ColourTable:
    """Membership of every colour, 5 bits of red, 6 of green and 5 of blue.

    Args:
        membership: `[65536]`, float32 in [0, 1].
    """

    membership: FloatArray

    def __call__(self, rgb: ByteArray) -> FloatArray:
        """`[h, w]` for `[h, w, 3]`: one packing and one gather."""
        packed = cv2.cvtColor(np.ascontiguousarray(rgb), cv2.COLOR_RGB2BGR565).view(np.uint16)
        gathered: FloatArray = self.membership.take(packed.reshape(rgb.shape[:2]))
        return gathered


def text_relevance(query: TextQuery, senses: Senses) -> FloatArray:
    """`[h, w]` float32 in [0, 1]: how well each place fits; all 0 for a query without a known word.

    Raises:
        ValueError: The query needs motion or words, and the senses lack them.
    """
    if not query.terms and senses.meaning is None:
        return np.zeros(senses.hw, np.float32)
    kinds = [
        _seen(query.terms, senses) if senses.meaning is None else senses.meaning,
        _moved(query.terms, senses),
        _placed(query.terms, senses.hw),
        _read(query, senses),
    ]
    result: FloatArray = functools.reduce(np.multiply, [kind for kind in kinds if kind is not None])
    return result


def combine(maps: FloatArray | Sequence[FloatArray]) -> tuple[FloatArray, IntArray]:
    """Several queries' maps `[Q, h, w]` as one: `[h, w]` highest score, and `[h, w]` int32 of the query that gave it.

    Raises:
        ValueError: There is no map.
    """
    stacked = np.asarray(maps, dtype=np.float32)
    if stacked.ndim != 3 or len(stacked) == 0:
        raise ValueError(f"maps must be [Q, h, w] with Q of at least 1, got {list(stacked.shape)}")
    return stacked.max(axis=0), stacked.argmax(axis=0).astype(np.int32)


def compile_colours(terms: Iterable[Term]) -> ColourTable:
    """One table for a query's colour and light words (others are passed over): the best colour times the best light.

    Tables are kept, so that asking again costs nothing.
    """
    return _compiled(tuple(term for term in terms if isinstance(term, ColourTerm | LightTerm)))


def _seen(terms: tuple[Term, ...], senses: Senses) -> FloatArray | None:
    if not any(isinstance(term, ColourTerm | LightTerm) for term in terms):
        return None
    return compile_colours(terms)(senses.rgb)


def _moved(terms: tuple[Term, ...], senses: Senses) -> FloatArray | None:
    sides = {term.side for term in terms if isinstance(term, MotionTerm)}
    if not sides:
        return None
    if senses.motion is None:
        raise ValueError("the query has motion words, and the senses have no motion")
    if len(sides) == 2:
        return np.ones(senses.hw, np.float32)
    moving = _smooth(senses.motion, *MOVING)
    return moving if "moving" in sides else 1.0 - moving


def _read(query: TextQuery, senses: Senses) -> FloatArray | None:
    if not query.words:
        return None
    if senses.word_map is None:
        raise ValueError("the query has words to read, and the senses have no word map")
    found: FloatArray = functools.reduce(np.maximum, [senses.word_map(text) for text in query.words])
    return found


def _placed(terms: tuple[Term, ...], hw: tuple[int, int]) -> FloatArray | None:
    sides = frozenset(term.side for term in terms if isinstance(term, PlaceTerm))
    return _place_map(sides, hw) if sides else None


@functools.lru_cache(maxsize=32)
def _place_map(sides: frozenset[Place], hw: tuple[int, int]) -> FloatArray:
    """Words along one axis widen (left right: either), the axes narrow (top left: both)."""
    y = (np.arange(hw[0], dtype=np.float32)[:, None] + 0.5) / hw[0]
    x = (np.arange(hw[1], dtype=np.float32)[None, :] + 0.5) / hw[1]
    far_x, far_y = 2 * np.abs(x - 0.5), 2 * np.abs(y - 0.5)
    fits: dict[Place, FloatArray] = {
        "left": _smooth(1 - x, 0.40, 0.70),
        "right": _smooth(x, 0.40, 0.70),
        "top": _smooth(1 - y, 0.40, 0.70),
        "bottom": _smooth(y, 0.40, 0.70),
        "centre": 1 - _smooth(np.hypot(far_x, far_y), 0.35, 0.85),
        "corner": _smooth(far_x, 0.35, 0.75) * _smooth(far_y, 0.35, 0.75),
    }
    axes: tuple[tuple[Place, ...], ...] = (("left", "right"), ("top", "bottom"), ("centre", "corner"))
    result = np.ones(hw, np.float32)
    for axis in axes:
        asked = [fits[side] for side in axis if side in sides]
        if asked:
            result *= functools.reduce(np.maximum, asked)
    result.flags.writeable = False
    return result


@functools.lru_cache(maxsize=32)
def _compiled(terms: tuple[ColourTerm | LightTerm, ...]) -> ColourTable:
    result = np.ones(1 << 16, np.float32)
    colours = [_membership(term.shade) for term in terms if isinstance(term, ColourTerm)]
    lights = [_light(term) for term in terms if isinstance(term, LightTerm)]
    for kind in (colours, lights):
        if kind:
            result *= functools.reduce(np.maximum, kind)
    result.flags.writeable = False
    return ColourTable(result)


def _membership(shade: Shade) -> FloatArray:
    lightness, chroma, hue = _oklch_of_all()
    fits = _between(lightness, shade.lightness, LIGHTNESS_SOFT) * _between(chroma, shade.chroma, CHROMA_SOFT)
    least, most = shade.saturation
    saturation = chroma / np.maximum(lightness, 1e-6)
    if math.isfinite(least):
        fits = fits * _smooth(saturation, least * (1 - SATURATION_SOFT), least * (1 + SATURATION_SOFT))
    if math.isfinite(most):
        fits = fits * (1 - _smooth(saturation, most * (1 - SATURATION_SOFT), most * (1 + SATURATION_SOFT)))
    if shade.hue_degrees is not None:
        start, end = shade.hue_degrees
        half = ((end - start) % 360) / 2
        off = np.abs((hue - start - half + 180) % 360 - 180)
        fits = fits * (1 - _smooth(off, half - HUE_SOFT_DEGREES, half + HUE_SOFT_DEGREES))
    return fits.astype(np.float32)


def _light(term: LightTerm) -> FloatArray:
    luma = _every_colour() @ np.asarray([0.299, 0.587, 0.114], np.float32)
    fits: FloatArray = _smooth(luma, *BRIGHT_LUMA) if term.side == "bright" else 1 - _smooth(luma, *DARK_LUMA)
    return fits.astype(np.float32)


def _between(values: FloatArray, limits: tuple[float, float], soft: float) -> FloatArray:
    fits = np.ones_like(values)
    if math.isfinite(limits[0]):
        fits = fits * _smooth(values, limits[0] - soft, limits[0] + soft)
    if math.isfinite(limits[1]):
        fits = fits * (1 - _smooth(values, limits[1] - soft, limits[1] + soft))
    return fits


def _smooth(values: npt.NDArray[np.floating], low: float, high: float) -> FloatArray:
    """0 below `low`, 1 above `high`, a cubic with level ends between."""
    t = np.clip((values - np.float32(low)) / np.float32(high - low), 0, 1).astype(np.float32)
    smooth: FloatArray = t * t * (3 - 2 * t)
    return smooth


@functools.lru_cache(maxsize=1)
def _every_colour() -> FloatArray:
    """`[65536, 3]` in [0, 1]: the middle of each bin of the 5-6-5 packing, so that dark greys stay grey."""
    packed = np.arange(1 << 16)
    red, green, blue = packed >> 11, (packed >> 5) & 63, packed & 31
    return (np.stack([red * 8 + 3.5, green * 4 + 1.5, blue * 8 + 3.5], axis=1) / 255).astype(np.float32)


@functools.lru_cache(maxsize=1)
def _oklch_of_all() -> tuple[FloatArray, FloatArray, FloatArray]:
    """Lightness, chroma and hue in degrees of every packed colour, after Ottosson (2020)."""
    rgb = _every_colour().astype(np.float64)
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    to_cones = [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
    to_lab = [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
    lightness, a, b = (np.cbrt(linear @ np.transpose(to_cones)) @ np.transpose(to_lab)).T
    hue = np.degrees(np.arctan2(b, a)) % 360
    return lightness.astype(np.float32), np.hypot(a, b).astype(np.float32), hue.astype(np.float32)
