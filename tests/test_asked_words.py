"""Words that are asked for: cells that are full of them first, those that hold the end of one last, still or moving."""

from __future__ import annotations

import numpy as np
import pytest

from arr_stream.config import Settings
from arr_stream.keyframes.base import KeyframeInput, TextFinding
from arr_stream.keyframes.generate import InStepKeyframes, StandardGenerator
from arr_stream.keyframes.text.regions import finding
from arr_stream.pipeline import Pipeline
from arr_stream.relevance.query import parse_text
from arr_stream.types import Frame, TextRegion

WH = (384, 256)


class _Signs:
    """Reads a word 16 px high in the middle of cell (2, 3), and one that fills (5, 8) and reaches into (5, 9)."""

    name = "signs"

    def find(self, picture: KeyframeInput) -> TextFinding:
        return finding(picture, [_region(96, 72, 128, 88), _region(256, 160, 292, 192)])


def _region(x0: float, y0: float, x1: float, y1: float) -> TextRegion:
    corners = ((x0, y0), (x1, y0), (x1, y1), (x0, y1))
    return TextRegion(tuple((x / WH[0], y / WH[1]) for x, y in corners), 0.9, "OPEN")


def _chosen(query: str, tokens: int) -> list[tuple[int, int]]:
    settings = Settings().with_values({"selection.budget": str(tokens)})
    pipeline = Pipeline(settings, InStepKeyframes(StandardGenerator(text_finder=_Signs())), [parse_text(query)])
    patches = pipeline.step(Frame(0, 0.0, np.full((WH[1], WH[0], 3), 128, np.uint8)))
    return list(zip(patches.rows.tolist(), patches.columns.tolist(), strict=True))


@pytest.mark.parametrize("query", ["text", '"open"'])
def test_a_cell_full_of_words_comes_before_one_with_a_line_and_before_an_end(query: str) -> None:
    assert _chosen(query, 2) == [(5, 8), (2, 3)]
    assert (5, 9) in _chosen(query, 5)
