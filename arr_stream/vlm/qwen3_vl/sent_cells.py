"""Which cells of the present scene the model holds, and by which tokens, so that none is sent twice and none missed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from arr_stream.selection.allocation import Allocation
from arr_stream.selection.novelty import SUMMARY_LEVEL, SeenCells
from arr_stream.types import FINER, BoolArray, ByteArray, FloatArray, Grid, IntArray
from arr_stream.vlm.qwen3_vl.cells import Cells
from arr_stream.vlm.qwen3_vl.entries import FrameEntry, SeenMemory
from arr_stream.vlm.qwen3_vl.regions import Summaries


@dataclass(frozen=True, slots=True, eq=False)
class TokenMap:
    """For each fine cell the last token that showed it; of one that was given finer, one of its four.

    Args:
        entry: `[gh, gw]` int32, index into what was seen; -1 where nothing stands.
        cell: `[gh, gw]` int32, index of the token within its block.
    """

    entry: IntArray
    cell: IntArray

    @classmethod
    def of(cls, seen: Sequence[FrameEntry], grid: Grid, since: int) -> TokenMap:
        """Paint what was seen from frame `since` on, old to new; a coarse view does not hide a finer one.

        A summary does: it is made of cells that have changed since.
        """
        entry = np.full((grid.rows, grid.columns), -1, np.int32)
        cell, level = np.full_like(entry, -1), np.full_like(entry, 127)
        for index, block in enumerate(seen):
            if block.grid != grid or block.frame_index < since:
                continue
            cells, summaries = block.block.cells, block.block.summaries
            if summaries is not None:
                inside = summaries.of_cell >= 0
                entry[inside], cell[inside] = index, len(cells) + summaries.of_cell[inside]
                level[inside] = SUMMARY_LEVEL
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
        """`[gh, gw]`: the value of the token that stands at each place, 0 where none does.

        `values` are, for each thing seen, those of its tokens; see `whole_cells`.
        """
        result = np.zeros(self.entry.shape, dtype)
        for index, value in enumerate(values):
            here = self.entry == index
            result[here] = value[self.cell[here]]
        return result


def whole_cells(values: npt.NDArray[Any], cells: Cells) -> npt.NDArray[Any]:
    """`[K]`: the values of tokens, but those of quarters added up over their cell."""
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
    """The cells of one scene at one frame size.

    Args:
        memory: What the model has seen.
        grid: The scene's cells.
        since: The scene's first frame; what was seen before it stands for nothing in it.
    """

    def __init__(self, memory: SeenMemory, grid: Grid, since: int) -> None:
        self._memory = memory
        self._cells = SeenCells(grid)
        self._grid = grid
        self._since = since

    def take_new(self, chosen: Cells, eighth_grey: ByteArray) -> Cells:
        """Those of a frame, of this `Pictures.eighth_grey`, that are new or have changed; held from now on."""
        allocation = Allocation(chosen.rows, chosen.columns, chosen.level, chosen.score)
        return chosen.take(self._cells.send(allocation, eighth_grey))

    def held(self, eighth_grey: ByteArray) -> BoolArray:
        """`[gh, gw]`: what the model has, at whatever level of detail, and has not changed."""
        return self._cells.unchanged(eighth_grey)

    def known(self, eighth_grey: ByteArray) -> BoolArray:
        """`[gh, gw]`: what the model has in full detail, and has not changed."""
        return self._cells.known(eighth_grey)

    def summarise(self, summaries: Summaries, eighth_grey: ByteArray) -> None:
        """The model has these, of a frame of this `Pictures.eighth_grey`."""
        self._cells.summarise(summaries.of_cell >= 0, eighth_grey)

    def lose(self, cells: Cells) -> None:
        """The model did not get them after all."""
        self._cells.lose(cells.covered())

    @contextmanager
    def through_rebuild(self) -> Iterator[None]:
        """Whatever the memory no longer shows afterwards is lost: all of it, if the rebuild breaks off."""
        before = self._views()
        try:
            yield
        finally:
            self._cells.lose(self._views() != before)

    def map(self, values: Sequence[FloatArray], eighth_grey: ByteArray) -> FloatArray:
        """`[gh, gw]`: as `TokenMap.map`, where a value still stands for what is on the frame, 0 elsewhere."""
        values_here: FloatArray = self._map(values)
        values_here[~self.held(eighth_grey)] = 0
        return values_here

    def _token_map(self) -> TokenMap:
        return TokenMap.of(self._memory.frames, self._grid, self._since)

    def _views(self) -> IntArray:
        """`[gh, gw]`: a number for the view that stands at each place, 0 where none does.

        Views of a cell that lost some of its quarters are others: four times `8 * frame` is the whole.
        """
        views = [8 * (seen.frame_index + 1) + seen.block.level - FINER for seen in self._memory.frames]
        return self._map(views, np.int32)

    def _map(self, values: Sequence[npt.NDArray[Any]], dtype: npt.DTypeLike = np.float32) -> npt.NDArray[Any]:
        seen = zip(values, self._memory.frames, strict=True)
        whole = [whole_cells(value, entry.block.cells) for value, entry in seen]
        return self._token_map().map(whole, dtype)
