"""Colours, light, motion and places: do the words fall where people put them?"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arr_stream.relevance.lexicon import (
    ANYTHING_WRITTEN,
    COLOUR_ALIASES,
    COLOURS,
    LIGHT,
    MODIFIERS,
    MOTION,
    PLACES,
    STOP_WORDS,
    ColourTerm,
    LightTerm,
    understand,
)
from arr_stream.relevance.membership import colour_table, text_relevance
from arr_stream.relevance.query import parse_text

# Prototypes of the xkcd survey and of CSS, not of the table under test.
_CHART = """
    red e50000 crimson 8c000f scarlet be0119 maroon 650021 burgundy 610023 rust a83c09 salmon ff796c coral fc5a50
    peach ffb07c orange f97306 amber feb308 yellow ffff14 gold dbb40c mustard ceb301 khaki aaa662 olive 6e750e
    lime aaff32 green 15b01a mint 9ffeb0 teal 029386 turquoise 06c2ac cyan 00ffff sky_blue 75bbfd azure 069af3
    blue 0343df navy 01153e indigo 380282 violet 9a0eea purple 7e1e9c lavender c79fef plum 580f41 magenta c20078
    hot_pink ff028d pink ff81c0 brown 653700 tan d1b26f beige e6daa6 cream ffffc2 black 000000 charcoal 343837
    grey 929591 silver c5c9c7 white ffffff
"""
CHART = {name.replace("_", " "): tuple(bytes.fromhex(rgb)) for name, rgb in re.findall(r"(\w+) (\w{6})", _CHART)}
# Colours far enough apart that nobody calls one by another's name.
BASIC = ("red", "orange", "yellow", "green", "cyan", "blue", "purple", "pink", "brown", "black", "grey", "white")


def _scores(word: str, rgb: object) -> np.ndarray:
    colours = np.asarray(rgb, np.uint8).reshape(1, -1, 3)
    return text_relevance(parse_text(word), colours)[0]


def _shaded(rgb: tuple[int, int, int], light: float) -> np.ndarray:
    """As the surface looks with that share of the light (the sRGB curve inverted)."""
    return np.rint(np.asarray(rgb, np.float64) * light ** (1 / 2.2)).astype(np.uint8)


def _washed(rgb: tuple[int, int, int], share: float) -> np.ndarray:
    value = np.asarray(rgb, np.float64)
    return np.rint(value * (1 - share) + value.mean() * share).astype(np.uint8)


@pytest.mark.parametrize("word", CHART)
def test_each_colour_word_finds_its_own_patch(word: str) -> None:
    own = float(_scores(word, CHART[word])[0])
    assert own >= 0.6
    strangers = [name for name in BASIC if name != word and _scores(name, CHART[word])[0] < 0.1]
    assert len(strangers) >= len(BASIC) - 4, "the prototype belongs to too many basic colours"
    assert _scores(word, [CHART[name] for name in strangers]).max() < own


@pytest.mark.parametrize("word", [word for word in BASIC if word not in ("black", "white", "grey", "orange")])
def test_shade_and_haze_leave_the_colour_its_name(word: str) -> None:
    # Orange in deep shade is brown to people too; black, white and grey are nothing but lightness.
    variants = [_shaded(CHART[word], 0.7), _washed(CHART[word], 0.2), _washed(tuple(_shaded(CHART[word], 0.8)), 0.1)]
    assert _scores(word, variants).min() > 0.5


@pytest.mark.parametrize("word", [name for name, shade in COLOURS.items() if shade.hue_degrees is not None])
def test_greys_have_no_hue(word: str) -> None:
    greys = np.repeat(np.arange(0, 256, dtype=np.uint8)[:, None], 3, axis=1)
    noise = np.random.default_rng(0).integers(-1, 2, greys.shape)
    assert _scores(word, greys).max() < 0.02
    assert _scores(word, np.clip(greys + noise, 0, 255)).max() < 0.15


def test_skin_and_wood_are_no_strong_orange_or_red() -> None:
    skin = [(224, 172, 140), (198, 134, 110), (141, 85, 66), (255, 219, 190)]
    wood = [(133, 94, 66), (101, 67, 33), (160, 120, 90)]
    assert _scores("orange", skin + wood).max() < 0.35
    assert _scores("red", skin + wood).max() < 0.1
    assert _scores("brown", wood).min() > 0.5


@pytest.mark.parametrize(
    ("words", "inside", "outside"),
    [
        ("light blue", (149, 208, 252), (0, 3, 91)),
        ("dark blue", (0, 3, 91), (149, 208, 252)),
        ("dark green", (3, 53, 0), (150, 249, 123)),
        ("light green", (150, 249, 123), (3, 53, 0)),
        ("dark red", (132, 0, 0), (255, 71, 76)),
        ("pale pink", (255, 207, 220), (255, 2, 141)),
        ("bright pink", (254, 1, 177), (255, 207, 220)),
        ("light grey", (216, 220, 214), (54, 55, 55)),
        ("dark grey", (54, 55, 55), (216, 220, 214)),
        ("light brown", (173, 129, 80), (52, 28, 2)),
    ],
)
def test_modifiers_choose_among_a_colours_shades(
    words: str, inside: tuple[int, int, int], outside: tuple[int, int, int]
) -> None:
    scores = _scores(words, [inside, outside])
    assert scores[0] > 0.5
    assert scores[1] < 0.1


def test_motion_words_read_the_motion_channel() -> None:
    rgb = np.zeros((4, 6, 3), np.uint8)
    motion = np.zeros((4, 6), np.float32)
    motion[:, 3:] = 1
    moving = text_relevance(parse_text("moving"), rgb, motion=motion)
    still = text_relevance(parse_text("parked"), rgb, motion=motion)
    np.testing.assert_array_equal(moving, motion)
    np.testing.assert_array_equal(still, 1 - motion)
    with pytest.raises(ValueError, match="no motion"):
        text_relevance(parse_text("moving"), rgb)


@pytest.mark.parametrize(
    ("words", "row", "column"),
    [
        ("left", 10, 1),
        ("right", 10, 38),
        ("top", 1, 20),
        ("bottom", 18, 20),
        ("centre", 10, 20),
        ("upper left", 1, 1),
        ("bottom right corner", 18, 38),
    ],
)
def test_places(words: str, row: int, column: int) -> None:
    place = text_relevance(parse_text(words), np.zeros((20, 40, 3), np.uint8))
    assert place[row, column] > 0.95
    assert place[19 - row, 39 - column] < 0.05 or words == "centre"
    assert np.abs(np.diff(place, axis=1)).max() < 0.35, "places have soft edges"


def test_nothing_red_means_near_zero_everywhere() -> None:
    from skimage import data

    for picture in (data.chelsea()[:, :, ::-1], np.full((30, 40, 3), 128, np.uint8)):
        rgb = np.ascontiguousarray(picture)
        assert text_relevance(parse_text("red"), rgb).mean() < 0.02


def test_orange_finds_the_astronauts_suit() -> None:
    from skimage import data

    picture = np.ascontiguousarray(data.astronaut()[::2, ::2])
    orange = text_relevance(parse_text("orange"), picture)
    suit = orange[125:220, 30:110]
    face = orange[35:90, 85:125]
    assert suit.mean() > 0.5
    assert face.mean() < 0.1
    assert orange[:100, 130:].mean() < 0.02
    for word in ("green", "cyan", "yellow", "blue"):
        assert text_relevance(parse_text(word), picture).mean() < 0.02


def test_each_word_has_one_meaning() -> None:
    kinds = [set(COLOURS) | set(COLOUR_ALIASES), set(MOTION), set(PLACES), set(STOP_WORDS)]
    light = set(LIGHT) | set(MODIFIERS)
    for at, kind in enumerate(kinds):
        for other in [*kinds[at + 1 :], light]:
            assert not kind & other
    assert set(COLOUR_ALIASES.values()) <= set(COLOURS)
    for shade in COLOURS.values():
        assert set(shade.kinds) <= set(COLOURS)


def test_the_documentation_lists_every_word() -> None:
    page = (Path(__file__).parents[1] / "docs" / "queries.md").read_text(encoding="utf-8").lower()
    table = page[page.index("### the words") : page.index("### the rules")]
    # "shadow(s)" stands for both; so do "left(most)" and its like.
    for ending in ("s", "most"):
        table = re.sub(rf"(\w+)\({ending}\)", rf"\1 \1{ending}", table)
    listed = set(re.findall(r"\w+", table))
    for word in [*COLOURS, *COLOUR_ALIASES, *MODIFIERS, *LIGHT, *MOTION, *PLACES, *ANYTHING_WRITTEN]:
        assert set(word.split()) <= listed, f"docs/queries.md does not list {word!r}"


@given(st.lists(st.sampled_from([*COLOURS, *MODIFIERS, *PLACES, *MOTION, *LIGHT, "navy", "car", "the"]), max_size=8))
def test_understanding_never_fails_and_stays_in_range(words: list[str]) -> None:
    terms, unknown, _ = understand([part for word in words for part in word.split()])
    assert set(unknown) <= {"car", *MODIFIERS, "sky", "hot"}
    table = colour_table(tuple(term for term in terms if isinstance(term, ColourTerm | LightTerm)))
    assert table.dtype == np.float32
    assert table.min() >= 0 and table.max() <= 1
