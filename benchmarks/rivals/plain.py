"""Rules that look at nothing: evenly spread cells, random ones, and the whole frame scaled down."""

from __future__ import annotations

from dataclasses import dataclass

from arr_stream.selection.allocation import Allocation
from benchmarks.cell_choices import random_cells, scaled, uniform
from benchmarks.rivals.base import Clip, Needs, check_tokens


@dataclass(frozen=True, slots=True)
class Uniform:
    """Fine cells as evenly spread as may be, the same on every frame; exactly the budget."""

    name: str = "uniform grid"
    needs: Needs = "nothing"
    causal: bool = True

    def choose(self, clip: Clip, tokens: int) -> list[Allocation]:
        """See `Rule`."""
        check_tokens(clip.grid, tokens)
        return [uniform(clip.grid, tokens)] * len(clip)


@dataclass(frozen=True, slots=True)
class Random:
    """Fine cells, each as likely as any other, drawn anew on every frame; exactly the budget.

    Args:
        seed: Of the draw.
    """

    seed: int = 0
    name: str = "random"
    needs: Needs = "nothing"
    causal: bool = True

    def choose(self, clip: Clip, tokens: int) -> list[Allocation]:
        """See `Rule`."""
        check_tokens(clip.grid, tokens)
        return [random_cells(clip.grid, tokens, (self.seed, index)) for index in range(len(clip))]


@dataclass(frozen=True, slots=True)
class Scaled:
    """The whole frame once, as finely as the tokens allow: coarse cells, some divided in four.

    The only rule with cells of level 1 and 2. At most the budget; less where the tokens left do not divide a cell.
    """

    name: str = "whole frame scaled down"
    needs: Needs = "nothing"
    causal: bool = True

    def choose(self, clip: Clip, tokens: int) -> list[Allocation]:
        """See `Rule`."""
        check_tokens(clip.grid, tokens)
        return [scaled(clip.grid, tokens)] * len(clip)
