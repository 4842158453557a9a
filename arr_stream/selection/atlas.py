"""The semantic atlas: a frame as regions with importance, and the pooled tokens that show them.

The regions may come from any clusterer. A pooled token is the mean of the features of some neighbouring cells of one
region, without those of other regions. With one region a cell the atlas is the grid itself. `selection.strategies`
divides the tokens of a choice of cells among regions in the same ways.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np

from arr_stream.keyframes.base import LazyClusters
from arr_stream.selection.cascade import Regions, regions_of_cells
from arr_stream.selection.strategies import CANONICAL_EACH, QUOTAS, region_importance
from arr_stream.types import BoolArray, Clusters, FloatArray, Grid, IntArray

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
        relevance, saliency: `[cells]`, the inputs of importance, kept for a new division.
    """

    regions: Regions
    importance: FloatArray
    relevance: FloatArray
    saliency: FloatArray

    @property
    def count(self) -> int:
        return len(self.regions.sizes)

    @property
    def member(self) -> IntArray:
        """`[gh, gw]` region of every cell, 0 to `count - 1`."""
        return self.regions.member.reshape(self.regions.hw)

    def divided(self, labels: IntArray) -> SemanticAtlas:
        """Return the atlas of the same frame with other regions, `[gh, gw]`."""
        return _atlas(labels, self.relevance, self.saliency)

    def tokens(self, allocation: str, tokens: int) -> AtlasTokens:
        """Return pooled tokens, in number the budget or the cells if fewer; `allocation` is a key of `QUOTAS`."""
        return lay_out(self, QUOTAS[allocation](self.regions.sizes, self.importance, tokens))


def build_atlas(
    division: Clusters | LazyClusters | IntArray,
    grid: Grid,
    *,
    relevance: FloatArray | None = None,
    saliency: FloatArray | None = None,
) -> SemanticAtlas:
    """Build regions and their importance.

    Args:
        division: A clusterer's regions, or the region of every cell, `[gh, gw]` with any ids of at least 0.
        grid: The frame's cells.
        relevance, saliency: `[gh, gw]` in [0, 1]; zeros where not given.

    Raises:
        ValueError: A map that is not one value a cell.
    """
    hw = (grid.rows, grid.columns)
    labels = division if isinstance(division, np.ndarray) else cells_of_clusters(division, grid)
    nothing = np.zeros(hw, np.float32)
    relevance = nothing if relevance is None else relevance
    saliency = nothing if saliency is None else saliency
    for name, values in (("regions", labels), ("relevance", relevance), ("saliency", saliency)):
        if values.shape != hw:
            raise ValueError(f"{name} must be one value a cell, {list(hw)}, got {list(values.shape)}")
    return _atlas(labels, relevance.ravel(), saliency.ravel())


def _atlas(labels: IntArray, relevance: FloatArray, saliency: FloatArray) -> SemanticAtlas:
    regions = regions_of_cells(labels)
    importance = region_importance(regions, relevance, saliency)
    return SemanticAtlas(regions, importance, relevance, saliency)


def cells_of_clusters(clusters: Clusters | LazyClusters, grid: Grid) -> IntArray:
    """Return `[gh, gw]`: the region at the middle of each cell; a region that covers no middle has no cell."""
    height, width = clusters.labels.shape
    rows = (2 * np.arange(grid.rows) + 1) * height // (2 * grid.rows)
    columns = (2 * np.arange(grid.columns) + 1) * width // (2 * grid.columns)
    labels: IntArray = clusters.labels[rows[:, None], columns]
    return labels


@dataclass(frozen=True, eq=False)
class AtlasTokens:
    """Tokens, each made of some cells of one region.

    Args:
        token_of_cell: `[gh, gw]` int32, 0 to `count - 1`, -1 for a cell that no token shows.
        region: `[tokens]` int32, region of each token, ascending.
    """

    token_of_cell: IntArray
    region: IntArray

    @property
    def count(self) -> int:
        return len(self.region)

    @cached_property
    def cells(self) -> IntArray:
        """`[tokens]` flat index of the cell nearest to the middle of each token's cells."""
        seats = regions_of_cells(self.token_of_cell + 1).seat
        return seats[len(seats) - self.count :]

    def pool(self, features: FloatArray) -> FloatArray:
        """Return means of features over the cells of each token.

        Args:
            features: `[D, gh, gw]`.

        Returns:
            `[tokens, D]` float32.

        Raises:
            ValueError: Not one feature vector a cell.
        """
        return _pool(features, self.token_of_cell, self.count)


def lay_out(atlas: SemanticAtlas, quota: IntArray) -> AtlasTokens:
    """Return tokens with their cells: each region is halved, and its largest part again, until it has its number.

    Args:
        atlas: The regions.
        quota: `[n]` tokens of each region; none has more than its cells.

    Raises:
        ValueError: A region has more tokens than cells.
    """
    if (quota > atlas.regions.sizes).any():
        raise ValueError("a region cannot have more tokens than cells")
    token_of_cell = np.full(atlas.regions.member.size, -1, np.int32)
    first, cells_of = np.cumsum(quota) - quota, _cells_of_regions(atlas.member)
    for region in np.flatnonzero(quota).tolist():
        parts = [cells_of[region]]
        split(parts, atlas.regions.hw[1], int(quota[region]))
        for number, cells in enumerate(sorted(parts)):
            token_of_cell[cells] = first[region] + number
    of_token = np.repeat(np.arange(len(quota), dtype=np.int32), quota)
    return AtlasTokens(token_of_cell.reshape(atlas.regions.hw), of_token)


@dataclass(frozen=True, eq=False)
class CanonicalAtlas:
    """Form of a frame that does not depend on its content, so that frames of any size can be batched.

    Args:
        atlas: The regions behind it, the most important first; never more than rows of `cells`.
        token_of_cell: `[gh, gw]` int32, `row * each + column` in `cells`; every cell is in one token.
        cells: `[regions, each]` int32, the cell in the middle of each token; 0 without a token.
        valid: `[regions, each]`, places with a token. All true from `regions * each` cells on.
    """

    atlas: SemanticAtlas
    token_of_cell: IntArray
    cells: IntArray
    valid: BoolArray

    def pool(self, features: FloatArray) -> FloatArray:
        """`[regions, each, D]` means of features `[D, gh, gw]` over the cells of each token; 0 where not valid.

        Raises:
            ValueError: Not one feature vector a cell.
        """
        pooled = _pool(features, self.token_of_cell, self.valid.size)
        return pooled.reshape(*self.valid.shape, -1)


def canonical(atlas: SemanticAtlas, *, regions: int = CANONICAL_REGIONS, each: int = CANONICAL_EACH) -> CanonicalAtlas:
    """Return `regions` regions of `each` tokens, for any number of clusters.

    Too many regions are joined, too few are split, and none keeps fewer cells than tokens (`divide`). A grid
    of fewer than `regions * each` cells gives as many regions as can have `each` cells, and rows without a region.
    """
    even = atlas.divided(divide(atlas.member, atlas.importance, regions, each))
    order = np.argsort(-even.importance, kind="stable")
    rank = np.empty(len(order), np.int32)
    rank[order] = np.arange(len(order), dtype=np.int32)
    even = atlas.divided(rank[even.member])
    quota = np.minimum(each, even.regions.sizes)
    tokens = lay_out(even, quota)
    valid = np.zeros((regions, each), bool)
    valid[: even.count] = np.arange(each) < quota[:, None]
    cells = np.zeros((regions, each), np.int32)
    cells[valid] = tokens.cells
    slot = np.flatnonzero(valid).astype(np.int32)
    return CanonicalAtlas(even, slot[tokens.token_of_cell], cells, valid)


def _pool(features: FloatArray, token_of_cell: IntArray, count: int) -> FloatArray:
    if features.ndim != 3 or features.shape[1:] != token_of_cell.shape:
        expected = ", ".join(str(side) for side in token_of_cell.shape)
        raise ValueError(f"features must be [D, {expected}], got {list(features.shape)}")
    shown = token_of_cell.ravel() >= 0
    token = token_of_cell.ravel()[shown]
    sums = np.zeros((count, features.shape[0]), np.float64)
    np.add.at(sums, token, features.reshape(features.shape[0], -1).T[shown])
    cells = np.maximum(np.bincount(token, minlength=count), 1)
    return (sums / cells[:, None]).astype(np.float32)


def divide(cluster_of_cell: IntArray, importance: FloatArray, count: int, each: int) -> IntArray:
    """Divide the cells into exactly `count` regions of at least `each` cells, from any regions.

    - A region of fewer than `each` cells merges into the neighbour of the most similar importance.
    - While there are more than `count`, the one with the least importance times size merges likewise: unimportant
    regions become one large region, important ones stay.
    - While there are fewer, the largest is halved along its longer side.
    - If none is large enough to be halved, a new region takes spare cells from others, near a border cell of the
    largest region. Only this step can leave a region in pieces.

    Args:
        cluster_of_cell: `[gh, gw]` contiguous ids from 0.
        importance: `[n]` of each region, at least 0.
        count: Number of regions; fewer are returned only if the grid has fewer than `count * each` cells.
        each: Least number of cells of a region.

    Returns:
        `[gh, gw]` int32 contiguous ids.
    """
    shape = cluster_of_cell.shape
    count = min(count, max(1, cluster_of_cell.size // each))
    cells = _cells_of_regions(cluster_of_cell)
    if len(cells) > count or min(len(own) for own in cells) < each:
        cells = _merge(cluster_of_cell, cells, importance, count, each)
    split(cells, shape[1], count, each)
    while len(cells) < count:
        _gather(cells, shape[1], each)
    return _as_labels(cells, shape)


def _cells_of_regions(cluster_of_cell: IntArray) -> list[Cells]:
    """Return the cells of each region, by ascending id; ids without cells are skipped."""
    flat = cluster_of_cell.ravel()
    order = np.argsort(flat, kind="stable")
    borders = (np.flatnonzero(np.diff(flat[order])) + 1).tolist()
    cells = order.tolist()
    return [cells[start:end] for start, end in zip([0, *borders], [*borders, len(cells)], strict=True)]


def _as_labels(cells: list[Cells], shape: tuple[int, ...]) -> IntArray:
    labels = np.empty(shape, np.int32)
    labels.ravel()[list(chain.from_iterable(cells))] = np.repeat(np.arange(len(cells)), [len(own) for own in cells])
    return labels


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
    middle = len(cells) // 2
    if tall:
        return cells[:middle], cells[middle:]
    across = sorted(cells, key=lambda cell: cell % columns)
    return sorted(across[:middle]), sorted(across[middle:])


def _merge(cluster_of_cell: IntArray, cells: list[Cells], importance: FloatArray, count: int, each: int) -> list[Cells]:
    """Merge regions until none has fewer than `each` cells and there are at most `count`."""
    beside = _neighbours(cluster_of_cell, len(cells))
    size = [len(own) for own in cells]
    value = [float(v) for v in importance]
    parts: list[list[Cells]] = [[own] for own in cells]
    waiting = [(_turn(size[r], value[r], each), size[r], r) for r in range(len(cells))]
    heapq.heapify(waiting)
    left = len(cells)
    while left > 1 and waiting:
        (fits, _), known_size, region = heapq.heappop(waiting)
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
        beside[region].discard(into)
        for other in beside[region]:
            beside[other].discard(region)
            beside[other].add(into)
        beside[into] |= beside[region]
        beside[into].discard(region)
        heapq.heappush(waiting, (_turn(total, value[into], each), total, into))
        left -= 1
    return [sorted(chain.from_iterable(own)) for own in parts if own]


def _turn(size: int, importance: float, each: int) -> tuple[bool, float]:
    """Return the merging order of a region: too small ones first, then by importance times size."""
    return size >= each, importance * size


def _neighbours(cluster_of_cell: IntArray, count: int) -> list[set[int]]:
    """Return, for each region, the others that share a side of a cell with it."""
    labels = np.unique(cluster_of_cell, return_inverse=True)[1].reshape(cluster_of_cell.shape)
    pairs = [
        np.stack([one.ravel(), two.ravel()], axis=1)
        for one, two in ((labels[:, :-1], labels[:, 1:]), (labels[:-1], labels[1:]))
    ]
    beside: list[set[int]] = [set() for _ in range(count)]
    for one, two in np.unique(np.concatenate(pairs), axis=0).tolist():
        if one != two:
            beside[one].add(two)
            beside[two].add(one)
    return beside


def _gather(cells: list[Cells], columns: int, each: int) -> None:
    """Return a new region of `each` cells that others can spare, near to one another."""
    largest = max(range(len(cells)), key=lambda region: (len(cells[region]), -region))
    own = np.stack(np.divmod(cells[largest], columns), axis=1)
    first = cells[largest][int(np.argmax(((own - own.mean(axis=0)) ** 2).sum(axis=1)))]
    owner = {cell: region for region, of_region in enumerate(cells) for cell in of_region}

    def distance(cell: int) -> tuple[int, int]:
        return (cell // columns - first // columns) ** 2 + (cell % columns - first % columns) ** 2, cell

    taken: Cells = []
    for cell in sorted(owner, key=distance):
        if len(taken) < each and len(cells[owner[cell]]) > each:
            cells[owner[cell]].remove(cell)
            taken.append(cell)
    cells.append(sorted(taken))
