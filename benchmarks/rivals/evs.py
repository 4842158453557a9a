"""Efficient Video Sampling: what differs from the frame before is kept.

Bagrov, Khvedchenia, Tymchenko et al., "Efficient Video Sampling: Pruning Temporally Redundant Tokens for Faster VLM
Inference", 2025 (arXiv 2510.14624), as vLLM has it in `vllm/multimodal/evs.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from arr_stream.selection.allocation import Allocation
from benchmarks.cell_choices import uniform
from benchmarks.rivals.base import Clip, Needs, check_tokens, kept_each, most_of, need_features
from benchmarks.rivals.change import cosine_to_previous

FIRST_FRAME = 255.0
"""Dissimilarity of the first frame's cells: more than any cosine can give, so that all are kept."""


def retained_tokens(cells: int, frames: int, pruning: float) -> int:
    """How many cells of a clip are kept: the share rounded down, and never less than a whole frame.

    Args:
        cells: Of a frame.
        frames: Of the clip.
        pruning: Share to drop, in [0, 1).
    """
    return max(cells, int(cells * frames * (1 - pruning)))


@dataclass(frozen=True, slots=True)
class EfficientVideoSampling:
    """The rule as published.

    A cell's dissimilarity is 1 less the cosine of its feature with that of the same cell on the frame before. The first
    frame is kept whole, and of all later cells of the clip the most dissimilar, wherever they fall: a frame may get
    none. Ties go to the earlier frame, then to reading order. Its own rounding may leave one token of the clip unused.
    """

    name: str = "Efficient Video Sampling"
    needs: Needs = "features"
    causal: bool = False

    def choose(self, clip: Clip, tokens: int) -> list[Allocation]:
        """See `Rule`."""
        check_tokens(clip.grid, tokens)
        later = 1 - cosine_to_previous(need_features(clip, self))
        dissimilarity = np.concatenate([np.full_like(later, FIRST_FRAME, shape=(1, *later.shape[1:])), later])
        count = retained_tokens(clip.grid.cells, len(clip), 1 - tokens / clip.grid.cells)
        keep = np.zeros(dissimilarity.size, bool)
        keep[np.argsort(-dissimilarity.ravel(), kind="stable")[:count]] = True
        return kept_each(dissimilarity, keep.reshape(dissimilarity.shape))


@dataclass(frozen=True, slots=True)
class SamplingPerFrame:
    """Our variant of it for a stream: the same dissimilarity, the same number of cells on every frame.

    No later frame is needed, and none goes without. The first frame, and cells that are equally dissimilar, are evenly
    spread. Exactly the budget.
    """

    name: str = "EVS per frame (our variant)"
    needs: Needs = "features"
    causal: bool = True

    def choose(self, clip: Clip, tokens: int) -> list[Allocation]:
        """See `Rule`."""
        check_tokens(clip.grid, tokens)
        later = 1 - cosine_to_previous(need_features(clip, self))
        return [uniform(clip.grid, tokens), *(most_of(frame, tokens, clip.grid) for frame in later)]
