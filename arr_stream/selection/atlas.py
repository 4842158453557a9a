"""The semantic atlas: a frame as regions with importance, and the pooled tokens that show them.

The regions may come from any clusterer. A pooled token is the mean of the features of some neighbouring cells of one
region, without those of other regions. With one region a cell the atlas is the grid itself. `selection.strategies`
divides the tokens of a choice of cells among regions in the same ways.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from itertools import chain

import numpy as np

from arr_stream.keyframes.base import LazyClusters
from arr_stream.selection.cascade import Regions, regions_of_cells
from arr_stream.selection.strategies import CANONICAL_EACH, QUOTAS, region_importance
from arr_stream.types import Clusters, FloatArray, IntArray

CANONICAL_REGIONS = 91
"""91 regions of three tokens make 273."""

Cells = list[int]
"""Flat cells of a region, ascending. Regions have a dozen cells, where plain lists are several times faster."""


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


def canonical(
    division: Clusters | LazyClusters | IntArray,
    relevance: FloatArray,
    saliency: FloatArray,
    *,
    regions: int = CANONICAL_REGIONS,
    each: int = CANONICAL_EACH,
) -> AtlasTokens:
    """Return `regions` regions of `each` tokens, the most important region first, for any frame and any division.

    Frames of any size can be batched: the pooled tokens are `[regions * each, D]`. Too many regions are joined, too few
    are split (`divide`). A grid of fewer than `regions * each` cells gives fewer regions. The arguments are as for
    `build_atlas`.
    """
    atlas = build_atlas(division, relevance, saliency)
    member = divide(atlas.regions.member.reshape(atlas.regions.hw), atlas.importance, regions, each)
    order = np.argsort(-build_atlas(member, relevance, saliency).importance, kind="stable")
    by_rank = regions_of_cells(np.argsort(order)[member].astype(np.int32))
    return lay_out(by_rank, np.minimum(each, by_rank.sizes))


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
