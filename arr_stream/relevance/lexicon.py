"""The words that a text query understands without any trained weights.

Six kinds of word: colours, light, motion, places, objects (which a detector finds, `keyframes.objects`), and "quoted
words" that are searched in the recognised text of the scene. Stop words are ignored; every other word is reported as
unknown. Negations (*not*, *no*, *without*) are not stop words, since a question without them would mean the opposite.

Colours are boxes in OKLCh (Bjorn Ottosson, "A perceptual color space for image processing", 2020) whose limits were
fitted to the colour names of the xkcd survey. Saturation is chroma over lightness: both scale alike in shade, so a
shaded red stays red.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from arr_stream.object_names import ObjectTerm, object_at

Light = Literal["bright", "dark"]
Motion = Literal["moving", "still"]
Place = Literal["left", "right", "top", "bottom", "centre", "corner"]

_INFINITE = float("inf")
_Side = TypeVar("_Side")


@dataclass(frozen=True, slots=True)
class Shade:
    """Soft box in OKLCh; membership is one half at each limit.

    Args:
        hue_degrees: From, to; `from` may exceed `to` (through 0). None: any hue.
        saturation: Chroma over lightness, from, to.
        lightness: From, to, in [0, 1].
        focal_lightness: Lightness of the purest shade, to which *light* and *dark* are relative.
        chroma: From, to. The lower limit excludes the noise of dark greys.
        kinds: Family names that may follow, as in "navy blue".
    """

    hue_degrees: tuple[float, float] | None
    saturation: tuple[float, float]
    lightness: tuple[float, float]
    focal_lightness: float
    chroma: tuple[float, float]
    kinds: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ColourTerm:
    """A colour word with its modifier, such as `dark red`."""

    word: str
    shade: Shade


@dataclass(frozen=True, slots=True)
class LightTerm:
    """Word for the lightness of a place."""

    word: str
    side: Light


@dataclass(frozen=True, slots=True)
class MotionTerm:
    """Word for motion against the camera, or for its absence."""

    word: str
    side: Motion


@dataclass(frozen=True, slots=True)
class PlaceTerm:
    """Word for a part of the frame."""

    word: str
    side: Place


@dataclass(frozen=True, slots=True)
class WordTerm:
    """Text to read in the scene; an empty `text` means any text."""

    text: str


Term = ColourTerm | LightTerm | MotionTerm | PlaceTerm | ObjectTerm | WordTerm


def _hue(
    hue: tuple[float, float],
    lightness: tuple[float, float],
    focal: float,
    *,
    least: float,
    most: float = _INFINITE,
    kinds: str = "",
) -> Shade:
    return Shade(hue, (least, most), lightness, focal, (0.03, _INFINITE), tuple(kinds.split()))


def _neutral(lightness: tuple[float, float], focal: float, *, most: float, kinds: str = "") -> Shade:
    return Shade(None, (-_INFINITE, _INFINITE), lightness, focal, (-_INFINITE, most), tuple(kinds.split()))


def _words(text: str) -> list[str]:
    return text.split()


def _each(text: str, side: _Side) -> dict[str, _Side]:
    return dict.fromkeys(_words(text), side)


_FULL = 1.1  # beyond white, so that the soft limit does not lower it

COLOURS: dict[str, Shade] = {
    "red": _hue((8, 35), (0.12, 0.74), 0.58, least=0.21),
    "crimson": _hue((8, 29), (0.28, 0.66), 0.50, least=0.29, kinds="red"),
    "scarlet": _hue((20, 36), (0.42, 0.72), 0.58, least=0.31, kinds="red"),
    "maroon": _hue((0, 36), (0.12, 0.45), 0.34, least=0.21, kinds="red"),
    "burgundy": _hue((355, 30), (0.12, 0.45), 0.31, least=0.21, kinds="red"),
    "rust": _hue((30, 52), (0.33, 0.62), 0.50, least=0.19, kinds="red orange brown"),
    "salmon": _hue((14, 42), (0.60, 0.90), 0.74, least=0.13, most=0.30, kinds="pink"),
    "coral": _hue((18, 48), (0.58, 0.86), 0.70, least=0.17, most=0.36, kinds="pink red orange"),
    "peach": _hue((38, 82), (0.74, _FULL), 0.85, least=0.055, most=0.17),
    "orange": _hue((34, 82), (0.53, 0.95), 0.71, least=0.175),
    "amber": _hue((64, 92), (0.60, 0.95), 0.80, least=0.165, kinds="yellow orange"),
    "yellow": _hue((84, 118), (0.68, _FULL), 0.93, least=0.13),
    "gold": _hue((70, 101), (0.55, 0.95), 0.80, least=0.14, kinds="yellow"),
    "mustard": _hue((80, 105), (0.55, 0.90), 0.75, least=0.14, kinds="yellow"),
    "khaki": _hue((86, 122), (0.55, 0.95), 0.72, least=0.075, most=0.17, kinds="green brown"),
    "olive": _hue((97, 128), (0.22, 0.68), 0.52, least=0.12, kinds="green"),
    "lime": _hue((118, 150), (0.72, _FULL), 0.88, least=0.19, kinds="green"),
    "green": _hue((115, 172), (0.12, 0.97), 0.60, least=0.075),
    "mint": _hue((138, 172), (0.80, _FULL), 0.90, least=0.07, most=0.24, kinds="green"),
    "teal": _hue((166, 216), (0.28, 0.72), 0.55, least=0.085, kinds="blue green"),
    "turquoise": _hue((164, 204), (0.62, 0.96), 0.80, least=0.10, kinds="blue green"),
    "cyan": _hue((176, 216), (0.68, _FULL), 0.88, least=0.09, kinds="blue"),
    "sky blue": _hue((198, 262), (0.66, _FULL), 0.82, least=0.05, kinds="blue"),
    "azure": _hue((215, 264), (0.54, 0.90), 0.65, least=0.13, kinds="blue"),
    "blue": _hue((210, 287), (0.10, 0.97), 0.50, least=0.075),
    "navy": _hue((235, 286), (0.06, 0.38), 0.25, least=0.15, kinds="blue"),
    "indigo": _hue((271, 310), (0.12, 0.58), 0.34, least=0.25, kinds="blue purple violet"),
    "violet": _hue((281, 333), (0.18, 0.90), 0.60, least=0.11, kinds="purple blue"),
    "purple": _hue((287, 340), (0.12, 0.82), 0.48, least=0.10),
    "lavender": _hue((278, 335), (0.68, _FULL), 0.82, least=0.05, most=0.21, kinds="purple"),
    "plum": _hue((322, 362), (0.18, 0.62), 0.35, least=0.16, kinds="purple"),
    "magenta": _hue((322, 360), (0.36, 0.84), 0.66, least=0.27, kinds="pink purple"),
    "hot pink": _hue((337, 14), (0.50, 0.80), 0.66, least=0.24, kinds="pink"),
    "pink": _hue((336, 22), (0.56, _FULL), 0.78, least=0.045),
    "brown": _hue((33, 95), (0.12, 0.62), 0.42, least=0.085, most=0.32),
    "tan": _hue((60, 102), (0.60, 0.90), 0.75, least=0.055, most=0.155, kinds="brown"),
    "beige": _hue((58, 114), (0.79, _FULL), 0.90, least=0.025, most=0.105, kinds="brown"),
    "cream": _hue((70, 116), (0.90, _FULL), 0.97, least=0.02, most=0.11, kinds="white"),
    "black": _neutral((-1.0, 0.30), 0.15, most=0.05),
    "charcoal": _neutral((0.21, 0.45), 0.34, most=0.035, kinds="grey black"),
    "grey": _neutral((0.30, 0.91), 0.62, most=0.03),
    "silver": _neutral((0.68, 0.93), 0.82, most=0.025, kinds="grey"),
    "white": _neutral((0.86, _FULL), 1.00, most=0.035),
}

COLOUR_ALIASES: dict[str, str] = {
    "reddish": "red",
    "orangish": "orange",
    "yellowish": "yellow",
    "golden": "gold",
    "greenish": "green",
    "aqua": "cyan",
    "bluish": "blue",
    "purplish": "purple",
    "lilac": "lavender",
    "fuchsia": "magenta",
    "pinkish": "pink",
    "brownish": "brown",
    "ivory": "cream",
    "blackish": "black",
    "gray": "grey",
    "greyish": "grey",
    "grayish": "grey",
    "silvery": "silver",
    "whitish": "white",
}

MODIFIERS: dict[str, Literal["light", "dark", "pale", "bright"]] = {
    "light": "light",
    "dark": "dark",
    "deep": "dark",
    "pale": "pale",
    "pastel": "pale",
    "bright": "bright",
    "vivid": "bright",
    "neon": "bright",
}

LIGHT: dict[str, Light] = {
    **_each("bright light lit sunny sunlit shining glowing highlight highlights", "bright"),
    **_each("dark dim shadow shadows shadowy shade shaded shady unlit", "dark"),
}

MOTION: dict[str, Motion] = {
    **_each(
        "moving moves motion movement running walking driving riding flying dancing jumping rolling swimming fast",
        "moving",
    ),
    **_each("still static stationary motionless unmoving parked stopped standing resting", "still"),
}

PLACES: dict[str, Place] = {
    **_each("left leftmost", "left"),
    **_each("right rightmost", "right"),
    **_each("top upper topmost", "top"),
    **_each("bottom lower", "bottom"),
    **_each("centre center central middle", "centre"),
    **_each("corner corners", "corner"),
}

ANYTHING_WRITTEN = frozenset(_words("text writing written lettering words letters"))
"""Words for any text; they are ignored beside a quoted word."""

STOP_WORDS = frozenset(
    _words("""
    a an the this that these those some any all every each
    i me my we us our you your it its they them their he she his her
    and or but of in on at to from with by for as into onto there here
    is are was were be been being am do does did has have had can could will would should
    where what which when how please find show look looking see seeing get give tell track follow watch
    thing things object objects something anything everything one ones stuff
    colour colours color colors coloured colored part parts side half area areas region regions place places
    patch patches pixel pixels frame frames picture image video scene screen
    say says saying read reads reading called labelled labeled
    """)
)


def modified(shade: Shade, modifier: str) -> Shade:
    """Return the shade under one of the values of `MODIFIERS`, relative to the colour's own purest lightness."""
    low, high = shade.lightness
    least, most = shade.saturation
    focal = shade.focal_lightness
    if modifier == "dark":
        lightness = (min(low, max(focal - 0.45, 0.05)), min(high, focal - 0.08))
        return replace(shade, lightness=lightness, saturation=(least, most * 1.25))
    if modifier == "light":
        return replace(shade, lightness=(min(focal + 0.05, 0.86), high + 0.2), saturation=(least * 0.6, most))
    if modifier == "pale":
        palest = most if math.isinf(least) else min(most, max(least * 1.8, 0.1))
        return replace(shade, lightness=(min(focal + 0.05, 0.86), high + 0.2), saturation=(least * 0.4, palest))
    purest = least * 1.4 if math.isfinite(most) or math.isinf(least) else max(least * 1.4, 0.12)
    return replace(shade, lightness=(max(low, focal - 0.18), high + 0.2), saturation=(purest, most * 1.6))


def understand(words: Sequence[str]) -> tuple[tuple[Term, ...], tuple[str, ...], str]:
    """Sort a query's words.

    Args:
        words: Lower-case words without punctuation.

    Returns:
        The known words, and those that are neither known nor stop words, each once, in order; and the name of the
        object itself: the words without those for places, motion and text, and without stop words at either end. "find
        the red car on the left" is about a "red car", "red" about a "red thing".
    """
    terms: dict[Term, None] = {}
    unknown: dict[str, None] = {}
    phrase: list[str] = []
    at = 0
    while at < len(words):
        term, taken = _longest_at(words, at)
        if term is not None:
            terms[term] = None
        elif words[at] not in STOP_WORDS:
            unknown[words[at]] = None
        if term is None or isinstance(term, ColourTerm | LightTerm | ObjectTerm):
            phrase += words[at : at + taken]
        at += taken
    phrase = _without_stop_words_at_the_ends(phrase)
    if phrase and not unknown and not any(isinstance(term, ObjectTerm) for term in terms):
        # A model matches a colour without a noun to anything, the ground as well.
        phrase.append("thing")
    return tuple(terms), tuple(unknown), " ".join(phrase)


def _longest_at(words: Sequence[str], at: int) -> tuple[Term | None, int]:
    """Return the term that starts at a word and its length in words; of a colour and an object, the longer one."""
    colour, of_colour = _colour_at(words, at)
    named, of_name = object_at(words, at)
    if named is not None and of_name > of_colour and (of_name > 1 or _single(words[at]) is None):
        return named, of_name
    return (colour, of_colour) if colour is not None else (_single(words[at]), 1)


def _without_stop_words_at_the_ends(words: list[str]) -> list[str]:
    telling = [at for at, word in enumerate(words) if word not in STOP_WORDS]
    return words[telling[0] : telling[-1] + 1] if telling else []


def _colour_at(words: Sequence[str], at: int) -> tuple[ColourTerm | None, int]:
    """Return the colour that starts at a word (modifier, name, family's name) and its length in words."""
    start = at
    modifier = None
    if words[at] in MODIFIERS and at + 1 < len(words):
        modifier = MODIFIERS[words[at]]
        at += 1
    name, taken = _colour_name(words, at)
    if name is None:
        return None, 0
    at += taken
    if at < len(words) and _canonical(words[at]) in COLOURS[name].kinds:
        at += 1
    shade = COLOURS[name]
    if modifier is None:
        return ColourTerm(name, shade), at - start
    return ColourTerm(f"{modifier} {name}", modified(shade, modifier)), at - start


def _colour_name(words: Sequence[str], at: int) -> tuple[str | None, int]:
    pair = " ".join(words[at : at + 2])
    if " " in pair and pair in COLOURS:
        return pair, 2
    name = _canonical(words[at])
    return (name, 1) if name in COLOURS else (None, 0)


def _canonical(word: str) -> str:
    return COLOUR_ALIASES.get(word, word)


def _single(word: str) -> Term | None:
    if word in LIGHT:
        return LightTerm(word, LIGHT[word])
    if word in MOTION:
        return MotionTerm(word, MOTION[word])
    if word in PLACES:
        return PlaceTerm(word, PLACES[word])
    return WordTerm("") if word in ANYTHING_WRITTEN else None
