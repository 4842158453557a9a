"""The semantic atlas: a frame as regions with importance, and the pooled tokens that show them.

The regions may come from any clusterer. A pooled token is the mean of the features of some neighbouring cells of one
region, without those of other regions. With one region a cell the atlas is the grid itself. `selection.strategies`
divides the tokens of a choice of cells among regions in the same ways.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from arr_stream.keyframes.base import LazyClusters
from arr_stream.selection.cascade import Regions, regions_of_cells
from arr_stream.selection.division import divide, split
from arr_stream.selection.strategies import CANONICAL_EACH, QUOTAS, region_importance
from arr_stream.types import BoolArray, Clusters, FloatArray, Grid, IntArray

CANONICAL_REGIONS = 91
"""91 regions of three tokens make 273."""


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

    @cached_property
    def cells(self) -> tuple[npt.NDArray[np.int64], ...]:
        """Flat cells of each region, ascending."""
        order = np.argsort(self.regions.member, kind="stable")
        return tuple(np.split(order, np.cumsum(self.regions.sizes)[:-1]))

    def divided(self, labels: IntArray) -> SemanticAtlas:
        """Return the atlas of the same frame with other regions, `[gh, gw]`."""
        return _atlas(labels, self.relevance, self.saliency)

    def tokens(self, allocation: str, tokens: int) -> AtlasTokens:
        """Return pooled tokens, in number the budget or the cells if fewer.

        Args:
            allocation: How regions share them: `proportional`, `canonical` or `tiers`, see `selection.strategies`.
            tokens: Budget.
        """
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
    first = np.cumsum(quota) - quota
    for region in np.flatnonzero(quota).tolist():
        parts = [atlas.cells[region].tolist()]
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

    Too many regions are joined, too few are split, and none keeps fewer cells than tokens (`division.divide`). A grid
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
