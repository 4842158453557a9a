"""Rules that look at nothing: evenly spread cells, random ones, and the whole frame scaled down."""

from __future__ import annotations

from arr_stream.selection.allocation import Allocation
from benchmarks.rivals.base import Clip, Rule
from benchmarks.rivals.spread import random_cells, scaled, uniform


def uniform_cells(clip: Clip, tokens: int) -> list[Allocation]:
    """Fine cells as evenly spread as may be, the same on every frame; exactly the budget."""
    return [uniform(clip.grid, tokens)] * len(clip)


def random_rule(seed: int) -> Rule:
    """Fine cells, each as likely as any other, drawn anew on every frame; exactly the budget."""

    def choose(clip: Clip, tokens: int) -> list[Allocation]:
        return [random_cells(clip.grid, tokens, (seed, index)) for index in range(len(clip))]

    return Rule("random", "nothing", choose)


def scaled_cells(clip: Clip, tokens: int) -> list[Allocation]:
    """The whole frame once, as finely as the tokens allow: coarse cells, some divided in four.

    The only rule with cells of level 1 and 2. At most the budget; less where the tokens left do not divide a cell.
    """
    return [scaled(clip.grid, tokens)] * len(clip)
