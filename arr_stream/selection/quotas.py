"""Division of a token budget among regions by importance."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from arr_stream.types import FloatArray, IntArray

CANONICAL_REGIONS, CANONICAL_EACH = 91, 3
"""Canonical form: 91 regions of three tokens make 273."""

TIERS = ((0.2, 15), (0.5, 5), (1.0, 1))
"""(share of regions by rank, tokens each): the first fifth 15, the next three tenths 5, the rest 1."""


def proportional_quota(sizes: IntArray, importance: FloatArray, tokens: int) -> IntArray:
    """Divide tokens by importance times size, at most a region's number of cells; remainders by largest remainder.

    Args:
        sizes: `[n]` cells of each region.
        importance: `[n]`, at least 0.
        tokens: Budget.

    Returns:
        `[n]`, in sum the budget, or the number of cells if that is smaller.
    """
    return share_out(np.maximum(importance, 1e-9) * sizes, sizes, tokens)


def fixed_quota(sizes: IntArray, importance: FloatArray, tokens: int, each: int = CANONICAL_EACH) -> IntArray:
    """Give each region the same number of tokens (or all its cells if fewer), most important first while they last.

    Args:
        sizes, importance, tokens: As above.
        each: Tokens of each region.

    Returns:
        `[n]`, in sum at most the budget.
    """
    order = np.argsort(-importance, kind="stable")
    wanted = np.minimum(each, sizes[order])
    quota = np.zeros(len(sizes), np.int32)
    quota[order] = np.clip(tokens - (np.cumsum(wanted) - wanted), 0, wanted)
    return quota


def canonical_quota(sizes: IntArray, importance: FloatArray, tokens: int) -> IntArray:
    """Give three tokens to each region, most important first; divide the rest by importance times size.

    Returns:
        `[n]`, in sum the budget, or the number of cells if that is smaller.
    """
    quota = fixed_quota(sizes, importance, tokens)
    return quota + proportional_quota(sizes - quota, importance, tokens - int(quota.sum()))


def tier_wishes(importance: FloatArray) -> IntArray:
    """Return `[n]`: 15, 5 or 1 tokens by rank of importance, independent of the budget and the region's size."""
    order = np.argsort(-importance, kind="stable")
    rank = np.empty(len(order))
    rank[order] = (np.arange(len(order)) + 1) / len(order)
    wishes: IntArray = np.select([rank <= share for share, _ in TIERS], [each for _, each in TIERS]).astype(np.int32)
    return wishes


def tiers_quota(sizes: IntArray, importance: FloatArray, tokens: int) -> IntArray:
    """Give 15, 5 or 1 tokens by rank of importance, scaled to the budget; every region gets one while tokens last.

    Returns:
        `[n]`, in sum the budget, or the number of cells if that is smaller.
    """
    quota = fixed_quota(sizes, importance, tokens, each=1)
    return quota + share_out(tier_wishes(importance), sizes - quota, tokens - int(quota.sum()))


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
