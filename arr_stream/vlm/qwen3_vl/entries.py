"""Entries of a model's memory, the cells that survive a rebuild, and those held of the current scene."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from arr_stream.selection.allocation import Allocation
from arr_stream.selection.novelty import SeenCells
from arr_stream.types import FINER, BoolArray, ByteArray, FloatArray, Grid, IntArray
from arr_stream.vlm.qwen3_vl.cells import Cells
from arr_stream.vlm.qwen3_vl.prompt import Media


class SeenBlock(Protocol):
    """Tokens of one frame, or of a pair, in a local cache or on a server; one for each of its `cells`."""

    @property
    def cells(self) -> Cells: ...

    def __len__(self) -> int: ...

    def select(self, keep: BoolArray) -> SeenBlock:
        """Return the tokens that the mask keeps."""
        ...


@dataclass(frozen=True, slots=True)
class FrameEntry:
    """Block of one frame, or of a pair, in the memory.

    `frame_index` is the later one's of a pair; `seconds`, the timestamp in the prompt, their mean.
    """

    block: SeenBlock
    grid: Grid
    frame_index: int
    seconds: float
    media: Media = "video"


@dataclass(frozen=True, slots=True)
class TextEntry:
    """Text between frames; only a memory that is never rebuilt may hold it."""

    ids: tuple[int, ...]


Entry = FrameEntry | TextEntry


class SeenMemory(Protocol):
    """Frames that a model has, in order.

    Of its `tokens`, `opening_tokens` come before the first frame, and `visual_tokens` are cells.
    """

    frames: list[FrameEntry]

    @property
    def tokens(self) -> int: ...

    @property
    def opening_tokens(self) -> int: ...

    @property
    def visual_tokens(self) -> int: ...

    @property
    def cache_bytes(self) -> int: ...

    def frame_tokens(self, cells: int, grid: Grid, seconds: float, media: Media) -> int:
        """Return the tokens that a frame takes with its markers."""
        ...

    def append(self, entries: Sequence[FrameEntry]) -> object: ...

    def restart(self) -> None:
        """Forget everything but the opening."""
        ...


def survivors(
    frames: Sequence[FrameEntry], capacity: int, overhead: Callable[[FrameEntry], int], half_life_seconds: float
) -> list[FrameEntry]:
    """Return the frames that fit into `capacity` tokens, in their old order, with the best of their cells.

    A cell's rank is its relevance at its selection, halved for every half-life that it is older than the newest frame.
    A frame's first cell also costs its `overhead`.
    """
    if not frames:
        return []
    newest = max(seen.seconds for seen in frames)
    ranks = [seen.block.cells.score * 0.5 ** ((newest - seen.seconds) / half_life_seconds) for seen in frames]
    kept = [np.zeros(len(rank), bool) for rank in ranks]
    # Among equal ranks the newer wins: of a still scene with one score everywhere, the last view stays.
    frame = np.repeat(np.arange(len(frames)), [len(rank) for rank in ranks])
    cell = np.concatenate([np.arange(len(rank)) for rank in ranks])
    for place in np.lexsort((cell, -frame, -np.concatenate(ranks))):
        number = frame[place]
        price = 1 if kept[number].any() else 1 + overhead(frames[number])
        if price <= capacity:
            kept[number][cell[place]] = True
            capacity -= price
    return [
        seen if mask.all() else replace(seen, block=seen.block.select(mask))
        for seen, mask in zip(frames, kept, strict=True)
        if mask.any()
    ]


def token_map(frames: Sequence[FrameEntry], grid: Grid, since: int) -> tuple[IntArray, IntArray]:
    """Return the last token that showed each fine cell: the index of its frame, -1 without, and its place in the block.

    Both are `[gh, gw]`. Frames from index `since` on are painted old to new; a coarse view does not hide a finer one.
    """
    entry = np.full((grid.rows, grid.columns), -1, np.int32)
    cell, level = np.full_like(entry, -1), np.full_like(entry, 127)
    for index, seen in enumerate(frames):
        if seen.grid != grid or seen.frame_index < since:
            continue
        cells = seen.block.cells
        for number in np.flatnonzero(cells.level > 0):
            row, column, height, width = cells.blocks[number]
            place = np.s_[row : row + height, column : column + width]
            behind = level[place] >= cells.level[number]
            entry[place][behind], cell[place][behind] = index, number
            level[place][behind] = cells.level[number]
        fine = np.flatnonzero(cells.level <= 0)
        rows, columns = cells.rows[fine], cells.columns[fine]
        entry[rows, columns], cell[rows, columns], level[rows, columns] = index, fine, cells.level[fine]
    return entry, cell


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
        """Return the value of the token that showed each unchanged cell, 0 elsewhere; `[gh, gw]`.

        `values` are, for each frame in the memory, those of its tokens; quarters count together.
        """
        values_here: FloatArray = self._map(values)
        values_here[~self._cells.unchanged(eighth_grey)] = 0
        return values_here

    def _views(self) -> IntArray:
        """Return a number for the view at each place, `[gh, gw]`, 0 without one."""
        # Quarters are summed, so a cell that lost some of them gets another number.
        views = [8 * (seen.frame_index + 1) + seen.block.cells.level - FINER for seen in self._memory.frames]
        return self._map(views, np.int32)

    def _map(self, values: Sequence[npt.NDArray[Any]], dtype: npt.DTypeLike = np.float32) -> npt.NDArray[Any]:
        entry, cell = token_map(self._memory.frames, self._grid, self._since)
        result = np.zeros(entry.shape, dtype)
        for index, (value, seen) in enumerate(zip(values, self._memory.frames, strict=True)):
            here = entry == index
            result[here] = whole_cells(value, seen.block.cells)[cell[here]]
        return result
