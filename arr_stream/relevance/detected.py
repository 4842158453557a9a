"""Relevance of detected objects: matches them with a query, and draws their boxes as maps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from arr_stream.object_names import ObjectTerm
from arr_stream.relevance.lexicon import ColourTerm, LightTerm
from arr_stream.relevance.membership import colour_table
from arr_stream.relevance.query import TextQuery
from arr_stream.texture.pixels import packed_colours
from arr_stream.types import DetectedObject, FloatArray

SURE_SCORE = 0.8
"""Detector score at which an object has full weight."""
_COLOURED = 0.02, 0.1
"""Shares of a box in a colour: up to the first its object does not have the colour, from the second on it does."""


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
        if any(is_named(each, term, objects) for term in query.objects):
            place, sure = named[each.samples(hw)], sure * (_coloured(each, colours) if colours else 1.0)
        else:
            place, sure = other[each.samples(hw)], max(0.0, 2 * sure - 1)
        np.maximum(place, np.float32(sure), out=place)
    np.minimum(other, 1 - named, out=other)
    return maps


def is_named(each: DetectedObject, term: ObjectTerm, objects: Sequence[DetectedObject]) -> bool:
    """Return True if a term names an object; `objects` are all that were found on the frame."""
    if not term.on:
        return each.label in term.classes
    # A rider counts as a person and as the thing that the person rides.
    pair = {"person", term.on}
    mates = pair - {each.label}
    return each.label in pair and any(mate.label in mates and _touch(each, mate) for mate in objects)


def _touch(one: DetectedObject, other: DetectedObject) -> bool:
    a, b = one.box_xyxy, other.box_xyxy
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _coloured(each: DetectedObject, colours: tuple[ColourTerm | LightTerm, ...]) -> float:
    """Return the confidence that an object has a colour, in [0, 1]."""
    assert each.look is not None
    share = float(colour_table(colours)[packed_colours(each.look, 6)].mean())
    return min(max((share - _COLOURED[0]) / (_COLOURED[1] - _COLOURED[0]), 0.0), 1.0)
