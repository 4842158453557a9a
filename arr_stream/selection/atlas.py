"""The semantic atlas: a frame as regions with importance, and the tokens that show them.

The regions may come from any clusterer. With one region a cell the atlas is the grid itself, and every division of the
tokens chooses the best cells.

It has two uses: a choice of cells, as in the frame loop (`selection.strategies`), or *pooled* tokens, each the mean of
the features of some neighbouring cells of one region, without those of other regions.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from arr_stream.keyframes.base import LazyClusters
from arr_stream.selection.cascade import Regions, best_of_region, regions_of_cells
from arr_stream.selection.division import divide, halved
from arr_stream.selection.quotas import (
    CANONICAL_EACH,
    CANONICAL_REGIONS,
    fixed_quota,
    proportional_quota,
    tier_wishes,
    tiers_quota,
)
from arr_stream.types import BoolArray, Clusters, FloatArray, Grid, IntArray

RELEVANCE_WEIGHT, SALIENCY_WEIGHT = 0.6, 0.4
"""A region's importance: its most relevant cell, and its mean saliency."""

HYBRID_IMPORTANCE = 0.5
"""Share of the highest importance from which a region counts as important."""

HYBRID_GRID_SHARE = 0.5
"""Share of the tokens that `hybrid` spends on the grid; a smaller share lowers coverage."""


def region_importance(regions: Regions, relevance: FloatArray, saliency: FloatArray) -> FloatArray:
    """`[n]`: 0.6 of the highest relevance of a region's cells and 0.4 of their mean saliency (both `[cells]`)."""
    mean = np.bincount(regions.member, saliency, len(regions.sizes)) / regions.sizes
    importance = RELEVANCE_WEIGHT * best_of_region(relevance, regions) + SALIENCY_WEIGHT * mean
    return importance.astype(np.float32)


@dataclass(frozen=True, eq=False)
class SemanticAtlas:
    """The regions of one frame.

    Args:
        hw: Rows and columns of the grid.
        regions: The region of each cell.
        importance: `[n]`, at least 0; in [0, 1] where relevance and saliency are.
        relevance, saliency: `[cells]`, the inputs of importance, kept for a new division.
    """

    hw: tuple[int, int]
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
        return self.regions.member.reshape(self.hw)

    @cached_property
    def cells(self) -> tuple[npt.NDArray[np.int64], ...]:
        """Flat cells of each region, ascending."""
        order = np.argsort(self.regions.member, kind="stable")
        return tuple(np.split(order, np.cumsum(self.regions.sizes)[:-1]))

    def divided(self, labels: IntArray) -> SemanticAtlas:
        """Return the atlas of the same frame with other regions, `[gh, gw]`."""
        return _atlas(labels, self.relevance, self.saliency)


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
    return SemanticAtlas((labels.shape[0], labels.shape[1]), regions, importance, relevance, saliency)


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


def proportional(atlas: SemanticAtlas, tokens: int) -> AtlasTokens:
    """Divide tokens by importance times size; a region with n tokens is pooled over about sqrt(n) x sqrt(n) places."""
    return lay_out(atlas, proportional_quota(atlas.regions.sizes, atlas.importance, tokens))


def fixed(atlas: SemanticAtlas, each: int, tokens: int | None = None) -> AtlasTokens:
    """Give each region `each` tokens, most important first while `tokens` last (None: all regions)."""
    most = atlas.regions.member.size if tokens is None else tokens
    return lay_out(atlas, fixed_quota(atlas.regions.sizes, atlas.importance, most, each))


def tiers(atlas: SemanticAtlas, tokens: int | None = None) -> AtlasTokens:
    """Give 15 tokens to each region of the most important fifth, 5 to the next three tenths, 1 to the rest.

    With `tokens` these numbers are scaled to that budget; without, a region has at most as many as it has cells.
    """
    sizes, importance = atlas.regions.sizes, atlas.importance
    if tokens is None:
        return lay_out(atlas, np.minimum(tier_wishes(importance), sizes))
    return lay_out(atlas, tiers_quota(sizes, importance, tokens))


def hybrid(
    atlas: SemanticAtlas,
    tokens: int,
    *,
    importance_share: float = HYBRID_IMPORTANCE,
    grid_share: float = HYBRID_GRID_SHARE,
) -> AtlasTokens:
    """Spend one budget on cells of the important regions, and on an even grid over the rest.

    In the result, `region` numbers the important regions in their order; the rest is one more region, the last.

    Args:
        atlas: The regions.
        tokens: Tokens of both together.
        importance_share: Regions with at least this share of the highest importance get tokens of their own.
        grid_share: Share of the tokens for the rest; more if the important regions have too few cells, and all if none
            is important.
    """
    matters = atlas.importance >= importance_share * max(float(atlas.importance.max()), 1e-9)
    inside = int(atlas.regions.sizes[matters].sum())
    outside = atlas.regions.member.size - inside
    for_grid = min(outside, max(round(grid_share * tokens), tokens - inside))
    # All unimportant cells form one region, the last, which lay_out covers with even places.
    labels = np.where(matters, np.cumsum(matters) - 1, int(matters.sum()))[atlas.regions.member]
    merged = atlas.divided(labels.reshape(atlas.hw).astype(np.int32))
    own = int(matters.sum())
    quota = np.zeros(merged.count, np.int32)
    quota[:own] = proportional_quota(merged.regions.sizes[:own], merged.importance[:own], tokens - for_grid)
    quota[own:] = for_grid
    return lay_out(merged, quota)


def lay_out(atlas: SemanticAtlas, quota: IntArray) -> AtlasTokens:
    """Return tokens with their cells.

    Each region's box is divided into an even grid of about sqrt(n) x sqrt(n) places, in the box's proportions and at
    most n in number; places without any of its cells are dropped, and the fullest others are halved instead until there
    are n.

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
        for number, cells in enumerate(_places(atlas.cells[region], atlas.hw[1], int(quota[region]))):
            token_of_cell[cells] = first[region] + number
    of_token = np.repeat(np.arange(len(quota), dtype=np.int32), quota)
    return AtlasTokens(token_of_cell.reshape(atlas.hw), of_token)


def _places(cells: npt.NDArray[np.int64], columns: int, tokens: int) -> list[list[int]]:
    """Return exactly `tokens` groups of a region's ascending flat cells, row by row."""
    row, column = np.divmod(cells, columns)
    row -= row[0]
    column -= column.min()
    height, width = int(row[-1]) + 1, int(column.max()) + 1
    down = min(max(1, round((tokens * height / width) ** 0.5)), height, tokens)
    across = min(tokens // down, width)
    place = (row * down // height) * across + column * across // width
    groups = [cells[place == number].tolist() for number in np.unique(place)]
    fullest = [(-len(group), number) for number, group in enumerate(groups)]
    heapq.heapify(fullest)
    while len(groups) < tokens:
        _, number = heapq.heappop(fullest)
        groups[number], other = halved(groups[number], columns)
        groups.append(other)
        for changed in (number, len(groups) - 1):
            heapq.heappush(fullest, (-len(groups[changed]), changed))
    return sorted(groups)


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

    def padded(self, of_region: FloatArray) -> FloatArray:
        """`[regions, ...]` from one entry a region of `atlas`, such as its position; 0 for rows without a region."""
        rows = np.zeros((len(self.valid), *of_region.shape[1:]), np.float32)
        rows[: len(of_region)] = of_region
        return rows


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


@dataclass(frozen=True, eq=False)
class CanonicalBatch:
    """Canonical atlases of B frames.

    Args:
        cells: `[B, regions, each]` int32, flat cells, each frame's in its own grid.
        valid: `[B, regions, each]`.
        importance: `[B, regions]`, 0 for rows without a region.
    """

    cells: IntArray
    valid: BoolArray
    importance: FloatArray


def stack(atlases: Sequence[CanonicalAtlas]) -> CanonicalBatch:
    """Stack several frames as one batch; their grids may differ.

    Raises:
        ValueError: No frame, or forms that differ.
    """
    forms = {atlas.valid.shape for atlas in atlases}
    if len(forms) != 1:
        raise ValueError(f"a batch needs frames of one form, got {sorted(forms) or 'none'}")
    return CanonicalBatch(
        np.stack([atlas.cells for atlas in atlases]),
        np.stack([atlas.valid for atlas in atlases]),
        np.stack([atlas.padded(atlas.atlas.importance) for atlas in atlases]),
    )


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
