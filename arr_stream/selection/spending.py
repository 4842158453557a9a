"""Budget over time: tokens come in as a stream's time passes, and are spent on frames with events.

Unspent tokens form a reserve of some seconds. Its level sets a price: a cell is sent if its gain is at least the price.
Under a steady rate of events the price settles where spending equals income; an event after a quiet time meets a full
reserve and a low price. Later frames are not used, and time that runs backwards adds no tokens.

A price that grows exponentially as the budget goes is that of Zhou, Chakrabarty and Lukose, "Budget constrained bidding
in keyword auctions and online knapsack problems" (2008), for offers that come one by one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from arr_stream.selection.allocation import Allocation
from arr_stream.selection.novelty import CHANGE_THRESHOLD
from arr_stream.types import BoolArray, FloatArray

RESERVE_SECONDS = 3.0
"""Longest income that is kept, or one whole frame if that is more.

Ten seconds show about as much of an event but leave more of a short clip's tokens unspent; one second spends more of
them on quiet stretches.
"""

LOWEST_PRICE = 0.05
"""Least gain of a sent cell with a full reserve: flat cells, and flicker of scores in a still scene, are below it."""

_HELD = np.float32(np.inf)


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """Tokens that one frame may spend, and the cells that it may spend them on.

    Args:
        tokens: Most tokens.
        price: Least gain.
        changed: `[gh, gw]`, differs from the content last sent or passed over; None: everything is new.
        settled: `[gh, gw]`, score at which a cell was passed over, infinite if the model has it; None: no cell was.
        whole: A new scene or question, which justifies a whole frame.
    """

    tokens: int
    price: float
    changed: BoolArray | None = None
    settled: FloatArray | None = None
    whole: bool = False

    def gain(self, score: FloatArray) -> FloatArray:
        """Return the gain of each cell, `[gh, gw]`: the whole score if it changed, else the rise of its score since it
        was settled."""
        if self.changed is None or self.settled is None:
            return score
        return np.where(self.changed, score, score - self.settled)

    def wanted(self, score: FloatArray) -> BoolArray:
        """Return `[gh, gw]`: cells whose gain is at least the price."""
        wanted: BoolArray = self.gain(score) >= self.price
        return wanted


class Spending:
    """Reserve of a stream, and the state that gives each cell's gain, from frame to frame."""

    def __init__(self) -> None:
        self._tokens = 0.0
        self._pts_seconds: float | None = None
        self._settled: FloatArray | None = None
        self._whole = True
        self._before: tuple[float, FloatArray | None, bool] = self._tokens, self._settled, self._whole

    def restart(self) -> None:
        """Start a new scene, of which the model has no cell; the reserve stays."""
        self._settled, self._whole = None, True

    def ask(self) -> None:
        """Start a new question: skipped cells may be sent now; the model keeps its cells."""
        if self._settled is not None:
            self._settled = np.where(self._settled == _HELD, _HELD, np.float32(0))
        self._whole = True

    def offer(self, pts_seconds: float, per_second: float, frame_most: int, difference: FloatArray | None) -> Offer:
        """Return the offer of the next frame; the first has just enough tokens for itself.

        Args:
            pts_seconds: Its presentation time.
            per_second: Tokens that come in each second.
            frame_most: Most tokens of a frame.
            difference: `[gh, gw]` from the content last sent or passed over, in grey levels; None on the first frame.
        """
        reserve = max(RESERVE_SECONDS * per_second, frame_most)
        if self._pts_seconds is None:
            self._tokens = frame_most
        else:
            income = per_second * max(0.0, pts_seconds - self._pts_seconds)
            self._tokens = min(self._tokens + income, reserve)
        self._pts_seconds = pts_seconds
        # From 1 with an empty reserve to the lowest price with a full one.
        price = 0.0 if self._whole else LOWEST_PRICE ** (self._tokens / reserve)
        changed = None if difference is None or self._settled is None else difference >= CHANGE_THRESHOLD
        return Offer(min(frame_most, int(self._tokens)), price, changed, self._settled, self._whole)

    def spend(self, offer: Offer, frame_most: int, score: FloatArray, chosen: Allocation) -> None:
        """Pay for the cells that were chosen."""
        self._before = self._tokens, self._settled, self._whole
        settled = np.zeros_like(score) if offer.settled is None else offer.settled.copy()
        if offer.whole:
            passed = _beyond_best(offer.gain(score), frame_most)
            settled[passed] = np.maximum(settled, score)[passed]
        fine = chosen.level <= 0
        settled[chosen.rows[fine], chosen.columns[fine]] = _HELD
        self._tokens, self._settled, self._whole = self._tokens - chosen.tokens, settled, False

    def forget(self) -> None:
        """Forget the sent cells, which the model may have lost; skipped cells stay skipped."""
        if self._settled is not None:
            self._settled = np.where(self._settled == _HELD, np.float32(0), self._settled)

    def undo_last_selection(self) -> None:
        """Undo the last frame's spending, since its cells were not sent."""
        self._tokens, self._settled, self._whole = self._before


def _beyond_best(gain: FloatArray, most: int) -> BoolArray:
    """Return `[gh, gw]`: cells that even a whole frame would not include."""
    beyond: BoolArray = gain < np.partition(gain, -most, axis=None)[-most]
    return beyond
