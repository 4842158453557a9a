"""Ways to spend the same tokens on the same scores.

`topk` takes the best cells wherever they are (`selection.allocation`). The others look at regions: `proportional`
shares the tokens out by importance, `canonical` gives 91 regions three tokens each, so that every frame is alike,
`tiers` shows every region, the important ones in detail, and `hybrid` gives the regions that matter a share of the
tokens and leaves the others to `topk`. With one region a cell, all of them are `topk`.
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
    """The best cells of each region up to its quota.

    Args:
        strategy: A key of `QUOTAS`.
        score: `[gh, gw]` in [0, 1].
        regions: The frame's regions.
        importance: `[n]` of each region, at least 0.
        tokens: Cells to choose; fewer come back only where fewer are eligible.
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
    """Choose the regions that matter first, then the best of all other cells, some of them coarse.

    Args:
        score, regions, importance, tokens: As above.
        eligible: `[gh, gw]`, which cells may be chosen fine.
        importance_share: Regions with at least this share of the highest importance matter.
        grid_share: Share of the tokens for the grid; more if the regions that matter have too few cells.
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
    """Flat cells, the best `quota` of each region, in no particular order."""
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
