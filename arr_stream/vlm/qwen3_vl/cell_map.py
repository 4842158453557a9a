"""Which of the model's tokens stands for each place of the present frame."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from arr_stream.types import FloatArray, Grid, IntArray
from arr_stream.vlm.qwen3_vl.memory import Seen


@dataclass(frozen=True, slots=True, eq=False)
class Standing:
    """For each fine cell the last token that showed it.

    Args:
        entry: `[gh, gw]` int32, index into what was seen; -1 where nothing stands.
        cell: `[gh, gw]` int32, index of the cell within its block.
    """

    entry: IntArray
    cell: IntArray

    @classmethod
    def of(cls, seen: Sequence[Seen], grid: Grid, since: int) -> Standing:
        """Paint what was seen from frame `since` on, old to new; a coarse view does not hide a finer one."""
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
            fine = np.flatnonzero(cells.level == 0)
            rows, columns = cells.rows[fine], cells.columns[fine]
            entry[rows, columns], cell[rows, columns], level[rows, columns] = index, fine, 0
        return cls(entry, cell)

    def map(self, values: Sequence[FloatArray]) -> FloatArray:
        """`[gh, gw]`: the value of the token that stands at each place, 0 where none does.

        Args:
            values: For each thing seen, `[K]` values of its cells.
        """
        result = np.zeros(self.entry.shape, np.float32)
        for index, value in enumerate(values):
            here = self.entry == index
            result[here] = value[self.cell[here]]
        return result
