"""Summaries of cells that were not chosen: one token a region, the mean of the vision features of its cells.

A summary has the position of its region's centroid and gets as much attention as all of its cells would: the logarithm
of their number is added ("proportional attention", Bolya et al., "Token Merging: Your ViT But Faster", 2023). Without
it, a mean adds hardly more than one further cell would.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from arr_stream.selection.atlas import build_atlas, lay_out
from arr_stream.selection.division import divide
from arr_stream.selection.quotas import share_out
from arr_stream.types import BoolArray, FloatArray, Grid, IntArray
from arr_stream.vlm.qwen3_vl.adapter import VisualTokens


@dataclass(frozen=True, slots=True, eq=False)
class Summaries:
    """Assignment of cells to R summary tokens.

    Args:
        of_cell: `[gh, gw]` int32, 0 to R - 1, -1 for a cell in no summary.
        score: `[R]` float32, mean relevance of the cells.
    """

    of_cell: IntArray
    score: FloatArray

    def __len__(self) -> int:
        return len(self.score)

    @property
    def sizes(self) -> IntArray:
        """Number of cells of each summary, `[R]`."""
        return np.bincount(self.of_cell[self.of_cell >= 0], minlength=len(self)).astype(np.int32)

    @property
    def centroids(self) -> FloatArray:
        """Row and column of the centroid of each summary's cells, `[2, R]`; fractions of a cell."""
        places = np.nonzero(self.of_cell >= 0)
        of_cell = self.of_cell[places]
        sums = np.stack([np.bincount(of_cell, axis, minlength=len(self)) for axis in places])
        return (sums / self.sizes).astype(np.float32)

    def take(self, keep: BoolArray) -> Summaries:
        """Return the summaries that the mask keeps; the cells of the others are in none."""
        number = np.where(keep, np.cumsum(keep) - 1, -1).astype(np.int32)
        # Cells in no summary (-1) index the appended last entry.
        return Summaries(np.append(number, np.int32(-1))[self.of_cell], self.score[keep])

    def means(self, tokens: VisualTokens, of_token: IntArray) -> VisualTokens:
        """Return the means of the cells' features, level by level.

        Args:
            tokens: Features of K cells.
            of_token: `[K]`, the summary of each, as in `of_cell`.
        """
        device = tokens.features.device
        inside = torch.from_numpy(np.flatnonzero(of_token >= 0)).to(device)
        group = torch.from_numpy(of_token[of_token >= 0]).long().to(device)
        sizes = torch.bincount(group, minlength=len(self))[:, None]

        def mean(values: Tensor) -> Tensor:
            sums = torch.zeros(len(self), values.shape[1], device=device).index_add_(0, group, values[inside].float())
            return (sums / sizes).to(values.dtype)

        return VisualTokens(mean(tokens.features), tuple(mean(level) for level in tokens.deepstack))


def summarised(cluster_of_cell: IntArray, relevance: FloatArray, left: BoolArray, count: int) -> Summaries:
    """Divide the cells that were not chosen among summary tokens.

    Clusters are joined until there are no more than `count` (see `divide`). Each gets one token for its remaining
    cells, and the larger ones get further tokens until there are `count`.

    Args:
        cluster_of_cell: `[gh, gw]` ids.
        relevance: `[gh, gw]` in [0, 1].
        left: `[gh, gw]`, the cells that were not chosen.
        count: Tokens, at least 1; the result has fewer only if fewer cells are left.
    """
    grid = Grid((1, 1), *cluster_of_cell.shape)
    atlas = build_atlas(cluster_of_cell, grid, relevance=relevance)
    joined = divide(atlas.member, atlas.importance, min(count, atlas.count), 1)
    # The chosen cells form the first region, which gets no token.
    rest = build_atlas(np.where(left, joined + 1, 0).astype(np.int32), grid)
    sizes = rest.regions.sizes
    quota = (rest.regions.ids > 0).astype(np.int32)
    quota += share_out(sizes, (sizes - 1) * quota, count - int(quota.sum()))
    of_cell = lay_out(rest, quota).token_of_cell
    inside = of_cell >= 0
    numbers = np.bincount(of_cell[inside])
    return Summaries(of_cell, (np.bincount(of_cell[inside], relevance[inside]) / numbers).astype(np.float32))
