"""Cells at a finer level of detail than the texture: four tokens each, for small text that only the source resolves."""

from __future__ import annotations

import cv2
import numpy as np

from arr_stream.selection.allocation import Allocation
from arr_stream.types import FINER, FINER_TOKENS, BoolArray, FloatArray, IntArray

LEAST_SMALL_TEXT = 1 / 16
"""Least share of a cell that small text covers: one of its 16 samples."""
LEAST_SCORE = 0.2
"""Share of the highest score below which small text keeps its level, since no query needs it."""
FINER_WORTH = 3.0
"""Factor on a cell's score if it is sent finer: it then has four times as many pixels, three quarters of them new."""


def with_finer(chosen: Allocation, small_text: FloatArray, tokens: int, share: float) -> Allocation:
    """Replace the best chosen cells with small text by four tokens each; the lowest fine cells make room for them.

    Neighbouring cells are exchanged together, line by line and by their mean score, since half a word cannot be read.
    An exchange is made only if the readable cell is worth more than the three cells that it replaces. Coarse cells
    stay: they are few, and the only ones of the background.

    Args:
        chosen: Cells, best first, of at most `tokens` tokens.
        small_text: `[gh, gw]` in [0, 1], share of each cell that small text covers.
        tokens: The budget.
        share: Largest share of it for finer cells.
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
