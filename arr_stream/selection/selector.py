"""Scores of a frame's cells, one step on the frame's device, and the selection among them under a token budget."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from arr_stream.config import ScoringSettings, SelectionSettings
from arr_stream.motion.flow import Flow
from arr_stream.motion.keyframe_results import carried_to_cells
from arr_stream.relevance.figure import Figure, see_figure
from arr_stream.relevance.kinds.base import QueryContext, QueryTask
from arr_stream.relevance.query_scorers import QueryRelevance, answer_queries
from arr_stream.relevance.scorers import CellScores, Change, score_cells
from arr_stream.selection.allocation import Allocation, allocate_tokens, with_finer
from arr_stream.selection.atlas import CANONICAL_EACH, choose_by_region, divide, region_importance
from arr_stream.selection.cascade import Regions, regions_of_cells, score_cascaded
from arr_stream.selection.spending import Offer
from arr_stream.texture.array import LazyPlane, Plane, Texture
from arr_stream.texture.arrays import Array, to_numpy
from arr_stream.texture.layout import CHANNEL_INDEX
from arr_stream.texture.pixels import cell_difference
from arr_stream.types import SCORERS, BoolArray, FloatArray, Grid, IntArray

_GAZE_SHARE = 1 / 3
"""Share of the tokens for the gaze point; half of it if a query finds something."""
_FAINTEST_ANSWER = 0.1
_FAINTEST_GAZE = 0.05
_WANTED = 0.3
"""Share of a query's highest relevance from which it claims a cell."""
_CLUSTER = CHANNEL_INDEX["cluster"]


@dataclass(frozen=True, slots=True, eq=False)
class CellValues:
    """Inputs of the selection, a few numbers per cell; on a device as well as on the host.

    Args:
        relevance: To the queries.
        figure: `[gh, gw]` in [0, 1], confidence that each cell belongs to a moving object.
        difference: `[gh, gw]` from the picture last sent to the model, in grey levels; None before the first.
        scores: Of all cells; None if regions are scored first.
        small_text: `[gh, gw]` share of each cell under text too small for the texture; None if no finer cells are
            available.
        change: Evidence of change in the cells; None if they are already scored.
    """

    relevance: QueryRelevance
    figure: Array
    difference: Array | None
    scores: CellScores | None
    small_text: Array | None
    change: Change | None


@dataclass(frozen=True, slots=True, eq=False)
class ScoringInputs:
    """Inputs of the scores of a frame's cells; see also `see_figure`.

    Args:
        context: Inputs of the queries' tasks, without the figure.
        planes: Inputs of the scores; None if regions are scored first.
        weights: Of the scorers.
        known, change: See `Background` and `motion_evidence`; `change` is `[H/8, W/8]`.
        sent: `[H/8, W/8]` lightness of the cells as sent to the model; None if no setting compares it.
        small_text: Text too small for the texture on an earlier frame, and the flow back to that frame.
    """

    figure: Figure
    context: QueryContext
    eighth: Array
    eighth_grey: Array
    detail: Array
    tasks: tuple[QueryTask, ...]
    planes: Mapping[int, Plane | LazyPlane] | None
    weights: ScoringSettings
    known: Array
    change: Array
    sent: Array | None
    small_text: tuple[Array, Flow] | None
    grid: Grid


@dataclass(frozen=True, slots=True, eq=False)
class ScoredFrame:
    """Inputs of the selection, and the state that the figure and the scorers keep."""

    figure: Figure
    states: tuple[Any, ...]
    values: CellValues


def change_of_cells(change: Array, known: Array, grid: Grid) -> Change:
    """Return the evidence of change for each cell; for the arguments see `motion_evidence`."""
    return Change.of(change, (grid.rows, grid.columns), known[0, 0])


def score_frame(inputs: ScoringInputs) -> ScoredFrame:
    """Compute motion, the answers to the queries and the scores of each cell."""
    context = inputs.context
    figure, moving = see_figure(inputs.figure, inputs.eighth, inputs.detail, context.eighth_motion, context.flow)
    context = replace(context, figure=moving)
    relevance, states = answer_queries(inputs.tasks, context, (inputs.grid.rows, inputs.grid.columns))
    change = change_of_cells(inputs.change, inputs.known, inputs.grid)
    scores = difference = small_text = None
    if inputs.planes is not None:
        scores = score_cells(inputs.planes, inputs.grid.texture_wh, relevance, moving, change, inputs.weights)
    if inputs.sent is not None:
        difference = cell_difference(inputs.eighth_grey, inputs.sent)
    if inputs.small_text is not None:
        small_text = carried_to_cells(*inputs.small_text)
    # The host needs the change only if it scores cells itself.
    left = change if inputs.planes is None else None
    return ScoredFrame(figure, states, CellValues(relevance, moving, difference, scores, small_text, left))


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """The choice for one frame.

    Args:
        chosen: The cells.
        score: `[gh, gw]` final scores; a cell that the cascade skipped has half of its region's.
        scorer: `[N]` int32, index into `SCORERS`, the reason for each cell.
        cells_scored: Number of cells scored one by one.
    """

    chosen: Allocation
    score: FloatArray
    scorer: IntArray
    cells_scored: int


def select_cells(
    texture: Texture,
    grid: Grid,
    values: CellValues,
    settings: SelectionSettings,
    weights: ScoringSettings,
    tokens: int,
    *,
    skip: BoolArray | None = None,
    offer: Offer | None = None,
) -> Choice:
    """Choose the cells of one frame.

    Args:
        texture: The frame's channels.
        grid: Its cells.
        values: Scores, relevance and evidence of the cells, on the host.
        settings: Strategy, levels of detail.
        weights: Of the scorers.
        tokens: Most tokens of the cells chosen.
        skip: `[gh, gw]`, cells that must not be chosen, since the model has them.
        offer: Tokens that the budget over time grants, and the cells that it grants them to; None for all.
    """
    relevance, scores = values.relevance, values.scores
    asked = relevance.combined.ravel()
    eligible = np.ones((grid.rows, grid.columns), bool) if skip is None else ~skip
    allowed, cells_scored = eligible, grid.cells
    regions = None
    if scores is None:
        saliency = to_numpy(texture.cells([CHANNEL_INDEX["saliency"]])[0]).ravel()
        regions = _regions(texture, settings, tokens, asked, saliency)
        evidence = relevance, values.figure, values.change
        scores, looked_at, cells_scored = score_cascaded(texture, regions, *evidence, weights, tokens=tokens, skip=skip)
        allowed = eligible & looked_at.reshape(eligible.shape)
    else:
        saliency = scores.saliency
        if settings.strategy != "topk":
            regions = _regions(texture, settings, tokens, asked, saliency)
    score, for_query = share_among_queries(scores.score.reshape(allowed.shape), relevance, allowed, tokens)
    gaze_share = _GAZE_SHARE / (1 + float(asked.max()))
    score, for_gaze = share_with_gaze(score, scores.gaze.reshape(allowed.shape), allowed, gaze_share, tokens)
    coarse_most = int(settings.context_share * tokens)
    if offer is not None:
        wanted, tokens = offer.wanted(score), offer.tokens
        eligible, allowed = eligible & wanted, allowed & wanted
        coarse_most = coarse_most if offer.whole else 0
    if settings.strategy == "topk" or regions is None:
        chosen = allocate_tokens(score, allowed, tokens, coarse_most)
    else:
        importance = region_importance(regions, asked, saliency)
        # Each region has a number of cells, so there are no other levels of detail.
        chosen = choose_by_region(settings.strategy, score, regions, importance, tokens, eligible)
    if values.small_text is not None and settings.strategy == "topk":
        chosen = with_finer(chosen, values.small_text, tokens, settings.fine_share)
    reasons: IntArray = scores.scorer[chosen.rows * grid.columns + chosen.columns].astype(np.int32)
    reasons[for_query[chosen.rows, chosen.columns]] = SCORERS.index("participation")
    reasons[for_gaze[chosen.rows, chosen.columns]] = SCORERS.index("perspective")
    reasons[chosen.level > 0] = SCORERS.index("context")
    return Choice(chosen, score, reasons, cells_scored)


def share_among_queries(
    score: FloatArray, relevance: QueryRelevance, allowed: BoolArray, tokens: int
) -> tuple[FloatArray, BoolArray]:
    """Raise scores `[gh, gw]` so that each of several queries gets cells; return them and the raised cells.

    The queries that find something share the tokens equally, each among the cells where no other query is more
    relevant. Otherwise a large object of one query would take the tokens of a small one of another. Only `allowed`
    cells, `[gh, gw]`, are raised.
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
    """Raise scores `[gh, gw]` so that a share of the tokens goes to the gaze point; return them and the raised cells.

    `share` is that of a gaze point of this frame; it fades once the gaze has faded to half its strength. The raised
    scores fall with the distance from the gaze. Only `allowed` cells, `[gh, gw]`, are raised.
    """
    raised, gaze = np.zeros(allowed.shape, bool), gaze * allowed
    count = min(round(share * tokens * min(1.0, 2 * float(gaze.max()))), int((gaze > _FAINTEST_GAZE).sum()))
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
    """Return scores with the `raised` cells, in the order of `strength`, above the best other cell without a token."""
    count = int(raised.sum())
    if not count:
        return score
    others = np.sort(score[allowed & ~raised])[::-1]
    left = max(tokens - count, 0)
    passed = others[left] if len(others) > left else 0.0
    return np.where(raised, np.maximum(score, passed + (1 - passed) * strength / 2), score)


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
