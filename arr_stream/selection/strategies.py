"""Four ways to spend the same tokens on the same scores.

`topk` takes the best cells wherever they are. The other three go by region: `proportional` shares the tokens out by
importance, `canonical` gives 91 regions three tokens each, so that every frame has the same shape, and `tiers` shows
every region, the important ones in detail.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from arr_stream.relevance.attending import Allocation
from arr_stream.selection.cascade import Regions
from arr_stream.types import FloatArray, IntArray

CANONICAL_SHARE = 3
"""Tokens of each canonical region: 91 regions of 3 make 273."""

TIERS = ((0.2, 15), (0.5, 5), (1.0, 1))
"""(share of regions by rank, tokens each): the first fifth 15, the next three tenths 5, the rest 1."""


def proportional_quota(regions: Regions, importance: FloatArray, tokens: int) -> IntArray:
    """Tokens by importance times size, no region above its cells; what is left over goes by largest remainder."""
    return _share_out(importance * regions.sizes, regions.sizes, tokens)


def tiers_quota(regions: Regions, importance: FloatArray, tokens: int) -> IntArray:
    """15, 5 or 1 tokens by rank of importance, scaled to the budget; every region is shown while tokens last."""
    order = np.argsort(-importance, kind="stable")
    rank = np.empty(len(order))
    rank[order] = (np.arange(len(order)) + 1) / len(order)
    wanted = np.select([rank <= share for share, _ in TIERS], [each for _, each in TIERS]).astype(np.float64)
    quota = np.zeros(len(order), np.int32)
    quota[order[:tokens]] = 1
    return quota + _share_out(wanted, regions.sizes - quota, tokens - int(quota.sum()))


def canonical_quota(regions: Regions, importance: FloatArray, tokens: int) -> IntArray:
    """Three tokens a region, most important first; what small regions cannot use goes to the rest by importance."""
    order = np.argsort(-importance, kind="stable")
    quota = np.zeros(len(order), np.int32)
    quota[order[: max(1, tokens // CANONICAL_SHARE)]] = CANONICAL_SHARE
    quota = np.minimum(quota, regions.sizes).astype(np.int32)
    left = tokens - int(quota.sum())
    if left < 0:
        quota[order[0]] += left
        left = 0
    return quota + _share_out(importance * regions.sizes, regions.sizes - quota, left)


QUOTAS: dict[str, Callable[[Regions, FloatArray, int], IntArray]] = {
    "proportional": proportional_quota,
    "canonical": canonical_quota,
    "tiers": tiers_quota,
}


def choose_by_region(
    strategy: str, score: FloatArray, regions: Regions, importance: FloatArray, tokens: int
) -> Allocation:
    """The best cells of each region up to its quota.

    Args:
        strategy: A key of `QUOTAS`.
        score: `[gh, gw]` in [0, 1].
        regions: The frame's regions.
        importance: `[n]` of each region, at least 0.
        tokens: Cells to choose.
    """
    quota = QUOTAS[strategy](regions, importance, tokens)
    flat = score.ravel()
    order = np.lexsort((-flat, regions.member))
    start = np.concatenate([[0], np.cumsum(regions.sizes)[:-1]])
    rank = np.arange(len(order)) - start[regions.member[order]]
    chosen = order[rank < quota[regions.member[order]]]
    chosen = chosen[np.argsort(-flat[chosen], kind="stable")].astype(np.int32)
    columns = score.shape[1]
    return Allocation(chosen // columns, chosen % columns, np.zeros_like(chosen), flat[chosen])


def split_regions(cluster_of_cell: IntArray, count: int) -> IntArray:
    """Halve the largest regions along their longer side until there are `count` (or one a cell).

    Args:
        cluster_of_cell: `[gh, gw]` ids.
        count: Regions wanted at least.

    Returns:
        `[gh, gw]` ids; regions that were halved get new ones.
    """
    labels = np.unique(cluster_of_cell, return_inverse=True)[1].reshape(cluster_of_cell.shape).astype(np.int32)
    sizes = np.bincount(labels.ravel()).tolist()
    target = min(count, labels.size)
    while len(sizes) < target:
        largest = int(np.argmax(sizes))
        rows, columns = np.nonzero(labels == largest)
        along = rows if np.ptp(rows) > np.ptp(columns) else columns
        half = np.argsort(along, kind="stable")[len(along) // 2 :]
        labels[rows[half], columns[half]] = len(sizes)
        sizes[largest] -= len(half)
        sizes.append(len(half))
    return labels


def _share_out(weight: npt.NDArray[np.floating], most: IntArray, tokens: int) -> IntArray:
    """Whole tokens in proportion to `weight`, none above `most`, by largest remainder; ties go to the first."""
    quota = np.zeros(len(weight), np.int32)
    weight = np.maximum(np.asarray(weight, np.float64), 1e-12)
    left = min(tokens, int(most.sum()))
    while left > 0:
        open_ = quota < most
        ideal = np.where(open_, weight, 0) / weight[open_].sum() * left
        whole = np.minimum(np.floor(ideal), most - quota).astype(np.int32)
        if not whole.any():
            remainder = np.argsort(-np.where(open_, ideal, -1), kind="stable")[:left]
            whole[remainder[open_[remainder]]] = 1
        quota += whole
        left -= int(whole.sum())
    return quota
