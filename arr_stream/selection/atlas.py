"""The semantic atlas: a frame as regions with importance, among which tokens are divided.

The regions may come from any clusterer. Their tokens are the best cells of each (`choose_by_region`, the strategies
other than `topk`), or pooled: the mean of the features of some neighbouring cells of one region, without those of other
regions. `proportional` divides by importance, `canonical` gives three tokens to each of 91 regions, so that every frame
has the same form, and `tiers` some to every region and more to the important ones. With one region a cell the atlas is
the grid itself, and all choices equal `topk`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from arr_stream.keyframes.base import LazyClusters
from arr_stream.selection.allocation import Allocation
from arr_stream.selection.cascade import Regions, best_of_region, regions_of_cells
from arr_stream.types import BoolArray, Clusters, FloatArray, IntArray

CANONICAL_REGIONS = 91
"""91 regions of three tokens make 273."""

Cells = list[int]
"""Flat cells of a region, ascending. Regions have a dozen cells, where plain lists are several times faster."""


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


@dataclass(frozen=True, eq=False)
class SemanticAtlas:
    """The regions of one frame.

    Args:
        regions: The region of each cell.
        importance: `[n]`, at least 0; in [0, 1] where relevance and saliency are.
    """

    regions: Regions
    importance: FloatArray

    def tokens(self, allocation: str, tokens: int) -> AtlasTokens:
        """Return pooled tokens, in number the budget or the cells if fewer; `allocation` is a key of `QUOTAS`."""
        return lay_out(self.regions, QUOTAS[allocation](self.regions.sizes, self.importance, tokens))


def build_atlas(
    division: Clusters | LazyClusters | IntArray, relevance: FloatArray, saliency: FloatArray
) -> SemanticAtlas:
    """Build regions and their importance.

    Args:
        division: A clusterer's regions, of which the one at the middle of a cell counts, or the region of every cell,
            `[gh, gw]` with any ids of at least 0.
        relevance, saliency: `[gh, gw]` in [0, 1].
    """
    labels = division if isinstance(division, np.ndarray) else division.labels
    rows, columns = (
        (2 * np.arange(cells) + 1) * side // (2 * cells)
        for side, cells in zip(labels.shape, relevance.shape, strict=True)
    )
    regions = regions_of_cells(labels[rows[:, None], columns])
    return SemanticAtlas(regions, region_importance(regions, relevance.ravel(), saliency.ravel()))


@dataclass(frozen=True, eq=False)
class AtlasTokens:
    """Tokens, each made of some cells of one region.

    Args:
        token_of_cell: `[gh, gw]` int32, an index into `region`; -1 for a cell that no token shows.
        region: `[tokens]` int32, region of each token, ascending.
    """

    token_of_cell: IntArray
    region: IntArray

    def pool(self, features: FloatArray) -> FloatArray:
        """Return means of features over the cells of each token.

        Args:
            features: `[D, gh, gw]`.

        Returns:
            `[tokens, D]` float32.
        """
        token = self.token_of_cell.ravel()
        shown, count = token >= 0, len(self.region)
        sums = np.zeros((count, len(features)), np.float64)
        np.add.at(sums, token[shown], features.reshape(len(features), -1).T[shown])
        return (sums / np.bincount(token[shown], minlength=count)[:, None]).astype(np.float32)


def lay_out(regions: Regions, quota: IntArray) -> AtlasTokens:
    """Return tokens with their cells: each region is halved, and its largest part again, until it has its number.

    Args:
        regions: The regions.
        quota: `[n]` tokens of each region, at most its cells.
    """
    token_of_cell = np.full(regions.member.size, -1, np.int32)
    first, cells_of = np.cumsum(quota) - quota, _cells_of_regions(regions.member)
    for region in np.flatnonzero(quota).tolist():
        parts = [cells_of[region]]
        split(parts, regions.hw[1], int(quota[region]))
        for number, cells in enumerate(sorted(parts)):
            token_of_cell[cells] = first[region] + number
    of_token = np.repeat(np.arange(len(quota), dtype=np.int32), quota)
    return AtlasTokens(token_of_cell.reshape(regions.hw), of_token)


def canonical(division: Clusters | LazyClusters | IntArray, relevance: FloatArray, saliency: FloatArray) -> AtlasTokens:
    """Return 91 regions of three tokens, the most important region first, for any frame and any division.

    Frames of any size can be batched: the pooled tokens are `[273, D]`. Too many regions are joined, too few are split
    (`divide`). A grid of fewer than 273 cells gives fewer regions. The arguments are as for `build_atlas`.
    """
    atlas = build_atlas(division, relevance, saliency)
    member = divide(atlas.regions.member.reshape(atlas.regions.hw), atlas.importance, CANONICAL_REGIONS, CANONICAL_EACH)
    order = np.argsort(-build_atlas(member, relevance, saliency).importance, kind="stable")
    by_rank = regions_of_cells(np.argsort(order)[member].astype(np.int32))
    return lay_out(by_rank, np.minimum(CANONICAL_EACH, by_rank.sizes))


def divide(cluster_of_cell: IntArray, importance: FloatArray, count: int, each: int) -> IntArray:
    """Divide the cells into exactly `count` regions of at least `each` cells, from any regions.

    - A region of fewer than `each` cells merges into the neighbour of the most similar importance.
    - While there are more than `count`, the one with the least importance times size merges likewise: unimportant
    regions become one large region, important ones stay.
    - While there are fewer, the largest is halved along its longer side.
    - If none is large enough to be halved, hardly a cell can be spared: runs of cells in reading order become the
    regions instead.

    Args:
        cluster_of_cell: `[gh, gw]` contiguous ids from 0.
        importance: `[n]` of each region, at least 0.
        count: Number of regions; fewer are returned only if the grid has fewer than `count * each` cells.
        each: Least number of cells of a region.

    Returns:
        `[gh, gw]` int32 contiguous ids.
    """
    size, columns = cluster_of_cell.size, cluster_of_cell.shape[1]
    count = min(count, max(1, size // each))
    cells = _cells_of_regions(cluster_of_cell)
    if len(cells) > count or min(len(own) for own in cells) < each:
        cells = _merge(cluster_of_cell, cells, importance, count, each)
    split(cells, columns, count, each)
    labels = np.arange(size, dtype=np.int32) * count // size
    if len(cells) == count:
        labels[list(chain.from_iterable(cells))] = np.repeat(np.arange(count), [len(own) for own in cells])
    return labels.reshape(cluster_of_cell.shape)


def _cells_of_regions(cluster_of_cell: IntArray) -> list[Cells]:
    """Return the cells of each region, by ascending id; ids without cells are skipped."""
    flat = cluster_of_cell.ravel()
    order = np.argsort(flat, kind="stable")
    borders = np.flatnonzero(np.diff(flat[order])) + 1
    return [own.tolist() for own in np.split(order, borders)]


def split(cells: list[Cells], columns: int, count: int, each: int = 1) -> None:
    """Halve the largest region in place, until there are `count`; each keeps at least `each` cells."""
    by_size = [(-len(own), region) for region, own in enumerate(cells)]
    heapq.heapify(by_size)
    while len(cells) < count and -by_size[0][0] >= 2 * each:
        _, region = heapq.heappop(by_size)
        cells[region], other = _halved(cells[region], columns)
        cells.append(other)
        for changed in (region, len(cells) - 1):
            heapq.heappush(by_size, (-len(cells[changed]), changed))


def _halved(cells: Cells, columns: int) -> tuple[Cells, Cells]:
    """Return two halves of a region, cut across its longer side; the second has the odd cell."""
    column = [cell % columns for cell in cells]
    tall = cells[-1] // columns - cells[0] // columns > max(column) - min(column)
    across = cells if tall else sorted(cells, key=lambda cell: cell % columns)
    middle = len(cells) // 2
    return sorted(across[:middle]), sorted(across[middle:])


def _merge(cluster_of_cell: IntArray, cells: list[Cells], importance: FloatArray, count: int, each: int) -> list[Cells]:
    """Merge regions until none has fewer than `each` cells and there are at most `count`."""
    beside = _neighbours(cluster_of_cell, len(cells))
    size = [len(own) for own in cells]
    value = importance.tolist()
    parts: list[list[Cells]] = [[own] for own in cells]

    def turn(region: int) -> tuple[bool, float, int, int]:
        # Too small regions first, then by importance times size.
        return size[region] >= each, value[region] * size[region], size[region], region

    waiting = [turn(region) for region in range(len(cells))]
    heapq.heapify(waiting)
    left = len(cells)
    while left > 1 and waiting:
        fits, _, known_size, region = heapq.heappop(waiting)
        if known_size != size[region]:
            continue
        if fits and left <= count:
            break
        into = min(beside[region], key=lambda other: (abs(value[other] - value[region]), size[other], other))
        total = size[region] + size[into]
        value[into] = (value[into] * size[into] + value[region] * size[region]) / total
        size[into], size[region] = total, 0
        parts[into] += parts[region]
        parts[region] = []
        for other in beside[region]:
            beside[other].discard(region)
        beside[into] |= beside[region] - {into}
        for other in beside[into]:
            beside[other].add(into)
        heapq.heappush(waiting, turn(into))
        left -= 1
    return [sorted(chain.from_iterable(own)) for own in parts if own]


def _neighbours(cluster_of_cell: IntArray, count: int) -> list[set[int]]:
    """Return, for each region, the others that share a side of a cell with it."""
    beside: list[set[int]] = [set() for _ in range(count)]
    for one, two in (
        (cluster_of_cell[:, :-1], cluster_of_cell[:, 1:]),
        (cluster_of_cell[:-1], cluster_of_cell[1:]),
    ):
        for a, b in np.unique(np.stack([one.ravel(), two.ravel()], axis=1), axis=0).tolist():
            if a != b:
                beside[a].add(b)
                beside[b].add(a)
    return beside
