"""Membership: the fit of each place of a frame, and of each detected object, to a text query.

Each kind of word gives one map of membership in [0, 1]. Maps are not normalised by the frame: without anything red,
"red" is near 0 everywhere. Words of one kind are alternatives (red blue: either) and combine by maximum; kinds restrict
each other (red left: both) and combine by product.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence

import numpy as np

from arr_stream.relevance.lexicon import ColourTerm, LightTerm, MotionTerm, Place, PlaceTerm, Shade, Term
from arr_stream.relevance.query import TextQuery
from arr_stream.texture.arrays import Array, as_float, constant, namespace, take, zeros
from arr_stream.texture.pixels import packed_colours, picture_hw
from arr_stream.types import DetectedObject, FloatArray

HUE_SOFT_DEGREES = 8.0
SATURATION_SOFT = 0.25
LIGHTNESS_SOFT = 0.06
CHROMA_SOFT = 0.015
"""Half-widths of a shade's soft limits; saturation's is a share of the limit itself."""

BRIGHT_LUMA = (0.60, 0.85)
DARK_LUMA = (0.15, 0.40)

SURE_SCORE = 0.8
"""Detector score at which an object has full weight."""
_COLOURED = 0.02, 0.1
"""Shares of a box in a colour: up to the first its object does not have the colour, from the second on it does."""


def text_relevance(
    query: TextQuery,
    rgb: Array,
    *,
    motion: Array | None = None,
    words: Sequence[Array] = (),
    meaning: Array | None = None,
    objects: Array | None = None,
) -> Array:
    """Return the fit of each place, `[h, w]` float32 in [0, 1]; 0 everywhere for a query without a known word.

    Args:
        query: The text.
        rgb: `[h, w, 3]`, uint8, usually a quarter of the texture; `[3, h, w]` on a device.
        motion: `[h, w]` in [0, 1], the motion channel; needed by queries with motion words.
        words: `[h, w]` in [0, 1] for each of `query.words`, how well a place matches it.
        meaning: `[h, w]` in [0, 1], a model's relevance for the query, used in place of its colours; None without one.
        objects: `[h, w]` in [0, 1], confidence that each place is an object with the name and the colour in the query;
            None if it names no object.

    Raises:
        ValueError: The query needs motion, and it is missing.
    """
    hw = picture_hw(rgb)
    if not query.terms and meaning is None:
        return zeros(rgb, hw)
    seen = objects if meaning is None else meaning
    kinds = [
        _coloured_places(query.terms, rgb) if seen is None else seen,
        _moved(query.terms, motion),
        _placed(query.terms, rgb, hw),
        functools.reduce(namespace(rgb).maximum, words) if words else None,
    ]
    return functools.reduce(operator.mul, [kind for kind in kinds if kind is not None])


def _coloured_places(terms: tuple[Term, ...], rgb: Array) -> Array | None:
    coloured = tuple(term for term in terms if isinstance(term, ColourTerm | LightTerm))
    return take(constant(rgb, colour_table, coloured), packed_colours(rgb, 6)) if coloured else None


def _moved(terms: tuple[Term, ...], motion: Array | None) -> Array | None:
    sides = {term.side for term in terms if isinstance(term, MotionTerm)}
    if not sides:
        return None
    if motion is None:
        raise ValueError("the query has motion words, and there is no motion")
    if len(sides) == 2:
        return namespace(motion).ones_like(motion)
    return motion if "moving" in sides else 1.0 - motion


def _placed(terms: tuple[Term, ...], rgb: Array, hw: tuple[int, int]) -> Array | None:
    sides = frozenset(term.side for term in terms if isinstance(term, PlaceTerm))
    return constant(rgb, _place_map, sides, hw) if sides else None


@functools.lru_cache(maxsize=32)
def _place_map(sides: frozenset[Place], hw: tuple[int, int]) -> FloatArray:
    """Combine words: on one axis they are alternatives (left right), across axes both must hold (top left)."""
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
def colour_table(terms: tuple[ColourTerm | LightTerm, ...]) -> FloatArray:
    """Return `[65536]` in [0, 1], membership of every 5-6-5-bit colour: the best colour's times the best lightness'."""
    result = np.ones(1 << 16, np.float32)
    colours = [_membership(term.shade) for term in terms if isinstance(term, ColourTerm)]
    lights = [_light(term) for term in terms if isinstance(term, LightTerm)]
    for kind in (colours, lights):
        if kind:
            result *= functools.reduce(np.maximum, kind)
    result.flags.writeable = False
    return result


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


def _smooth(values: Array, low: float, high: float) -> Array:
    """Return 0 below `low`, 1 above `high`, and a smooth cubic between."""
    t = as_float(namespace(values).clip((values - low) / (high - low), 0, 1))
    return t * t * (3 - 2 * t)


@functools.lru_cache(maxsize=1)
def _every_colour() -> FloatArray:
    """Return `[65536, 3]` in [0, 1]: the middle of each bin of the 5-6-5 packing, so that dark greys stay grey."""
    packed = np.arange(1 << 16)
    red, green, blue = packed >> 11, (packed >> 5) & 63, packed & 31
    return (np.stack([red * 8 + 3.5, green * 4 + 1.5, blue * 8 + 3.5], axis=1) / 255).astype(np.float32)


@functools.lru_cache(maxsize=1)
def _oklch_of_all() -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return lightness, chroma and hue in degrees of every packed colour, after Ottosson (2020)."""
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


def object_maps(query: TextQuery, objects: Sequence[DetectedObject], hw: tuple[int, int]) -> FloatArray:
    """Return `[2, h, w]` in [0, 1]: confidence that each place is in the box of a named object, and of another one.

    Args:
        query: The text; if it names a colour too, the object must have some of it.
        objects: Detected objects.
        hw: Rows and columns of the maps.
    """
    named, other = maps = np.zeros((2, *hw), np.float32)
    colours = tuple(term for term in query.terms if isinstance(term, ColourTerm | LightTerm))
    for each in objects:
        sure = min(1.0, each.score / SURE_SCORE)
        if any(each.label in term.classes for term in query.objects):
            place, sure = named[each.samples(hw)], sure * (_coloured(each, colours) if colours else 1.0)
        else:
            place, sure = other[each.samples(hw)], max(0.0, 2 * sure - 1)
        np.maximum(place, np.float32(sure), out=place)
    np.minimum(other, 1 - named, out=other)
    return maps


def _coloured(each: DetectedObject, colours: tuple[ColourTerm | LightTerm, ...]) -> float:
    """Return the confidence that an object has a colour, in [0, 1]."""
    assert each.look is not None
    share = float(colour_table(colours)[packed_colours(each.look, 6)].mean())
    return min(max((share - _COLOURED[0]) / (_COLOURED[1] - _COLOURED[0]), 0.0), 1.0)
