"""Scores of a frame's cells, computed on the frame's device from the channels and the relevance to the queries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from arr_stream.config import ScoringSettings
from arr_stream.relevance.query_scorers import QueryRelevance
from arr_stream.relevance.scorers import SCORED_CHANNELS, Change, Sample, balance_tensions, claim
from arr_stream.texture.array import LazyPlane, Plane, Texture
from arr_stream.texture.arrays import Array, as_float, namespace
from arr_stream.texture.layout import CHANNEL_INDEX

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


def cell_table(texture: Texture) -> Array:
    """Return `[cells, len(SCORED_CHANNELS)]`: the channels that scorers read, averaged over each cell."""
    return texture.cells(SCORED_CHANNELS).reshape(len(SCORED_CHANNELS), -1).T


def cell_sample(
    table: Array, relevance: QueryRelevance, figure: Array, change: Change | None, weights: ScoringSettings
) -> tuple[Sample, Array | float]:
    """Return all cells as scorers take them, and the best answer of any, to the question or to another claim.

    Args:
        table: As `cell_table` returns it.
        relevance: To the queries.
        figure: `[gh, gw]` in [0, 1], confidence that each cell belongs to a moving object.
        change: Evidence of change in the cells, or None.
        weights: Of the scorers.
    """
    asked, moving = relevance.followed(figure, change).reshape(-1), figure.reshape(-1)
    words = None if relevance.word_cells is None else as_float(relevance.word_cells).reshape(-1)
    answered, moved = namespace(asked).maximum(asked, claim(Sample(table, asked), weights)).max(), moving.max()
    if isinstance(asked, np.ndarray):
        answered, moved = float(answered), float(moved)
    return Sample(table, asked, moving, moved, words, change), answered


def score_cells(
    planes: Mapping[int, Plane | LazyPlane],
    texture_wh: tuple[int, int],
    relevance: QueryRelevance,
    figure: Array,
    change: Change | None,
    weights: ScoringSettings,
) -> CellScores:
    """Score every cell; see `cell_sample`. `planes` include `SCORED_CHANNELS`."""
    table = cell_table(Texture(texture_wh, dict(planes)))
    balance = balance_tensions(*cell_sample(table, relevance, figure, change, weights), weights)
    scorer = namespace(table).argmax(balance.by_scorer, 0)
    return CellScores(without_others(balance.score, relevance), scorer, table[:, SALIENCY], table[:, GAZE])


def without_others(score: Array, relevance: QueryRelevance) -> Array:
    """Return scores `[cells]`, lowered where objects were detected that no query names."""
    return score if relevance.others is None else score * (1 - _OTHERS * relevance.others.reshape(-1))
