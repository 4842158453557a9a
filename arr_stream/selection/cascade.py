"""Cascade: score regions first, then only the cells of the best ones.

An eighth of the places is scored, and hardly any place relevant to a query is lost. docs/how_it_works.md explains why
this saves places but no time, as scoring is cheap.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

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
        member: `[cells]` region of every cell, 0 to n - 1, row by row.
        sizes: `[n]` cells of each region.
    """

    hw: tuple[int, int]
    member: IntArray
    sizes: IntArray

    def nearness(self) -> FloatArray:
        """Return `[cells]`: 1 at the region's centroid, falling to 0 at its farthest cell."""
        y, x = np.divmod(np.arange(self.member.size), self.hw[1])
        mean_x, mean_y = (np.bincount(self.member, at) / self.sizes for at in (x, y))
        squared = (x - mean_x[self.member]) ** 2 + (y - mean_y[self.member]) ** 2
        farthest = np.full(len(self.sizes), 1e-9)
        np.maximum.at(farthest, self.member, squared)
        nearness: FloatArray = (1 - np.sqrt(squared / farthest[self.member])).astype(np.float32)
        return nearness


def regions_of_cells(cluster_of_cell: IntArray) -> Regions:
    """Return the regions, from the cluster id of every cell, `[gh, gw]`."""
    _, member, sizes = np.unique(cluster_of_cell.ravel(), return_inverse=True, return_counts=True)
    hw = (cluster_of_cell.shape[0], cluster_of_cell.shape[1])
    return Regions(hw, member.astype(np.int32), sizes.astype(np.int32))


def best_of_region(values: FloatArray, regions: Regions) -> FloatArray:
    """`[n]`: the highest value of any cell of each region."""
    best = np.full(len(regions.sizes), -np.inf, np.float32)
    np.maximum.at(best, regions.member, values)
    return best


def mean_of_region(values: FloatArray, regions: Regions) -> FloatArray:
    """`[n, C]`: means over each region of values of all cells, `[cells, C]`."""
    sums = np.stack([np.bincount(regions.member, column) for column in values.T], axis=1)
    means: FloatArray = (sums / regions.sizes[:, None]).astype(np.float32)
    return means


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
    rank = np.argsort(np.argsort(-region_score, kind="stable"))
    better = rank[regions.member]
    peak = float(relevance.max(initial=0.0))
    relevant = np.flatnonzero(allowed & (relevance > max(ALWAYS_RELEVANCE * peak, 1e-3)))
    # Of equally relevant cells those of the better region come first.
    relevant = relevant[np.lexsort((better[relevant], -relevance[relevant]))]
    drawn = np.flatnonzero(allowed & (edge_distance <= CULL_EDGE_DISTANCE))
    drawn = drawn[np.lexsort((-regions.nearness()[drawn], better[drawn]))]
    first = max(tokens, most - most // EXPLORE_SHARE)
    ranked = np.concatenate([relevant[:first], drawn, relevant[first:]])
    _, places = np.unique(ranked, return_index=True)
    chosen = ranked[np.sort(places)][:most]
    if len(chosen) < tokens:
        rest = np.setdiff1d(np.flatnonzero(allowed), chosen)
        rest = rest[np.argsort(better[rest], kind="stable")]
        chosen = np.concatenate([chosen, rest[: tokens - len(chosen)]])
    return np.sort(chosen).astype(np.int32)


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
) -> tuple[CellScores, BoolArray, int]:
    """Score the regions, then the cells that are worth it.

    Args:
        texture: The frame's channels.
        regions: The regions.
        relevance, figure, change, weights: See `cell_sample`.
        tokens: Cells to be chosen in the end.
        skip: `[gh, gw]`, cells that cannot be chosen.

    Returns:
        Scores of all cells; `[cells]` bool, cells scored one by one; and their number plus that of the regions.
    """
    table = to_numpy(cell_table(texture))
    all_cells, answered = cell_sample(table, relevance, figure, change, weights)
    # A region's means miss a small object inside it that matches the query.
    best = best_of_region(all_cells.relevance, regions)
    words = all_cells.words
    if words is not None:
        # 1 where the most relevant cell is relevant for words.
        words = (best_of_region(all_cells.relevance * words, regions) == best).astype(np.float32)
    of_regions = replace(
        all_cells,
        values=mean_of_region(table, regions),
        relevance=best,
        figure=best_of_region(figure.ravel(), regions),
        words=words,
        change=None if change is None else replace(change, cells=best_of_region(change.cells, regions)),
    )
    region_score, _ = balance_tensions(of_regions, answered, weights)
    # An eighth of the grid less the regions, or half as many again as the tokens if that is more.
    room = len(table) // SAVING - len(regions.sizes)
    most = room if room >= tokens else min(len(table), tokens + tokens // 2)
    cells = candidates(
        regions,
        region_score,
        all_cells.relevance,
        to_numpy(texture.cells([_EDGE_DISTANCE])[0]).ravel(),
        tokens=tokens,
        most=most,
        skip=None if skip is None else skip.ravel(),
    )
    best_score, by_scorer = balance_tensions(all_cells.at(cells), answered, weights)
    score = (region_score * 0.5)[regions.member]
    score[cells] = best_score
    scorer = np.full(len(score), SCORERS.index("coverage"), np.int32)
    scorer[cells] = by_scorer.argmax(axis=0)
    looked_at = np.zeros(len(score), bool)
    looked_at[cells] = True
    scores = CellScores(without_others(score, relevance), scorer, all_cells["saliency"], all_cells["gaze"])
    return scores, looked_at, min(len(score), len(cells) + len(regions.sizes))
