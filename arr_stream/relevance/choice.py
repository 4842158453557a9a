"""Selection of the cells of one frame from its texture and queries: scoring, cascade, allocation, reasons.

Cells are scored on the frame's device; the host selects from a few numbers per cell.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from arr_stream.config import ScoringSettings, SelectionSettings
from arr_stream.relevance.balance import Balance, balance_tensions
from arr_stream.relevance.query_scorers import QueryRelevance
from arr_stream.relevance.scorers import SCORED_CHANNELS, Change, Sample, claim
from arr_stream.selection.allocation import Allocation, allocate_tokens
from arr_stream.selection.atlas import region_importance
from arr_stream.selection.cascade import (
    Regions,
    best_of_region,
    candidates,
    mean_of_region,
    regions_of_cells,
    scored_most,
)
from arr_stream.selection.division import divide
from arr_stream.selection.finer import with_finer
from arr_stream.selection.quotas import CANONICAL_EACH
from arr_stream.selection.spending import Offer
from arr_stream.selection.strategies import choose_by_region, choose_hybrid
from arr_stream.texture.array import LazyPlane, Plane, Texture
from arr_stream.texture.arrays import Array, as_float, namespace, to_numpy
from arr_stream.texture.layout import CHANNEL_INDEX
from arr_stream.types import SCORERS, BoolArray, FloatArray, Grid, IntArray

_FAINTEST_ANSWER = 0.1
_FAINTEST_GAZE = 0.05
_WANTED = 0.3
"""Share of its highest relevance from which a query wants a cell."""
_OTHERS = 0.85
"""Share of its score that a cell loses where the detector finds another object with full certainty."""
_CLUSTER = CHANNEL_INDEX["cluster"]
_EDGE_DISTANCE = CHANNEL_INDEX["edge_distance"]
_GAZE = SCORED_CHANNELS.index(CHANNEL_INDEX["gaze"])
_SALIENCY = SCORED_CHANNELS.index(CHANNEL_INDEX["saliency"])
_WITH_LEVELS = ("topk", "hybrid")
"""Strategies that may use coarser levels of detail; the others give each region a fixed number of cells."""


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


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """The choice for one frame.

    Args:
        chosen: The cells.
        score: `[gh, gw]` final scores; a cell that the cascade skipped has half of its region's.
        scorer: `[N]` int32, index into `SCORERS`, why each cell was chosen.
        cells_scored: Cells scored one by one.
    """

    chosen: Allocation
    score: FloatArray
    scorer: IntArray
    cells_scored: int


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
        planes: Those that hold `SCORED_CHANNELS`, at least.
        texture_wh: Size in texture pixels.
        relevance: `[gh, gw]` in [0, 1].
        figure: `[gh, gw]` in [0, 1], how surely each cell belongs to what moves.
        weights: Of the scorers.
        word_cells: `[gh, gw]` bool, cells that are relevant for words; None for none.
        change: Evidence of change in the cells, or None.
    """
    table = cell_table(planes, texture_wh)
    words = None if word_cells is None else as_float(word_cells).reshape(-1)
    balance = balance_all(table, relevance.reshape(-1), weights, figure.reshape(-1), words, change)
    return CellScores(
        balance.score, namespace(relevance).argmax(balance.by_scorer, 0), table[:, _SALIENCY], table[:, _GAZE]
    )


def without_others(scores: CellScores, relevance: QueryRelevance) -> CellScores:
    """Return the scores, lowered where objects were detected that no query names."""
    if relevance.others is None:
        return scores
    return replace(scores, score=scores.score * (1 - _OTHERS * relevance.others.reshape(-1)))


def balance_all(
    table: Array,
    relevance: Array,
    weights: ScoringSettings,
    figure: Array | None = None,
    words: Array | None = None,
    change: Change | None = None,
) -> Balance:
    """Scores of all cells from `[cells, len(SCORED_CHANNELS)]` channels, and of `[cells]` as in `Sample`."""
    return _balance(table, relevance, figure, _frame(table, relevance, figure, weights), weights, words, change)


def realize_relevance(
    texture: Texture,
    grid: Grid,
    scores: CellScores | None,
    relevance: QueryRelevance,
    settings: SelectionSettings,
    weights: ScoringSettings,
    tokens: int,
    skip: BoolArray | None = None,
    figure: FloatArray | None = None,
    offer: Offer | None = None,
    small_text: FloatArray | None = None,
    change: Change | None = None,
) -> Choice:
    """Choose the cells of one frame.

    Args:
        texture: The frame's channels.
        grid: Its cells.
        scores: Of all cells; None to score regions first and then the cells that are worth it.
        relevance: Of the cells to the queries, on the host.
        settings: Strategy, levels of detail.
        weights: Of the scorers.
        tokens: Most tokens of the cells chosen.
        skip: `[gh, gw]`, cells that must not be chosen (the model has them already).
        figure: `[gh, gw]`, share of each cell that belongs to something that moves, if known; only for regions.
        offer: Tokens that the budget over time grants, and the cells that it grants them to; None for all.
        small_text: `[gh, gw]` in [0, 1], share of each cell that is under text too small for the texture; None without
            such text, or if the source has no higher resolution.
        change: Evidence of change in the cells, if known; only for regions.
    """
    flat, saliency = relevance.combined.ravel(), scores.saliency if scores is not None else None
    table = None
    if saliency is None:
        table = to_numpy(texture.cells(SCORED_CHANNELS)).reshape(len(SCORED_CHANNELS), -1).T
        saliency = table[:, _SALIENCY]
    regions = None
    if table is not None or settings.strategy != "topk":
        regions = _regions(texture, settings, tokens, flat, saliency)
    eligible = np.ones((grid.rows, grid.columns), bool) if skip is None else ~skip
    allowed, count = eligible, grid.cells
    if table is not None and regions is not None:
        moving = None if figure is None else figure.ravel()
        words = None if relevance.word_cells is None else relevance.word_cells.ravel().astype(np.float32)
        edge_distance = to_numpy(texture.cells([_EDGE_DISTANCE])[0]).ravel()
        passed = score_cascaded(
            table,
            flat if figure is None else relevance.followed(figure, change).ravel(),
            edge_distance,
            regions,
            weights,
            tokens=tokens,
            skip=skip,
            figure=moving,
            words=words,
            change=change,
        )
        scores, count = without_others(passed.scores, relevance), passed.count
        allowed = eligible & passed.looked_at.reshape(eligible.shape)
    assert scores is not None
    score, asked_for = share_among_queries(scores.score.reshape(allowed.shape), relevance, allowed, tokens)
    score, looked_at = share_with_gaze(
        score, scores.gaze.reshape(allowed.shape), allowed, settings.gaze_share / (1 + _most(flat)), tokens
    )
    coarse_most = int(settings.context_share * tokens)
    if offer is not None:
        wanted, tokens = offer.wanted(score), offer.tokens
        eligible, allowed = eligible & wanted, allowed & wanted
        coarse_most = coarse_most if offer.whole else 0
    if settings.strategy == "topk" or regions is None:
        chosen = allocate_tokens(score, allowed, tokens, coarse_most)
    else:
        importance = region_importance(regions, flat, saliency)
        if settings.strategy == "hybrid":
            share = settings.hybrid_grid_share
            chosen = choose_hybrid(
                score, regions, importance, tokens, eligible, grid_share=share, coarse_most=coarse_most
            )
        else:
            chosen = choose_by_region(settings.strategy, score, regions, importance, tokens, eligible)
    if small_text is not None and settings.strategy in _WITH_LEVELS:
        chosen = with_finer(chosen, small_text, tokens, settings.fine_share)
    reasons: IntArray = scores.scorer[chosen.rows * grid.columns + chosen.columns].astype(np.int32)
    reasons[asked_for[chosen.rows, chosen.columns]] = SCORERS.index("participation")
    reasons[looked_at[chosen.rows, chosen.columns]] = SCORERS.index("perspective")
    reasons[chosen.level > 0] = SCORERS.index("context")
    return Choice(chosen, score, reasons, count)


def share_among_queries(
    score: FloatArray, relevance: QueryRelevance, allowed: BoolArray, tokens: int
) -> tuple[FloatArray, BoolArray]:
    """Scores `[gh, gw]` by which each of several queries gets cells that it wants, and which cells that raised.

    The tokens are divided equally among the queries that find something; each raises as many of the cells that no other
    wants more, those first that it wants most. Without it a large thing that one query finds surely takes the tokens of
    a small one that another finds less surely.

    Args:
        score: `[gh, gw]` in [0, 1].
        relevance: Of the cells to the queries.
        allowed: `[gh, gw]`, cells that may be chosen.
        tokens: Cells to choose.
    """
    raised, strength = np.zeros(allowed.shape, bool), np.zeros_like(score)
    finding = np.flatnonzero(relevance.best >= _FAINTEST_ANSWER)
    if len(finding) < 2:
        return score, raised
    for query in finding:
        wanted = np.where((relevance.query == query) & allowed, relevance.combined / relevance.best[query], 0)
        cells = np.argsort(-wanted, axis=None, kind="stable")[: max(1, tokens // len(finding))]
        raised.flat[cells[wanted.flat[cells] >= _WANTED]] = True
        strength += wanted
    return _above_the_others(score, raised, strength, allowed, tokens), raised


def share_with_gaze(
    score: FloatArray, gaze: FloatArray, allowed: BoolArray, share: float, tokens: int
) -> tuple[FloatArray, BoolArray]:
    """Scores `[gh, gw]` by which a share of the tokens goes to where someone looks, and which cells that raised.

    The share fades with the gaze from half its strength on; within it the score falls with the distance from the gaze.

    Args:
        score, gaze: `[gh, gw]` in [0, 1].
        allowed: `[gh, gw]`, cells that may be chosen.
        share: Of the tokens, while someone looks at this very moment.
        tokens: Cells to choose.
    """
    raised = np.zeros(allowed.shape, bool)
    if not _most(gaze):
        return score, raised
    gaze = gaze * allowed
    count = min(round(share * tokens * min(1.0, 2 * _most(gaze))), int((gaze > _FAINTEST_GAZE).sum()))
    if count > 0:
        raised.flat[np.argsort(-gaze, axis=None, kind="stable")[:count]] = True
    return _above_the_others(score, raised, gaze, allowed, tokens), raised


def _above_the_others(
    score: FloatArray,
    raised: BoolArray,
    strength: FloatArray,
    allowed: BoolArray,
    tokens: int,
) -> FloatArray:
    """Scores `[gh, gw]` with those of the `raised` cells above the best of the others that is left without a token.

    Args:
        strength: `[gh, gw]` in [0, 1], the order among those raised.
    """
    count = int(raised.sum())
    if not count:
        return score
    others = np.sort(score[allowed & ~raised])[::-1]
    left = max(tokens - count, 0)
    passed = others[left] if len(others) > left else 0.0
    return np.where(raised, np.maximum(score, passed + (1 - passed) * strength / 2), score)


@dataclass(frozen=True, slots=True, eq=False)
class CascadeScores:
    """Result of the cascade that scores regions first.

    Args:
        scores: Of all cells.
        looked_at: `[cells]` bool, cells scored one by one.
        count: Number of cells scored one by one, plus regions.
    """

    scores: CellScores
    looked_at: BoolArray
    count: int


def score_cascaded(
    table: FloatArray,
    relevance: FloatArray,
    edge_distance: FloatArray,
    regions: Regions,
    weights: ScoringSettings,
    *,
    tokens: int,
    skip: BoolArray | None = None,
    figure: FloatArray | None = None,
    words: FloatArray | None = None,
    change: Change | None = None,
) -> CascadeScores:
    """Scores of the regions, then of the cells that are worth it.

    Args:
        table: `[cells, len(SCORED_CHANNELS)]`.
        relevance, edge_distance: `[cells]`.
        regions: The regions.
        weights: Of the scorers.
        tokens: Cells to be chosen in the end.
        skip: Cells, of any shape, that cannot be chosen.
        figure, words, change: Of the cells, where it is known, as in `Sample`.
    """
    frame = _frame(table, relevance, figure, weights)
    # A region's means describe the region, but miss a small thing inside it that the query wants.
    of_regions = _balance(
        mean_of_region(table, regions),
        best_of_region(relevance, regions),
        None if figure is None else best_of_region(figure, regions),
        frame,
        weights,
        None if words is None else _led_by_words(relevance, words, regions),
        None if change is None else replace(change, cells=best_of_region(change.cells, regions)),
    )
    region_score = of_regions.score
    cells = candidates(
        regions,
        region_score,
        relevance,
        edge_distance,
        tokens=tokens,
        most=scored_most(len(relevance), len(regions.ids), tokens),
        skip=None if skip is None else skip.ravel(),
    )
    moving, asked = (None if each is None else each[cells] for each in (figure, words))
    changed = None if change is None else replace(change, cells=change.cells[cells])
    balance = _balance(table[cells], relevance[cells], moving, frame, weights, asked, changed)
    score = (region_score * 0.5)[regions.member]
    score[cells] = balance.score
    scorer = np.full(len(score), SCORERS.index("coverage"), np.int32)
    scorer[cells] = balance.by_scorer.argmax(axis=0)
    looked_at = np.zeros(len(score), bool)
    looked_at[cells] = True
    scores = CellScores(score, scorer, table[:, _SALIENCY], table[:, _GAZE])
    return CascadeScores(scores, looked_at, min(len(score), len(cells) + len(regions.ids)))


def _led_by_words(relevance: FloatArray, words: FloatArray, regions: Regions) -> FloatArray:
    """Return, for each region, 1 where its most relevant cell is relevant for words, else 0."""
    led: FloatArray = (best_of_region(relevance * words, regions) == best_of_region(relevance, regions)).astype(
        np.float32
    )
    return led


def _regions(
    texture: Texture, settings: SelectionSettings, tokens: int, relevance: FloatArray, saliency: FloatArray
) -> Regions:
    cluster_of_cell = to_numpy(texture.cells([_CLUSTER])[0]).astype(np.int32)
    regions = regions_of_cells(cluster_of_cell)
    if settings.strategy != "canonical":
        return regions
    importance = region_importance(regions, relevance, saliency)
    labels = regions.member.reshape(cluster_of_cell.shape)
    return regions_of_cells(divide(labels, importance, max(1, tokens // CANONICAL_EACH), CANONICAL_EACH))


def _frame(
    table: Array, relevance: Array, figure: Array | None, weights: ScoringSettings
) -> tuple[float | Array, float | Array]:
    """Return the best answer of any cell, to the question or to another claim, and the highest figure."""
    asked = namespace(relevance).maximum(relevance, claim(Sample(table, relevance), weights))
    if isinstance(asked, np.ndarray):
        return _most(asked), 0.0 if figure is None else _most(figure)
    return asked.max(), 0.0 if figure is None else figure.max()


def _balance(
    table: Array,
    relevance: Array,
    figure: Array | None,
    frame: tuple[float | Array, float | Array],
    weights: ScoringSettings,
    words: Array | None = None,
    change: Change | None = None,
) -> Balance:
    """Score the cells or regions of a table; `frame` is the result of `_frame`."""
    return balance_tensions(Sample(table, relevance, figure, frame[1], words, change), frame[0], weights)


def _most(values: FloatArray) -> float:
    return float(values.max(initial=0.0))
