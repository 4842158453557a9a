"""Entries of a model's memory, and the choice of the cells that survive a rebuild."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from arr_stream.types import BoolArray, Grid
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

    def cost(self, entries: Sequence[FrameEntry]) -> int:
        """Return the tokens that frames would add, including the opening if it is not in yet."""
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
