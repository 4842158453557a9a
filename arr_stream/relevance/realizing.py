"""From a texture and what is asked to the cells of one frame: scoring, cascade, allocation, reasons."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from arr_stream.config import SelectionSettings
from arr_stream.relevance.asking import Asked
from arr_stream.relevance.attending import Allocation, allocate_tokens
from arr_stream.relevance.balancing import balance_tensions
from arr_stream.relevance.knowing import SCORED_CHANNELS, Sample
from arr_stream.selection.cascade import Regions, best_of_region, candidates, regions_of_cells
from arr_stream.selection.strategies import CANONICAL_SHARE, choose_by_region, split_regions
from arr_stream.texture.array import CELL_LEVEL, Texture
from arr_stream.texture.layout import CHANNEL_INDEX
from arr_stream.types import SCORERS, FloatArray, Grid, IntArray

CASCADE_FROM_CELLS = 1024
"""Grids up to this size are scored whole where the cascade is left to choose: at 405 cells looking at regions first
costs 0.35 ms, and scoring every cell 0.1 ms."""

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
    tokens: int,
    skip: npt.NDArray[np.bool_] | None = None,
) -> Realized:
    """Choose the cells of one frame.

    Args:
        texture: The frame's channels.
        grid: Its cells.
        asked: Relevance to the queries.
        settings: Strategy, cascade, levels of detail.
        tokens: Cells to choose.
        skip: `[gh, gw]`, cells that must not be chosen (the model has them already).
    """
    cascade = settings.cascade == "on" or (settings.cascade == "auto" and grid.cells > CASCADE_FROM_CELLS)
    regions = _regions(texture, settings, tokens) if cascade or settings.strategy != "topk" else None
    relevance = asked.combined.ravel()
    table = texture.mip(CELL_LEVEL, SCORED_CHANNELS).reshape(len(SCORED_CHANNELS), -1).T
    answered = float(relevance.max(initial=0.0))
    if cascade and regions is not None:
        # At its centroid a region shows what it is made of, but not a small thing inside it that the query wants.
        asked_of_region = best_of_region(relevance, regions)
        region_score, _ = _score(table, asked_of_region, regions.seat, answered)
        edge_distance = table[:, _EDGE_DISTANCE].cpu().numpy()
        scored = candidates(regions, region_score, relevance, edge_distance, keep=settings.cascade_keep, tokens=tokens)
        score = (region_score * 0.5)[regions.member]
        score[scored], by_scorer = _score(table, relevance[scored], scored, answered)
    else:
        scored = np.arange(grid.cells, dtype=np.int32)
        score, by_scorer = _score(table, relevance, None, answered)
    score = score.reshape(grid.rows, grid.columns)
    if settings.strategy == "topk" or regions is None:
        chosen = _choose_topk(score, scored, settings, tokens, skip)
    else:
        chosen = _choose_by_region(score, regions, asked, table, settings, tokens, skip)
    scorer = _reasons(chosen, scored, by_scorer, grid)
    return Realized(chosen, score, scorer, len(scored))


def _regions(texture: Texture, settings: SelectionSettings, tokens: int) -> Regions:
    cluster_of_cell = texture.mip(CELL_LEVEL, [_CLUSTER])[0].cpu().numpy().astype(np.int32)
    if settings.strategy == "canonical":
        cluster_of_cell = split_regions(cluster_of_cell, max(1, tokens // CANONICAL_SHARE))
    return regions_of_cells(cluster_of_cell)


def _score(
    table: torch.Tensor, relevance: FloatArray, cells: IntArray | None, answered: float
) -> tuple[FloatArray, FloatArray]:
    """`[N]` scores of the given cells (all for None) and `[3, N]` what they are made of."""
    values = table if cells is None else table[torch.from_numpy(cells).long()]
    sample = Sample(values, torch.from_numpy(relevance).to(values.device))
    balance = balance_tensions(sample, answered)
    return balance.score.cpu().numpy(), balance.by_scorer.cpu().numpy()


def _choose_topk(
    score: FloatArray,
    scored: IntArray,
    settings: SelectionSettings,
    tokens: int,
    skip: npt.NDArray[np.bool_] | None,
) -> Allocation:
    eligible = np.zeros(score.shape, bool)
    eligible.ravel()[scored] = True
    if skip is not None:
        eligible &= ~skip
    coarse_most = int(settings.context_share * tokens) if settings.levels else 0
    return allocate_tokens(score, eligible, tokens, coarse_most)


def _choose_by_region(
    score: FloatArray,
    regions: Regions,
    asked: Asked,
    table: torch.Tensor,
    settings: SelectionSettings,
    tokens: int,
    skip: npt.NDArray[np.bool_] | None,
) -> Allocation:
    saliency = table[:, _SALIENCY].cpu().numpy()
    mean_saliency = np.bincount(regions.member, saliency) / regions.sizes
    importance = 0.6 * best_of_region(asked.combined.ravel(), regions) + 0.4 * mean_saliency
    chosen = choose_by_region(settings.strategy, score, regions, importance.astype(np.float32), tokens)
    if skip is None:
        return chosen
    keep = ~skip[chosen.rows, chosen.columns]
    return Allocation(chosen.rows[keep], chosen.columns[keep], chosen.level[keep], chosen.score[keep])


def _reasons(chosen: Allocation, scored: IntArray, by_scorer: FloatArray, grid: Grid) -> IntArray:
    """Which way of knowing spoke loudest for each chosen cell."""
    loudest = np.full(grid.cells, SCORERS.index("coverage"), np.int32)
    loudest[scored] = by_scorer.argmax(axis=0)
    reasons: IntArray = loudest[chosen.rows * grid.columns + chosen.columns]
    reasons[chosen.level > 0] = SCORERS.index("context")
    return reasons
