"""Scores of a frame's cells, computed on the frame's device from the channels and the relevance to the queries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from arr_stream.config import ScoringSettings
from arr_stream.relevance.query_scorers import QueryRelevance
from arr_stream.relevance.scorers import SCORED_CHANNELS, Change, Sample, balance_tensions, claim
from arr_stream.texture.array import LazyPlane, Plane, Texture
from arr_stream.texture.arrays import Array, as_float, namespace
from arr_stream.texture.layout import CHANNEL_INDEX
from arr_stream.types import FloatArray

_OTHERS = 0.85
"""Share of its score that a cell loses where the detector finds another object with full certainty."""
GAZE = SCORED_CHANNELS.index(CHANNEL_INDEX["gaze"])
SALIENCY = SCORED_CHANNELS.index(CHANNEL_INDEX["saliency"])


@dataclass(frozen=True, slots=True, eq=False)
class CellScores:
    """Scores of a frame's cells.

    Args:
        score: `[cells]` in [0, 1]; a cell that the cascade skipped has half of its region's.
        scorer: `[cells]` int, index into `SCORERS`: the scorer that contributes most.
        saliency, gaze: `[cells]` in [0, 1].
    """

    score: Array
    scorer: Array
    saliency: Array
    gaze: Array


def cell_table(planes: Mapping[int, Plane | LazyPlane], texture_wh: tuple[int, int]) -> Array:
    """Return `[cells, len(SCORED_CHANNELS)]`: the channels that scorers read, averaged over each cell."""
    texture = Texture(texture_wh, dict(planes))
    return texture.cells(SCORED_CHANNELS).reshape(len(SCORED_CHANNELS), -1).T


def score_cells(
    planes: Mapping[int, Plane | LazyPlane],
    texture_wh: tuple[int, int],
    relevance: Array,
    figure: Array,
    weights: ScoringSettings,
    word_cells: Array | None = None,
    change: Change | None = None,
) -> CellScores:
    """Score every cell.

    Args:
        planes: Planes that include `SCORED_CHANNELS`.
        texture_wh: Size in texture pixels.
        relevance: `[gh, gw]` in [0, 1].
        figure: `[gh, gw]` in [0, 1], confidence that each cell belongs to a moving object.
        weights: Of the scorers.
        word_cells: `[gh, gw]` bool, cells that are relevant for words; None for none.
        change: Evidence of change in the cells, or None.
    """
    table = cell_table(planes, texture_wh)
    words = None if word_cells is None else as_float(word_cells).reshape(-1)
    asked, moving = relevance.reshape(-1), figure.reshape(-1)
    answered, moved = frame_maxima(table, asked, moving, weights)
    balance = balance_tensions(Sample(table, asked, moving, moved, words, change), answered, weights)
    return CellScores(
        balance.score, namespace(relevance).argmax(balance.by_scorer, 0), table[:, SALIENCY], table[:, GAZE]
    )


def without_others(scores: CellScores, relevance: QueryRelevance) -> CellScores:
    """Return the scores, lowered where objects were detected that no query names."""
    if relevance.others is None:
        return scores
    return replace(scores, score=scores.score * (1 - _OTHERS * relevance.others.reshape(-1)))


def frame_maxima(
    table: Array, relevance: Array, figure: Array | None, weights: ScoringSettings
) -> tuple[float | Array, float | Array]:
    """Return the best answer of any cell, to the question or to another claim, and the highest figure."""
    asked = namespace(relevance).maximum(relevance, claim(Sample(table, relevance), weights))
    if isinstance(asked, np.ndarray):
        return most(asked), 0.0 if figure is None else most(figure)
    return asked.max(), 0.0 if figure is None else figure.max()


def most(values: FloatArray) -> float:
    return float(values.max(initial=0.0))
