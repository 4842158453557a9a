"""Allocation of a token budget: the chosen cells and their levels of detail, from the scores."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

from arr_stream.types import FINER, FINER_TOKENS, BoolArray, FloatArray, IntArray, tokens_of

COARSE_LEVEL = 2
"""Level of detail of context cells: 4x4 fine cells for one token."""

COARSE_WORTH = 1 / 8
"""Factor on a fine cell's score if the cell is shown only as part of a coarse cell. Its share of the pixels is a
sixteenth; twice that makes a block of even background worth two of its cells."""

LEAST_SMALL_TEXT = 1 / 16
"""Least share of a cell that small text covers: one of its 16 samples."""
LEAST_SCORE = 0.2
"""Share of the highest score below which small text keeps its level, since no query needs it."""
FINER_WORTH = 3.0
"""Factor on a cell's score if it is sent finer: it then has four times as many pixels, three quarters of them new."""


@dataclass(frozen=True, slots=True, eq=False)
class Allocation:
    """Chosen cells, best first.

    Args:
        rows, columns: `[N]` int32, top-left fine cell.
        level: `[N]` int32, 0 fine, 1 covers 2x2, 2 covers 4x4, -1 fine as four tokens.
        score: `[N]` float32; a coarse cell has the mean score of the fine ones it covers.
    """

    rows: IntArray
    columns: IntArray
    level: IntArray
    score: FloatArray

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def tokens(self) -> int:
        return int(tokens_of(self.level).sum())


def allocate_tokens(score: FloatArray, eligible: BoolArray, tokens: int, coarse_most: int) -> Allocation:
    """Choose the best fine cells, and coarse ones for the background where they are worth more than the last fine ones.

    Starting from fine cells alone, the least fine cell is exchanged for the best block as long as that gains
    (`COARSE_WORTH`), so a question about a few cells leaves tokens for context.

    Args:
        score: `[gh, gw]` in [0, 1].
        eligible: `[gh, gw]`, which cells may be chosen fine.
        tokens: Cells to choose; fewer are returned only if fewer are eligible.
        coarse_most: Most coarse cells.
    """
    columns = score.shape[1]
    flat = score.ravel()
    pool = np.flatnonzero(eligible.ravel())
    order = pool[np.argsort(-flat[pool], kind="stable")][:tokens].astype(np.int32)
    blocks = _exchanges(score, order, min(coarse_most, len(order) - 1))
    fine = order[: len(order) - len(blocks)]
    rows, cols = fine // columns, fine % columns
    if not len(blocks):
        return Allocation(rows, cols, np.zeros_like(rows), flat[fine])
    span = 1 << COARSE_LEVEL
    blocks_wide = -(-columns // span)
    left = np.ones(score.shape, np.float32)
    left.ravel()[fine] = 0
    shown = np.maximum(_block_sum(left).ravel()[blocks], 1)
    block_score = _block_sum(score * left).ravel()[blocks] / shown
    level = np.concatenate([np.zeros_like(rows), np.full(len(blocks), COARSE_LEVEL, np.int32)])
    rows = np.concatenate([rows, (blocks // blocks_wide * span).astype(np.int32)])
    cols = np.concatenate([cols, (blocks % blocks_wide * span).astype(np.int32)])
    scores = np.concatenate([flat[fine], block_score]).astype(np.float32)
    best_first = np.argsort(-scores, kind="stable")
    return Allocation(rows[best_first], cols[best_first], level[best_first], scores[best_first])


def _exchanges(score: FloatArray, order: IntArray, most: int) -> IntArray:
    """Return the blocks that are worth more than the fine cells that they replace, best first."""
    if most <= 0:
        return np.zeros(0, np.int32)
    rest = score.copy()
    rest.ravel()[order] = 0
    worth = _block_sum(rest) * COARSE_WORTH
    blocks = np.argsort(-worth.ravel(), kind="stable")[:most].astype(np.int32)
    given_up = score.ravel()[order[::-1][: len(blocks)]]
    gains = worth.ravel()[blocks] > given_up
    count = len(blocks) if gains.all() else int(gains.argmin())
    return blocks[:count]


def _block_sum(values: FloatArray) -> FloatArray:
    """Return sums over blocks of 4x4 cells; blocks that reach beyond the grid sum their cells inside it."""
    span = 1 << COARSE_LEVEL
    sums: FloatArray = np.add.reduceat(values, np.arange(0, values.shape[0], span), axis=0)
    return np.add.reduceat(sums, np.arange(0, values.shape[1], span), axis=1)


def with_finer(chosen: Allocation, small_text: FloatArray, tokens: int, share: float) -> Allocation:
    """Replace the best chosen cells with small text by four tokens each, from the source's own pixels.

    The lowest fine cells make room for them, if the readable cell is worth more than the three that it replaces.
    Neighbouring cells are exchanged together, line by line and by their mean score, since half a word cannot be read.
    Coarse cells stay: they are few, and the only ones of the background.

    Args:
        chosen: Cells, best first, of at most `tokens` tokens.
        small_text: `[gh, gw]` in [0, 1], share of each cell that small text covers.
        tokens, share: The budget, and the largest share of it for finer cells.
    """
    fine = np.flatnonzero(chosen.level == 0).astype(np.int32)
    wanted, worth = _wanted(chosen, fine, small_text >= LEAST_SMALL_TEXT)
    spare, extra = tokens - chosen.tokens, FINER_TOKENS - 1
    # Cost of each further token: 0 while tokens are left, then the score of the lowest cell that no query wants.
    stays = np.zeros(len(chosen), bool)
    stays[wanted] = True
    lowest_first = fine[::-1][~stays[fine[::-1]]]
    given_up = np.concatenate([np.full(spare, len(chosen)), lowest_first])
    price = np.concatenate([np.zeros(spare, np.float32), chosen.score[lowest_first]])
    most = min(len(wanted), int(share * tokens) // FINER_TOKENS, len(price) // extra)
    gains = FINER_WORTH * worth[:most] > price[: most * extra].reshape(most, extra).sum(axis=1)
    count = most if gains.all() else int(gains.argmin())
    keep = np.ones(len(chosen), bool)
    keep[given_up[spare : max(spare, count * extra)]] = False
    level = chosen.level.copy()
    level[wanted[:count]] = FINER
    return Allocation(chosen.rows[keep], chosen.columns[keep], level[keep], chosen.score[keep])


def _wanted(chosen: Allocation, fine: IntArray, small: BoolArray) -> tuple[IntArray, FloatArray]:
    """Return indices of the fine cells to refine, best first, and the worth of each: the mean of its group."""
    there = np.zeros(small.shape, np.uint8)
    there[chosen.rows[fine], chosen.columns[fine]] = 1
    count, labels = cv2.connectedComponents(there * small, connectivity=8)
    group = labels[chosen.rows[fine], chosen.columns[fine]]
    sizes = np.bincount(group, minlength=count)
    mean = np.bincount(group, chosen.score[fine], count) / np.maximum(sizes, 1)
    mean[0] = -1
    asked_for = mean[group] >= LEAST_SCORE * chosen.score.max(initial=0.0)
    cells = fine[asked_for]
    worth = mean[group[asked_for]].astype(np.float32)
    order = np.lexsort((chosen.columns[cells], chosen.rows[cells], group[asked_for], -worth))
    return cells[order], worth[order]
