"""From a texture and what is asked to the cells of one frame: scoring, cascade, allocation, reasons."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from arr_stream.config import ScoringSettings, SelectionSettings
from arr_stream.relevance.balance import balance_tensions
from arr_stream.relevance.query_scorers import Asked
from arr_stream.relevance.scorers import SCORED_CHANNELS, Sample
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
from arr_stream.selection.quotas import CANONICAL_EACH
from arr_stream.selection.strategies import choose_by_region, choose_hybrid
from arr_stream.texture.array import CELL_LEVEL, Texture
from arr_stream.texture.layout import CHANNEL_INDEX
from arr_stream.types import SCORERS, FloatArray, Grid, IntArray

CASCADE_FROM_CELLS = 1024
"""Grids up to this size are scored whole where the cascade is left to choose: an eighth of them would be fewer cells
than a usual budget. On larger ones the cascade saves places but no time, see docs/how_it_works.md."""

_CLUSTER = CHANNEL_INDEX["cluster"]
_EDGE_DISTANCE = SCORED_CHANNELS.index(CHANNEL_INDEX["edge_distance"])
_SALIENCY = SCORED_CHANNELS.index(CHANNEL_INDEX["saliency"])


@dataclass(frozen=True, slots=True, eq=False)
class Realized:
    """The choice for one frame.

    Args:
        chosen: The cells.
        score: `[gh, gw]` final scores; a cell that the cascade passed over has its region's.
        scorer: `[N]` int32, index into `SCORERS`, why each cell was chosen.
        cells_scored: Cells scored one by one.
    """

    chosen: Allocation
    score: FloatArray
    scorer: IntArray
    cells_scored: int


def realize_relevance(
    texture: Texture,
    grid: Grid,
    asked: Asked,
    settings: SelectionSettings,
    weights: ScoringSettings,
    tokens: int,
    skip: npt.NDArray[np.bool_] | None = None,
    figure: FloatArray | None = None,
) -> Realized:
    """Choose the cells of one frame.

    Args:
        texture: The frame's channels.
        grid: Its cells.
        asked: Relevance to the queries.
        settings: Strategy, cascade, levels of detail.
        weights: Of the scorers.
        tokens: Cells to choose.
        skip: `[gh, gw]`, cells that must not be chosen (the model has them already).
        figure: `[gh, gw]` what belongs to something that moves, where that is known.
    """
    cascade = settings.cascade == "on" or (settings.cascade == "auto" and grid.cells > CASCADE_FROM_CELLS)
    relevance = asked.combined.ravel()
    moving = None if figure is None else figure.ravel()
    table = texture.mip(CELL_LEVEL, SCORED_CHANNELS).reshape(len(SCORED_CHANNELS), -1).T
    saliency = table[:, _SALIENCY].cpu().numpy()
    regions = None
    if cascade or settings.strategy != "topk":
        regions = _regions(texture, settings, tokens, relevance, saliency)
    if cascade and regions is not None:
        scores = score_cascaded(table, relevance, regions, weights, tokens=tokens, skip=skip, figure=moving)
    else:
        scores = score_all(table, relevance, weights, moving)
    score = scores.score.reshape(grid.rows, grid.columns)
    coarse_most = int(settings.context_share * tokens) if settings.levels else 0
    eligible = np.ones(score.shape, bool) if skip is None else ~skip
    if settings.strategy != "topk" and regions is not None:
        importance = region_importance(regions, relevance, saliency)
        if settings.strategy == "hybrid":
            share = settings.hybrid_grid_share
            chosen = choose_hybrid(
                score, regions, importance, tokens, eligible, grid_share=share, coarse_most=coarse_most
            )
        else:
            chosen = choose_by_region(settings.strategy, score, regions, importance, tokens, eligible)
    else:
        scored = np.zeros(grid.cells, bool)
        scored[scores.cells] = True
        chosen = allocate_tokens(score, eligible & scored.reshape(score.shape), tokens, coarse_most)
    return Realized(chosen, score, _reasons(chosen, scores, grid), scores.count)


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """Scores of a frame's cells.

    Args:
        score: `[cells]`; a cell that was passed over has half of its region's.
        cells: Ascending indices of those scored one by one.
        by_scorer: `[3, len(cells)]` what their scores are made of.
        count: Cells looked at, and regions.
    """

    score: FloatArray
    cells: IntArray
    by_scorer: FloatArray
    count: int


def score_all(
    table: torch.Tensor, relevance: FloatArray, weights: ScoringSettings, figure: FloatArray | None = None
) -> Scores:
    """Every cell's score, from `[cells, len(SCORED_CHANNELS)]` channels, `[cells]` relevance and figure."""
    frame = float(relevance.max(initial=0.0)), _most(figure)
    score, by_scorer = _score(table, relevance, figure, frame, weights)
    return Scores(score, np.arange(len(score), dtype=np.int32), by_scorer, len(score))


def score_cascaded(
    table: torch.Tensor,
    relevance: FloatArray,
    regions: Regions,
    weights: ScoringSettings,
    *,
    tokens: int,
    skip: npt.NDArray[np.bool_] | None = None,
    figure: FloatArray | None = None,
) -> Scores:
    """Scores of the regions, then of the cells that are worth it.

    Args:
        table: `[cells, len(SCORED_CHANNELS)]`.
        relevance: `[cells]`.
        regions: The regions.
        weights: Of the scorers.
        tokens: Cells to be chosen in the end.
        skip: Cells, of any shape, that cannot be chosen.
        figure: `[cells]`, where it is known.
    """
    frame = float(relevance.max(initial=0.0)), _most(figure)
    # A region's means show what it is made of, but not a small thing inside it that the query wants.
    region_score, _ = _score(
        mean_of_region(table, regions),
        best_of_region(relevance, regions),
        None if figure is None else best_of_region(figure, regions),
        frame,
        weights,
    )
    cells = candidates(
        regions,
        region_score,
        relevance,
        table[:, _EDGE_DISTANCE].cpu().numpy(),
        tokens=tokens,
        most=scored_most(len(relevance), len(regions.ids), tokens),
        skip=None if skip is None else skip.ravel(),
    )
    score = (region_score * 0.5)[regions.member]
    kept = table[torch.from_numpy(cells).long()]
    moving = None if figure is None else figure[cells]
    score[cells], by_scorer = _score(kept, relevance[cells], moving, frame, weights)
    return Scores(score, cells, by_scorer, min(len(score), len(cells) + len(regions.ids)))


def _regions(
    texture: Texture, settings: SelectionSettings, tokens: int, relevance: FloatArray, saliency: FloatArray
) -> Regions:
    cluster_of_cell = texture.mip(CELL_LEVEL, [_CLUSTER])[0].cpu().numpy().astype(np.int32)
    regions = regions_of_cells(cluster_of_cell)
    if settings.strategy != "canonical":
        return regions
    importance = region_importance(regions, relevance, saliency)
    labels = regions.member.reshape(cluster_of_cell.shape)
    return regions_of_cells(divide(labels, importance, max(1, tokens // CANONICAL_EACH), CANONICAL_EACH))


def _score(
    table: torch.Tensor,
    relevance: FloatArray,
    figure: FloatArray | None,
    frame: tuple[float, float],
    weights: ScoringSettings,
) -> tuple[FloatArray, FloatArray]:
    """`[N]` scores of the cells or regions of a table and `[3, N]` what they are made of.

    `frame` is the highest relevance and the highest figure anywhere on it.
    """
    answered, moved = frame
    moving = None if figure is None else torch.from_numpy(figure).to(table.device)
    sample = Sample(table, torch.from_numpy(relevance).to(table.device), moving, moved)
    balance = balance_tensions(sample, answered, weights)
    return balance.score.cpu().numpy(), balance.by_scorer.cpu().numpy()


def _most(figure: FloatArray | None) -> float:
    return 0.0 if figure is None else float(figure.max(initial=0.0))


def _reasons(chosen: Allocation, scores: Scores, grid: Grid) -> IntArray:
    """Which way of knowing spoke loudest for each chosen cell."""
    loudest = np.full(grid.cells, SCORERS.index("coverage"), np.int32)
    loudest[scores.cells] = scores.by_scorer.argmax(axis=0)
    reasons: IntArray = loudest[chosen.rows * grid.columns + chosen.columns]
    reasons[chosen.level > 0] = SCORERS.index("context")
    return reasons
