"""Differential Token Drop of TimeChat-Online: what is like the frame before is dropped.

Yao, Li, Wei et al., "TimeChat-Online: 80% Visual Tokens are Naturally Redundant in Streaming Videos", 2025 (arXiv
2504.17343), as its authors' `token_drop` has it: against an absolute threshold, or a share of every frame.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from arr_stream.selection.allocation import Allocation
from benchmarks.rivals.base import Clip, Mask, Needs, Scores, check_tokens, kept_each, need_features
from benchmarks.rivals.change import cosine_to_previous, pixel_change

Level = Literal["pixels", "features"]


@dataclass(frozen=True, slots=True)
class DifferentialDrop:
    """Cells are dropped that change less than a threshold; the first frame is kept whole.

    At pixel level the change is the mean absolute difference of the cell's RGB in [0, 1], and cells below the threshold
    are dropped; at feature level the cosine, and cells above it.

    Args:
        level: What is compared.
        threshold: Fixed, as in the published system, whatever the budget; None for the one that comes nearest to the
            budget from below over the whole clip. Cells that change equally are kept or dropped together, so that
            tokens may be left over.
    """

    level: Level
    threshold: float | None = None

    @property
    def name(self) -> str:
        at = "" if self.threshold is None else f" at {self.threshold:g}"
        return f"Differential Token Drop, {self.level}{at}"

    @property
    def needs(self) -> Needs:
        return self.level

    @property
    def causal(self) -> bool:
        # A threshold that meets a budget is known only when the clip is over.
        return self.threshold is not None

    def choose(self, clip: Clip, tokens: int) -> list[Allocation]:
        """See `Rule`; with a fixed threshold the number of cells is what it comes to."""
        check_tokens(clip.grid, tokens)
        later = _change(clip, self)
        if self.threshold is None:
            keep = later > _highest_dropped(later, tokens, clip)
        elif self.level == "pixels":
            keep = later >= self.threshold
        else:
            keep = 1 - later <= self.threshold
        return _with_first(clip, later, keep)

    def threshold_for(self, clip: Clip, tokens: int) -> float | None:
        """The threshold that meets a budget, of the pixels' change or the features' cosine; None if nothing is dropped.

        Of all thresholds that do, it is the one at the most alike of the cells that are kept.
        """
        check_tokens(clip.grid, tokens)
        later = _change(clip, self)
        dropped = _highest_dropped(later, tokens, clip)
        if not np.isfinite(dropped):
            return None
        kept = later[later > dropped]
        least = float(kept.min()) if len(kept) else np.inf
        return least if self.level == "pixels" else 1 - least


@dataclass(frozen=True, slots=True)
class RelativeDrop:
    """The authors' other mode: of every frame after the first the same share is dropped, the cells most like before.

    The share is set so that the clip meets the budget with its first frame whole, and nothing else of later frames is
    looked at. Rounded down on each frame; ties are dropped in reading order.

    Args:
        level: What is compared.
    """

    level: Level
    causal: bool = True

    @property
    def name(self) -> str:
        return f"Differential Token Drop, {self.level}, share of each frame"

    @property
    def needs(self) -> Needs:
        return self.level

    def choose(self, clip: Clip, tokens: int) -> list[Allocation]:
        """See `Rule`."""
        check_tokens(clip.grid, tokens)
        later = _change(clip, self)
        dropped = clip.grid.cells - _left_for_later(tokens, clip) // max(len(later), 1)
        keep = np.ones((len(later), clip.grid.cells), bool)
        most_alike_first = np.argsort(later.reshape(keep.shape), axis=1, kind="stable")
        np.put_along_axis(keep, most_alike_first[:, :dropped], False, axis=1)
        return _with_first(clip, later, keep.reshape(later.shape))


def _change(clip: Clip, rule: DifferentialDrop | RelativeDrop) -> Scores:
    """`[T - 1, gh, gw]`, the higher the less alike."""
    if rule.level == "pixels":
        return pixel_change(clip.rgb)
    return 1 - cosine_to_previous(need_features(clip, rule))


def _left_for_later(tokens: int, clip: Clip) -> int:
    """Cells of the budget that the first frame leaves."""
    return max(0, tokens * len(clip) - clip.grid.cells)


def _highest_dropped(later: Scores, tokens: int, clip: Clip) -> float:
    """The highest change that is dropped, so that what is above it fits the budget."""
    falling = -np.sort(-later, axis=None)
    left = _left_for_later(tokens, clip)
    return float(falling[left]) if left < len(falling) else -np.inf


def _with_first(clip: Clip, later: Scores, keep: Mask) -> list[Allocation]:
    whole = np.ones((clip.grid.rows, clip.grid.columns), bool)
    return kept_each([whole.astype(np.float32), *later], [whole, *keep])
