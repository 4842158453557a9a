"""From everything to a few: score regions first, then only the cells of the best ones."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from arr_stream.types import FloatArray, IntArray

Mask = npt.NDArray[np.bool_]

CULL_EDGE_DISTANCE = 0.05
"""Cells farther from any edge than this share of the diagonal are flat: nothing to see unless the query wants them."""

DRAW_PER_REGION = 50
"""Most cells taken from one region, those nearest to its centroid first."""

ALWAYS_RELEVANCE = 0.02
"""Cells at least this relevant (relative to the best) are looked at whatever region they are in."""


@dataclass(frozen=True, slots=True, eq=False)
class Regions:
    """The regions of a frame in cells.

    Args:
        ids: `[n]` cluster ids that own at least one cell, ascending.
        member: `[cells]` index into `ids` for every cell, row by row.
        seat: `[n]` the cell of each region that lies nearest to its centroid, hence always inside it.
        nearness: `[cells]` 1 at the region's centroid, falling to 0 at its farthest cell.
        sizes: `[n]` cells of each region.
    """

    ids: IntArray
    member: IntArray
    seat: IntArray
    nearness: FloatArray
    sizes: IntArray


def regions_of_cells(cluster_of_cell: IntArray) -> Regions:
    """Regions from the cluster id of every cell, `[gh, gw]`."""
    labels = cluster_of_cell.ravel()
    counts = np.bincount(labels)
    ids = np.flatnonzero(counts)
    sizes = counts[ids]
    member = (np.cumsum(counts > 0) - 1)[labels]
    y, x = _coordinates(cluster_of_cell.shape)
    mean_x = np.bincount(member, x) / sizes
    mean_y = np.bincount(member, y) / sizes
    squared = (x - mean_x[member]) ** 2 + (y - mean_y[member]) ** 2
    order = np.lexsort((squared, member))
    first = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    farthest = np.maximum(squared[order[np.cumsum(sizes) - 1]], 1e-9)
    nearness = 1 - np.sqrt(squared / farthest[member])
    return Regions(
        ids.astype(np.int32),
        member.astype(np.int32),
        order[first].astype(np.int32),
        nearness.astype(np.float32),
        sizes.astype(np.int32),
    )


@lru_cache(maxsize=8)
def _coordinates(hw: tuple[int, ...]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Row and column of every cell, row by row."""
    y, x = np.divmod(np.arange(hw[0] * hw[1]), hw[1])
    return y, x


def best_of_region(values: FloatArray, regions: Regions) -> FloatArray:
    """`[n]`: the highest value of any cell of each region."""
    best = np.full(len(regions.ids), -np.inf, np.float32)
    np.maximum.at(best, regions.member, values)
    return best


def candidates(
    regions: Regions,
    region_score: FloatArray,
    relevance: FloatArray,
    edge_distance: FloatArray,
    *,
    keep: int,
    tokens: int,
) -> IntArray:
    """Cells worth scoring one by one.

    The best `keep` regions stay, and more as long as they hold fewer than twice the cells that will be chosen. Of
    each, at most `DRAW_PER_REGION` cells nearest to the centroid; flat cells are culled unless they are relevant.
    Cells that carried relevance already points at are always among them.

    Args:
        regions: The regions.
        region_score: `[n]` score of each region.
        relevance, edge_distance: `[cells]`.
        keep: Regions to keep at least.
        tokens: Cells to be chosen in the end.

    Returns:
        Ascending cell indices, at least `tokens` of them.
    """
    order = np.argsort(-region_score, kind="stable")
    held = np.cumsum(regions.sizes[order])
    enough = int(np.searchsorted(held, 2 * tokens)) + 1
    kept = np.zeros(len(order), bool)
    kept[order[: max(keep, enough)]] = True
    cells = kept[regions.member] & _nearest_of_region(regions)
    peak = float(relevance.max(initial=0.0))
    relevant = relevance > max(ALWAYS_RELEVANCE * peak, 1e-3)
    chosen: Mask = (cells & (edge_distance <= CULL_EDGE_DISTANCE)) | relevant
    missing = tokens - int(chosen.sum())
    if missing > 0:
        rest = np.flatnonzero(~chosen)
        chosen[rest[np.argsort(-region_score[regions.member[rest]], kind="stable")[:missing]]] = True
    return np.flatnonzero(chosen).astype(np.int32)


def _nearest_of_region(regions: Regions) -> Mask:
    """The `DRAW_PER_REGION` cells of each region that lie nearest to its centroid."""
    if int(regions.sizes.max()) <= DRAW_PER_REGION:
        return np.ones(regions.member.size, bool)
    order = np.lexsort((-regions.nearness, regions.member))
    start = np.concatenate([[0], np.cumsum(regions.sizes)[:-1]])
    rank = np.empty(regions.member.size, np.int64)
    rank[order] = np.arange(regions.member.size) - start[regions.member[order]]
    return rank < DRAW_PER_REGION
