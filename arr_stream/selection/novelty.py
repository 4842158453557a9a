"""Novelty: a cell that has not changed since it was sent to the model need not be sent again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from arr_stream.selection.allocation import Allocation
from arr_stream.texture.arrays import Array, enlarged, namespace
from arr_stream.texture.pixels import cell_difference
from arr_stream.types import BoolArray, FloatArray, Grid

CHANGE_THRESHOLD = 10.0
"""Mean difference of a cell's 4x4 reduced pixels, in grey levels of 255, from which it counts as changed."""

_NEVER = 127


class SeenCells:
    """Reduced pictures of the cells at the time when they were last sent.

    On a device, the caller requests `cell_difference` to `sent` from it.

    Args:
        grid: The cells.
        put: Copies an array to the pictures' device.
    """

    def __init__(self, grid: Grid, put: Callable[[npt.NDArray[Any]], Array] = lambda values: values) -> None:
        self._shape = (grid.rows, grid.columns)
        self._put = put
        self._level = np.full(self._shape, _NEVER, np.int8)
        self.sent: Array | None = None
        self._before = self._level, self.sent

    def forget(self) -> None:
        """Forget all sent cells: the model's context is rebuilt, so every cell is new again."""
        self._level[:] = _NEVER

    def lose(self, cells: BoolArray) -> None:
        """Mark cells (`[gh, gw]`) as no longer in the model's memory."""
        self._level[cells] = _NEVER

    def change(self, eighth_grey: Array, difference: FloatArray | None = None) -> FloatArray:
        """Return the mean difference from the sent picture, `[gh, gw]` in grey levels; infinite for cells not sent."""
        if difference is None and self.sent is not None:
            difference = cell_difference(eighth_grey, self.sent)
        if difference is None:
            return np.full(self._shape, np.inf, np.float32)
        return np.where(self._level == _NEVER, np.float32(np.inf), difference)

    def unchanged(self, eighth_grey: Array, difference: FloatArray | None = None) -> BoolArray:
        """Return `[gh, gw]`: cells sent before, at any level of detail, and unchanged since."""
        unchanged: BoolArray = self.change(eighth_grey, difference) < CHANGE_THRESHOLD
        return unchanged

    def known(self, eighth_grey: Array, difference: FloatArray | None = None) -> BoolArray:
        """Return `[gh, gw]`: cells sent in full detail before, and unchanged since."""
        known: BoolArray = self.unchanged(eighth_grey, difference) & (self._level <= 0)
        return known

    def send(
        self, chosen: Allocation, eighth_grey: Array, difference: FloatArray | None = None, *, whole: bool = False
    ) -> BoolArray:
        """Record the chosen cells as sent; return `[N]` bool: new or changed at their level of detail.

        With `whole`, later changes of the other cells are also measured from this picture.
        """
        self._before = self._level.copy(), self.sent
        stale = self.change(eighth_grey, difference) >= CHANGE_THRESHOLD
        fresh = np.empty(len(chosen), bool)
        sending = np.full(self._shape, whole)
        fine = chosen.level <= 0
        r, c, level = chosen.rows[fine], chosen.columns[fine], chosen.level[fine]
        fresh[fine] = stale[r, c] | (self._level[r, c] > level)
        sent = fresh[fine]
        sending[r[sent], c[sent]] = True
        self._level[r[sent], c[sent]] = level[sent]
        shown = np.zeros(self._shape, bool)
        shown[r, c] = True
        if len(r) < len(chosen):
            for level in np.unique(chosen.level[~fine]):
                self._send_blocks(int(level), chosen, stale, shown, fresh, sending)
        self._renew(sending, eighth_grey)
        return fresh

    def _renew(self, cells: BoolArray, eighth_grey: Array) -> None:
        """Store the picture of these cells as sent."""
        renewed = enlarged(self._put(cells), 4)
        before = namespace(eighth_grey).zeros_like(eighth_grey) if self.sent is None else self.sent
        self.sent = namespace(eighth_grey).where(renewed, eighth_grey, before)

    def undo_last_selection(self) -> None:
        """Undo the last record: those cells were not sent."""
        self._level, self.sent = self._before

    def _send_blocks(
        self, level: int, chosen: Allocation, stale: BoolArray, shown: BoolArray, fresh: BoolArray, sending: BoolArray
    ) -> None:
        """Record the chosen blocks of one level of detail, which do not overlap, all at once; see `send`."""
        of_level = np.flatnonzero(chosen.level == level)
        reach = np.arange(1 << level)
        # Blocks at the border reach beyond the grid; reading a border cell twice there changes nothing.
        rows = np.minimum(chosen.rows[of_level, None] + reach, self._shape[0] - 1)[:, :, None]
        columns = np.minimum(chosen.columns[of_level, None] + reach, self._shape[1] - 1)[:, None, :]
        known = self._level[rows, columns]
        # Cells of a block that are shown finer, now or unchanged from before, do not need the coarse view.
        behind = ~shown[rows, columns] & ((known > 0) | stale[rows, columns])
        fresh[of_level] = (behind & (stale[rows, columns] | (known > level))).any(axis=(1, 2))
        renewed = behind & fresh[of_level, None, None]
        sending[rows, columns] |= renewed
        self._level[rows, columns] = np.where(renewed, level, known)
