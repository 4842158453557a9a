"""Cascade: score regions first, then only the cells of the best ones.

An eighth of the places is scored, and hardly any place relevant to a query is lost. docs/how_it_works.md explains why
this saves places but no time, as scoring is cheap.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from arr_stream.config import ScoringSettings
from arr_stream.relevance.query_scorers import QueryRelevance
from arr_stream.relevance.scorers import (
    CellScores,
    Change,
    balance_tensions,
    cell_sample,
    cell_table,
    without_others,
)
from arr_stream.texture.array import Texture
from arr_stream.texture.arrays import to_numpy
from arr_stream.texture.layout import CHANNEL_INDEX
from arr_stream.types import SCORERS, BoolArray, FloatArray, IntArray

CULL_EDGE_DISTANCE = 0.05
"""Cells farther from any edge than this share of the diagonal are flat; only a query can make them worth scoring."""

ALWAYS_RELEVANCE = 0.02
"""Cells at least this relevant (relative to the best) are scored in any region, while there is room."""

SAVING = 8
"""Divisor of the number of cells that the cascade scores, regions included."""

EXPLORE_SHARE = 4
"""Divisor of the scored cells that are reserved for the best regions, even if more cells are relevant."""

_EDGE_DISTANCE = CHANNEL_INDEX["edge_distance"]


@dataclass(frozen=True, eq=False)
class Regions:
    """The regions of a frame in cells.

    Args:
        hw: Rows and columns of the grid.
        ids: `[n]` cluster ids that own at least one cell, ascending.
        member: `[cells]` index into `ids` for every cell, row by row.
        sizes: `[n]` cells of each region.
    """

    hw: tuple[int, int]
    ids: IntArray
    member: IntArray
    sizes: IntArray

    @cached_property
    def _squared(self) -> npt.NDArray[np.float64]:
        """`[cells]` squared distance from the mean of the region's cells."""
        y, x = np.divmod(np.arange(self.member.size), self.hw[1])
        mean_x = np.bincount(self.member, x) / self.sizes
        mean_y = np.bincount(self.member, y) / self.sizes
        squared: npt.NDArray[np.float64] = (x - mean_x[self.member]) ** 2 + (y - mean_y[self.member]) ** 2
        return squared

    @cached_property
    def seat(self) -> IntArray:
        """Cell of each region nearest to its centroid, `[n]`, hence always inside it."""
        order = np.lexsort((self._squared, self.member))
        seats: IntArray = order[np.cumsum(self.sizes) - self.sizes].astype(np.int32)
        return seats

    @cached_property
    def nearness(self) -> FloatArray:
        """`[cells]` 1 at the region's centroid, falling to 0 at its farthest cell."""
        farthest = np.full(len(self.sizes), 1e-9)
        np.maximum.at(farthest, self.member, self._squared)
        nearness: FloatArray = (1 - np.sqrt(self._squared / farthest[self.member])).astype(np.float32)
        return nearness


def regions_of_cells(cluster_of_cell: IntArray) -> Regions:
    """Return the regions, from the cluster id of every cell, `[gh, gw]`."""
    labels = cluster_of_cell.ravel()
    counts = np.bincount(labels)
    ids = np.flatnonzero(counts)
    member = (np.cumsum(counts > 0) - 1)[labels]
    hw = (cluster_of_cell.shape[0], cluster_of_cell.shape[1])
    return Regions(hw, ids.astype(np.int32), member.astype(np.int32), counts[ids].astype(np.int32))


def best_of_region(values: FloatArray, regions: Regions) -> FloatArray:
    """`[n]`: the highest value of any cell of each region."""
    best = np.full(len(regions.ids), -np.inf, np.float32)
    np.maximum.at(best, regions.member, values)
    return best


def mean_of_region(values: FloatArray, regions: Regions) -> FloatArray:
    """`[n, C]`: means over each region of values of all cells, `[cells, C]`."""
    sums = np.stack([np.bincount(regions.member, column, len(regions.ids)) for column in values.T], axis=1)
    means: FloatArray = (sums / regions.sizes[:, None]).astype(np.float32)
    return means


def scored_most(cells: int, regions: int, tokens: int) -> int:
    """Return the most cells to score one by one: an eighth of the grid less the regions, or half as many again as the
    tokens."""
    room = cells // SAVING - regions
    return room if room >= tokens else min(cells, tokens + tokens // 2)


def candidates(
    regions: Regions,
    region_score: FloatArray,
    relevance: FloatArray,
    edge_distance: FloatArray,
    *,
    tokens: int,
    most: int,
    skip: BoolArray | None = None,
) -> IntArray:
    """Return the cells worth scoring one by one, ascending: `tokens` to `most` if that many may be chosen.

    The most relevant cells come first; a quarter of the room is left for regions. Cells of the best region follow, then
    of the next, nearest to the centroid first. Flat cells are left out unless fewer than `tokens` are found.

    Args:
        regions: The regions.
        region_score: `[n]` score of each region.
        relevance, edge_distance: `[cells]`.
        tokens: Cells to be chosen in the end.
        most: Most cells to score; at least `tokens`.
        skip: `[cells]`, cells that cannot be chosen anyway.
    """
    allowed = np.ones(regions.member.size, bool) if skip is None else ~skip
    better = _rank(region_score)[regions.member]
    peak = float(relevance.max(initial=0.0))
    relevant = np.flatnonzero(allowed & (relevance > max(ALWAYS_RELEVANCE * peak, 1e-3)))
    # Of equally relevant cells those of the better region come first.
    relevant = relevant[np.lexsort((better[relevant], -relevance[relevant]))]
    drawn = np.flatnonzero(allowed & (edge_distance <= CULL_EDGE_DISTANCE))
    drawn = drawn[np.lexsort((-regions.nearness[drawn], better[drawn]))]
    chosen = np.zeros(regions.member.size, bool)
    chosen[relevant[: max(tokens, most - most // EXPLORE_SHARE)]] = True
    for ranked in (drawn, relevant):
        new = ranked[~chosen[ranked]]
        chosen[new[: most - int(chosen.sum())]] = True
    missing = tokens - int(chosen.sum())
    if missing > 0:
        rest = np.flatnonzero(allowed & ~chosen)
        chosen[rest[np.argsort(better[rest], kind="stable")[:missing]]] = True
    return np.flatnonzero(chosen).astype(np.int32)


def _rank(score: FloatArray) -> IntArray:
    """Return the rank of each, the best 0."""
    rank = np.empty(len(score), np.int32)
    rank[np.argsort(-score, kind="stable")] = np.arange(len(score), dtype=np.int32)
    return rank


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
    texture: Texture,
    regions: Regions,
    relevance: QueryRelevance,
    figure: FloatArray,
    change: Change | None,
    weights: ScoringSettings,
    *,
    tokens: int,
    skip: BoolArray | None = None,
) -> CascadeScores:
    """Score the regions, then the cells that are worth it.

    Args:
        texture: The frame's channels.
        regions: The regions.
        relevance, figure, change, weights: See `cell_sample`.
        tokens: Cells to be chosen in the end.
        skip: `[gh, gw]`, cells that cannot be chosen.
    """
    table = to_numpy(cell_table(texture))
    all_cells, answered = cell_sample(table, relevance, figure, change, weights)
    # A region's means miss a small object inside it that matches the query.
    best = best_of_region(all_cells.relevance, regions)
    of_regions = replace(
        all_cells,
        values=mean_of_region(table, regions),
        relevance=best,
        figure=best_of_region(figure.ravel(), regions),
        words=None
        if all_cells.words is None
        # 1 where the most relevant cell is relevant for words.
        else (best_of_region(all_cells.relevance * all_cells.words, regions) == best).astype(np.float32),
        change=None if change is None else replace(change, cells=best_of_region(change.cells, regions)),
    )
    region_score = balance_tensions(of_regions, answered, weights).score
    cells = candidates(
        regions,
        region_score,
        all_cells.relevance,
        to_numpy(texture.cells([_EDGE_DISTANCE])[0]).ravel(),
        tokens=tokens,
        most=scored_most(len(table), len(regions.ids), tokens),
        skip=None if skip is None else skip.ravel(),
    )
    balance = balance_tensions(all_cells.at(cells), answered, weights)
    score = (region_score * 0.5)[regions.member]
    score[cells] = balance.score
    scorer = np.full(len(score), SCORERS.index("coverage"), np.int32)
    scorer[cells] = balance.by_scorer.argmax(axis=0)
    looked_at = np.zeros(len(score), bool)
    looked_at[cells] = True
    scores = CellScores(without_others(score, relevance), scorer, all_cells["saliency"], all_cells["gaze"])
    return CascadeScores(scores, looked_at, min(len(score), len(cells) + len(regions.ids)))
