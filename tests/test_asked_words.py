"""Words that are asked for: cells that are full of them first, those that hold the end of one last, still or moving."""

from __future__ import annotations

import numpy as np

from arr_stream.config import ScoringSettings, Settings
from arr_stream.keyframes.base import KeyframeInput, TextFinding
from arr_stream.keyframes.generate import InStepKeyframes, StandardGenerator
from arr_stream.keyframes.text.regions import finding
from arr_stream.pipeline import Pipeline
from arr_stream.relevance.balance import balance_tensions
from arr_stream.relevance.query import parse_text
from arr_stream.relevance.scorers import CHANNEL_NAMES, Sample
from arr_stream.types import Frame, TextRegion

WH = (384, 256)


class _Sign:
    """Reads a word of 48x32 px, from two fifths of one cell over a whole one to a tenth of the next."""

    name = "sign"

    def find(self, picture: KeyframeInput) -> TextFinding:
        x0, y0, x1, y1 = 83 / WH[0], 64 / WH[1], 131 / WH[0], 96 / WH[1]
        return finding(picture, [TextRegion(((x0, y0), (x1, y0), (x1, y1), (x0, y1)), 0.9, "OPEN")])


def _chosen(query: str, tokens: int) -> list[tuple[int, int]]:
    settings = Settings().with_values({"selection.budget": str(tokens), "selection.levels": False})
    pipeline = Pipeline(settings, InStepKeyframes(StandardGenerator(text_finder=_Sign())), [parse_text(query)])
    patches = pipeline.step(Frame(0, 0.0, np.full((WH[1], WH[0], 3), 128, np.uint8)))
    return list(zip(patches.rows.tolist(), patches.columns.tolist(), strict=True))


def test_a_cell_full_of_a_word_comes_first_and_its_ends_next() -> None:
    assert _chosen("text", 1) == [(2, 3)]
    assert _chosen('"open"', 2) == [(2, 3), (2, 2)]
    assert (2, 4) in _chosen('"open"', 6)


def test_what_moves_settles_a_colour_but_not_where_words_are() -> None:
    rng = np.random.default_rng(0)
    values = rng.random((50, len(CHANNEL_NAMES))).astype(np.float32)
    values[:, [CHANNEL_NAMES.index(name) for name in ("attention", "attention_history")]] = 0
    relevance, figure = rng.random((2, 50)).astype(np.float32)
    words = np.arange(50) % 2
    weights = ScoringSettings()
    by_question = balance_tensions(Sample(values, relevance, figure, 1.0, words.astype(np.float32)), 1.0, weights)
    share = by_question.by_scorer[2] / relevance
    assert np.allclose(share[words == 1], weights.commitment)
    assert np.ptp(share[words == 0]) > 0.1
