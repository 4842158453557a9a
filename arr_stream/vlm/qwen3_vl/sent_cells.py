"""Record of the current scene's cells that the model holds, and of their tokens, so that each is sent exactly once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from arr_stream.selection.allocation import Allocation
from arr_stream.selection.novelty import SeenCells
from arr_stream.types import FINER, BoolArray, ByteArray, FloatArray, Grid, IntArray
from arr_stream.vlm.qwen3_vl.cells import Cells
from arr_stream.vlm.qwen3_vl.entries import FrameEntry, SeenMemory


@dataclass(frozen=True, slots=True, eq=False)
class TokenMap:
    """Last token that showed each fine cell `[gh, gw]`: index of the frame sent, -1 without, and of the token in it."""

    entry: IntArray
    cell: IntArray

    @classmethod
    def of(cls, seen: Sequence[FrameEntry], grid: Grid, since: int) -> TokenMap:
        """Paint the blocks sent from frame `since` on, old to new; a coarse view does not hide a finer one."""
        entry = np.full((grid.rows, grid.columns), -1, np.int32)
        cell, level = np.full_like(entry, -1), np.full_like(entry, 127)
        for index, block in enumerate(seen):
            if block.grid != grid or block.frame_index < since:
                continue
            cells = block.block.cells
            for number in np.flatnonzero(cells.level > 0):
                row, column, height, width = cells.blocks[number]
                place = np.s_[row : row + height, column : column + width]
                behind = level[place] >= cells.level[number]
                entry[place][behind], cell[place][behind] = index, number
                level[place][behind] = cells.level[number]
            fine = np.flatnonzero(cells.level <= 0)
            rows, columns = cells.rows[fine], cells.columns[fine]
            entry[rows, columns], cell[rows, columns], level[rows, columns] = index, fine, cells.level[fine]
        return cls(entry, cell)

    def map(self, values: Sequence[npt.NDArray[Any]], dtype: npt.DTypeLike = np.float32) -> npt.NDArray[Any]:
        """Return `[gh, gw]`: the value of the token at each place, 0 without one.

        `values` are, for each block sent, those of its tokens; see `whole_cells`.
        """
        result = np.zeros(self.entry.shape, dtype)
        for index, value in enumerate(values):
            here = self.entry == index
            result[here] = value[self.cell[here]]
        return result


def whole_cells(values: npt.NDArray[Any], cells: Cells) -> npt.NDArray[Any]:
    """Return the values of tokens, `[K]`, with those of quarters summed over their cell."""
    finer = np.flatnonzero(cells.level == FINER)
    if not len(finer):
        return values
    sums = np.zeros(cells.grid_hw, values.dtype)
    place = cells.rows[finer], cells.columns[finer]
    np.add.at(sums, place, values[finer])
    whole = values.copy()
    whole[finer] = sums[place]
    return whole


class SentCells:
    """Cells that the model holds of one scene, which began with frame `since`, at one frame size."""

    def __init__(self, memory: SeenMemory, grid: Grid, since: int) -> None:
        self._memory = memory
        self._cells = SeenCells(grid)
        self._grid = grid
        self._since = since

    def take_new(self, chosen: Cells, eighth_grey: ByteArray) -> Cells:
        """Return the new or changed cells of a frame, given its `Pictures.eighth_grey`, and record them as held."""
        allocation = Allocation(chosen.rows, chosen.columns, chosen.level, chosen.score)
        return chosen.select(self._cells.send(allocation, eighth_grey))

    def known(self, eighth_grey: ByteArray) -> BoolArray:
        """Return `[gh, gw]`: the cells that the model holds in full detail and that have not changed."""
        return self._cells.known(eighth_grey)

    def lose(self, cells: Cells) -> None:
        """Mark cells as not held: the model did not get them."""
        self._cells.lose(cells.covered())

    @contextmanager
    def through_rebuild(self) -> Iterator[None]:
        """Mark as lost the cells that the memory no longer shows after a rebuild; all of them, if the rebuild fails."""
        before = self._views()
        try:
            yield
        finally:
            self._cells.lose(self._views() != before)

    def map(self, values: Sequence[FloatArray], eighth_grey: ByteArray) -> FloatArray:
        """Return `TokenMap.map` for unchanged cells, 0 elsewhere; `[gh, gw]`."""
        values_here: FloatArray = self._map(values)
        values_here[~self._cells.unchanged(eighth_grey)] = 0
        return values_here

    def _views(self) -> IntArray:
        """Return a number for the view at each place, `[gh, gw]`, 0 without one."""
        # Quarters are summed, so a cell that lost some of them gets another number.
        views = [8 * (seen.frame_index + 1) + seen.block.cells.level - FINER for seen in self._memory.frames]
        return self._map(views, np.int32)

    def _map(self, values: Sequence[npt.NDArray[Any]], dtype: npt.DTypeLike = np.float32) -> npt.NDArray[Any]:
        seen = zip(values, self._memory.frames, strict=True)
        whole = [whole_cells(value, entry.block.cells) for value, entry in seen]
        return TokenMap.of(self._memory.frames, self._grid, self._since).map(whole, dtype)
