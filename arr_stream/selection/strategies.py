"""Strategies: ways to spend the same tokens on the same scores.

`topk` takes the best cells of the frame (`selection.allocation`). The others divide the tokens among regions:
`proportional` by importance, `canonical` three tokens to each of 91 regions, so that every frame has the same form,
`tiers` some to every region and more to the important ones, and `hybrid` a share to the important regions and the rest
to `topk`. With one region a cell, all of them equal `topk`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from arr_stream.selection.allocation import Allocation, allocate_tokens
from arr_stream.selection.atlas import HYBRID_GRID_SHARE, HYBRID_IMPORTANCE
from arr_stream.selection.cascade import Regions
from arr_stream.selection.quotas import canonical_quota, proportional_quota, tiers_quota
from arr_stream.types import BoolArray, FloatArray, IntArray

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
    eligible: BoolArray | None = None,
) -> Allocation:
    """Choose the best cells of each region up to its quota.

    Args:
        strategy: A key of `QUOTAS`.
        score: `[gh, gw]` in [0, 1].
        regions: The frame's regions.
        importance: `[n]` of each region, at least 0.
        tokens: Cells to choose; fewer are returned only if fewer are eligible.
        eligible: `[gh, gw]`, which cells may be chosen; all by default.
    """
    sizes = regions.sizes
    if eligible is not None:
        sizes = np.bincount(regions.member[eligible.ravel()], minlength=len(sizes)).astype(np.int32)
    quota = QUOTAS[strategy](sizes, importance, tokens)
    return _allocated(score, _best_of_each(score, regions, quota, eligible))


def choose_hybrid(
    score: FloatArray,
    regions: Regions,
    importance: FloatArray,
    tokens: int,
    eligible: BoolArray,
    *,
    importance_share: float = HYBRID_IMPORTANCE,
    grid_share: float = HYBRID_GRID_SHARE,
    coarse_most: int = 0,
) -> Allocation:
    """Choose cells of the important regions first, then the best of all other cells, some of them coarse.

    Args:
        score, regions, importance, tokens: As above.
        eligible: `[gh, gw]`, which cells may be chosen fine.
        importance_share: Regions with at least this share of the highest importance count as important.
        grid_share: Share of the tokens for the grid; more if the important regions have too few cells.
        coarse_most: Most coarse cells, a part of the grid's share.
    """
    matters = importance >= importance_share * float(importance.max())
    inside = eligible & matters[regions.member].reshape(score.shape)
    chosen = choose_by_region("proportional", score, regions, importance, tokens - round(grid_share * tokens), inside)
    rest = eligible.copy()
    rest[chosen.rows, chosen.columns] = False
    left = score.copy()
    left[chosen.rows, chosen.columns] = 0
    elsewhere = allocate_tokens(left, rest, tokens - len(chosen), coarse_most)
    both = [
        np.concatenate([getattr(chosen, name), getattr(elsewhere, name)])
        for name in ("rows", "columns", "level", "score")
    ]
    best_first = np.argsort(-both[3], kind="stable")
    return Allocation(*(values[best_first] for values in both))


def _best_of_each(score: FloatArray, regions: Regions, quota: IntArray, eligible: BoolArray | None) -> IntArray:
    """Return flat cells, the best `quota` of each region, in no particular order."""
    flat = score.ravel()
    cells = np.arange(flat.size) if eligible is None else np.flatnonzero(eligible.ravel())
    member = regions.member[cells]
    order = np.lexsort((-flat[cells], member))
    sizes = np.bincount(member, minlength=len(quota))
    start = np.cumsum(sizes) - sizes
    sorted_member = member[order]
    rank = np.arange(len(order)) - start[sorted_member]
    chosen: IntArray = cells[order[rank < quota[sorted_member]]].astype(np.int32)
    return chosen


def _allocated(score: FloatArray, cells: IntArray) -> Allocation:
    flat = score.ravel()
    cells = cells[np.lexsort((cells, -flat[cells]))]
    columns = np.int32(score.shape[1])
    return Allocation(cells // columns, cells % columns, np.zeros_like(cells), flat[cells])
