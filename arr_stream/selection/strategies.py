"""Strategies: ways to spend the same tokens on the same scores.

`topk` takes the best cells of the frame (`selection.allocation`). The others divide the tokens among regions:
`proportional` by importance, `canonical` three tokens to each of 91 regions, so that every frame has the same form,
and `tiers` some to every region and more to the important ones. With one region a cell, all of them equal `topk`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from arr_stream.selection.allocation import Allocation
from arr_stream.selection.cascade import Regions, best_of_region
from arr_stream.types import BoolArray, FloatArray, IntArray

CANONICAL_EACH = 3
"""Tokens of each region in the canonical form."""

TIERS = ((0.2, 15), (0.5, 5), (1.0, 1))
"""(share of regions by rank, tokens each): the first fifth 15, the next three tenths 5, the rest 1."""

RELEVANCE_WEIGHT, SALIENCY_WEIGHT = 0.6, 0.4
"""A region's importance: its most relevant cell, and its mean saliency."""


def region_importance(regions: Regions, relevance: FloatArray, saliency: FloatArray) -> FloatArray:
    """`[n]`: 0.6 of the highest relevance of a region's cells and 0.4 of their mean saliency (both `[cells]`)."""
    mean = np.bincount(regions.member, saliency, len(regions.sizes)) / regions.sizes
    importance = RELEVANCE_WEIGHT * best_of_region(relevance, regions) + SALIENCY_WEIGHT * mean
    return importance.astype(np.float32)


def proportional_quota(sizes: IntArray, importance: FloatArray, tokens: int) -> IntArray:
    """Divide tokens by importance (`[n]`, at least 0) times size (`[n]` cells of each region).

    Like the other quotas, it is at most a region's size, and in sum the budget, or the number of cells if smaller.
    """
    return share_out(np.maximum(importance, 1e-9) * sizes, sizes, tokens)


def fixed_quota(sizes: IntArray, importance: FloatArray, tokens: int, each: int = CANONICAL_EACH) -> IntArray:
    """Give each region `each` tokens (or all its cells if fewer), most important first while they last."""
    order = np.argsort(-importance, kind="stable")
    wanted = np.minimum(each, sizes[order])
    quota = np.zeros(len(sizes), np.int32)
    quota[order] = np.clip(tokens - (np.cumsum(wanted) - wanted), 0, wanted)
    return quota


def canonical_quota(sizes: IntArray, importance: FloatArray, tokens: int) -> IntArray:
    """Give three tokens to each region, most important first; divide the rest by importance times size."""
    quota = fixed_quota(sizes, importance, tokens)
    return quota + proportional_quota(sizes - quota, importance, tokens - int(quota.sum()))


def tiers_quota(sizes: IntArray, importance: FloatArray, tokens: int) -> IntArray:
    """Give 15, 5 or 1 tokens by rank of importance, scaled to the budget; every region gets one while tokens last."""
    order = np.argsort(-importance, kind="stable")
    rank = np.empty(len(order))
    rank[order] = (np.arange(len(order)) + 1) / len(order)
    wishes = np.select([rank <= share for share, _ in TIERS], [each for _, each in TIERS])
    quota = fixed_quota(sizes, importance, tokens, each=1)
    return quota + share_out(wishes, sizes - quota, tokens - int(quota.sum()))


def share_out(weight: npt.NDArray[np.number], most: IntArray, tokens: int) -> IntArray:
    """Divide whole tokens in proportion to `weight`, none above `most`, by largest remainder; ties go to the first."""
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


QUOTAS: dict[str, Callable[[IntArray, FloatArray, int], IntArray]] = {
    "proportional": proportional_quota,
    "canonical": canonical_quota,
    "tiers": tiers_quota,
}


def choose_by_region(
    strategy: str,
    score: FloatArray,
    regions: Regions,
    importance: FloatArray,
    tokens: int,
    eligible: BoolArray,
) -> Allocation:
    """Choose the best cells of each region up to its quota.

    Args:
        strategy: A key of `QUOTAS`.
        score: `[gh, gw]` in [0, 1].
        regions: The frame's regions.
        importance: `[n]` of each region, at least 0.
        tokens: Cells to choose; fewer are returned only if fewer are eligible.
        eligible: `[gh, gw]`, which cells may be chosen.
    """
    sizes = np.bincount(regions.member[eligible.ravel()], minlength=len(regions.sizes)).astype(np.int32)
    quota = QUOTAS[strategy](sizes, importance, tokens)
    cells, flat = _best_of_each(score, regions, quota, eligible), score.ravel()
    cells = cells[np.lexsort((cells, -flat[cells]))]
    columns = np.int32(score.shape[1])
    return Allocation(cells // columns, cells % columns, np.zeros_like(cells), flat[cells])


def _best_of_each(score: FloatArray, regions: Regions, quota: IntArray, eligible: BoolArray) -> IntArray:
    """Return flat cells, the best `quota` of each region, in no particular order."""
    flat = score.ravel()
    cells = np.flatnonzero(eligible.ravel())
    member = regions.member[cells]
    order = np.lexsort((-flat[cells], member))
    sizes = np.bincount(member, minlength=len(quota))
    start = np.cumsum(sizes) - sizes
    sorted_member = member[order]
    rank = np.arange(len(order)) - start[sorted_member]
    chosen: IntArray = cells[order[rank < quota[sorted_member]]].astype(np.int32)
    return chosen
