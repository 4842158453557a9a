"""Scores become cells on a device: the best under a budget with coarse ones for context, and which are new.

Mirrors `selection.allocation.allocate_tokens` and `selection.novelty.SeenCells`. No shape depends on values: there are
always as many places for cells as the budget has, and `count` says how many of them are taken.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from arr_stream.selection.allocation import COARSE_LEVEL, COARSE_WORTH
from arr_stream.selection.novelty import CHANGE_THRESHOLD

_SPAN = 1 << COARSE_LEVEL
_NEVER = 127
_NONE = -1.0
"""Below every score."""


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """Chosen cells, best first; only the first `count` places are taken.

    Args:
        cell: `[T]` int64, top-left fine cell, row by row.
        coarse: `[T]` bool, the cell covers 4x4 fine ones.
        score: `[T]` float32.
        count: `[]` int64.
    """

    cell: Tensor
    coarse: Tensor
    score: Tensor
    count: Tensor

    @property
    def taken(self) -> Tensor:
        """`[T]` bool."""
        return torch.arange(self.cell.shape[0], device=self.cell.device) < self.count

    def fine_map(self, cells_hw: tuple[int, int]) -> Tensor:
        """`[gh, gw]` float32: 1 where a cell was chosen in full detail."""
        chosen = (self.taken & ~self.coarse).float()
        # Places that are not taken point at some cell too and add nothing.
        flat = torch.zeros(cells_hw[0] * cells_hw[1], device=chosen.device).scatter_add_(0, self.cell, chosen)
        return flat.view(cells_hw)

    def coarse_map(self, cells_hw: tuple[int, int]) -> Tensor:
        """`[gh, gw]` float32: 1 throughout the blocks of coarse cells."""
        chosen = (self.taken & self.coarse).float()
        flat = torch.zeros(cells_hw[0] * cells_hw[1], device=chosen.device).scatter_add_(0, self.cell, chosen)
        return _spread(flat.view(cells_hw)[::_SPAN, ::_SPAN], cells_hw)


def allocate(score: Tensor, eligible: Tensor, tokens: int, coarse_most: int) -> Choice:
    """The best fine cells, with coarse ones where they are worth more than the last fine ones.

    Args:
        score: `[gh, gw]` in [0, 1].
        eligible: `[gh, gw]` bool, which cells may be chosen fine.
        tokens: Cells to choose; fewer are where fewer are eligible.
        coarse_most: Most coarse cells.
    """
    flat, device = score.flatten(), score.device
    ranked = torch.where(eligible.flatten(), flat, _NONE).sort(descending=True, stable=True).indices[:tokens]
    count = eligible.sum().clamp(max=tokens)
    place = torch.arange(len(ranked), device=device)
    blocks, exchanged = _exchanges(score, ranked, count, place, coarse_most)
    fine = place < count - exchanged
    if len(blocks) == 0:
        return Choice(ranked, torch.zeros_like(fine), torch.where(fine, flat[ranked], 0.0), count)
    left = torch.ones_like(flat).scatter_reduce(0, ranked, (~fine).float(), "amin").view(score.shape)
    shown = block_sum(left).flatten()[blocks].clamp(min=1)
    block_score = block_sum(score * left).flatten()[blocks] / shown
    wide = -(-score.shape[1] // _SPAN)
    corner = (blocks // wide * score.shape[1] + blocks % wide) * _SPAN
    coarse = torch.arange(len(blocks), device=device) < exchanged
    cell = torch.cat([ranked, corner])
    worth = torch.cat([torch.where(fine, flat[ranked], _NONE), torch.where(coarse, block_score, _NONE)])
    is_coarse = torch.cat([torch.zeros_like(fine), torch.ones_like(coarse)])
    best = worth.sort(descending=True, stable=True).indices[: len(ranked)]
    return Choice(cell[best], is_coarse[best], worth[best].clamp(min=0), count)


def _exchanges(score: Tensor, ranked: Tensor, count: Tensor, place: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Blocks, best first, and how many of them are worth more than the fine cells that they replace."""
    flat = score.flatten()
    rest = flat.scatter_reduce(0, ranked, torch.where(place < count, 0.0, flat[ranked]), "amin")
    worth = block_sum(rest.view(score.shape)).flatten() * COARSE_WORTH
    most = min(most, len(worth), len(ranked) - 1)
    if most <= 0:
        return ranked[:0], torch.zeros((), dtype=torch.long, device=score.device)
    best = worth.sort(descending=True, stable=True)
    turn = torch.arange(most, device=score.device)
    given_up = flat[ranked[(count - 1 - turn).clamp(min=0)]]
    gains = (best.values[:most] > given_up) & (turn < count - 1)
    return best.indices[:most], gains.long().cumprod(0).sum()


def block_sum(values: Tensor) -> Tensor:
    """`[gh, gw]` to sums over blocks of 4x4 cells; those that reach beyond the grid count what there is."""
    below, right = -values.shape[0] % _SPAN, -values.shape[1] % _SPAN
    return F.avg_pool2d(F.pad(values, (0, right, 0, below))[None], _SPAN)[0] * _SPAN**2


def _spread(blocks: Tensor, cells_hw: tuple[int, int]) -> Tensor:
    """A value a block as a value a cell."""
    return enlarged(blocks, _SPAN)[: cells_hw[0], : cells_hw[1]]


def enlarged(values: Tensor, factor: int) -> Tensor:
    """`[h, w]` to `[h * factor, w * factor]`, each value repeated."""
    height, width = values.shape
    wide = values[:, None, :, None].expand(height, factor, width, factor)
    return wide.reshape(height * factor, width * factor)


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """Reduced pictures of the cells as they were when last sent.

    Args:
        sent: `[4 * gh, 4 * gw]` float32 lightness at an eighth of the texture's size.
        level: `[gh, gw]` int32, the level of detail that each cell was sent at; 127 for never.
    """

    sent: Tensor
    level: Tensor

    @classmethod
    def nothing(cls, cells_hw: tuple[int, int], device: torch.device) -> Seen:
        """All is new."""
        rows, columns = cells_hw
        level = torch.full(cells_hw, _NEVER, dtype=torch.int32, device=device)
        return cls(torch.zeros((rows * 4, columns * 4), device=device), level)

    def stale(self, eighth_grey: Tensor) -> Tensor:
        """`[gh, gw]` bool: never sent, or changed since, by the mean difference in whole grey levels."""
        change = F.avg_pool2d((eighth_grey - self.sent).abs()[None], 4)[0].round()
        return (change >= CHANGE_THRESHOLD) | (self.level == _NEVER)

    def known(self, eighth_grey: Tensor) -> Tensor:
        """`[gh, gw]` bool: sent in full detail before, and unchanged."""
        return ~self.stale(eighth_grey) & (self.level == 0)

    def send(self, choice: Choice, eighth_grey: Tensor) -> tuple[Seen, Tensor]:
        """What is seen once the chosen cells are sent; `[T]` bool: which of them are new or changed at their level."""
        hw = (self.level.shape[0], self.level.shape[1])
        stale = self.stale(eighth_grey)
        fine = choice.fine_map(hw) > 0
        new = stale | (self.level > 0)
        level = torch.where(fine, 0, self.level)
        # Cells of a block that are shown finer do not need the coarse view.
        behind = (level > 0) & (choice.coarse_map(hw) > 0)
        wanted = behind & (stale | (level > COARSE_LEVEL))
        new_block = _spread(block_sum(wanted.float()) > 0, hw)
        sending = (fine & new) | (behind & new_block)
        level = torch.where(behind & new_block, COARSE_LEVEL, level).to(torch.int32)
        sent = torch.where(enlarged(sending, 4), eighth_grey, self.sent)
        fresh = torch.where(choice.coarse, new_block.flatten()[choice.cell], new.flatten()[choice.cell])
        return Seen(sent, level), fresh
