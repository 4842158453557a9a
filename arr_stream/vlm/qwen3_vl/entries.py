"""What a model's memory holds, in order, and what of it stays when it is full."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from arr_stream.types import FloatArray, Grid, IntArray
from arr_stream.vlm.qwen3_vl.cells import Cells
from arr_stream.vlm.qwen3_vl.prompt import Media
from arr_stream.vlm.qwen3_vl.regions import Summaries


class SeenBlock(Protocol):
    """Tokens of one frame, or of a pair, wherever they are held.

    Attributes:
        cells: A token each.
        summaries: Tokens after them, of cells that were not chosen; None for none.
        score: `[K + R]` relevance of each token.
        level: `[K + R]` level of detail of each token.
        sizes: `[K + R]` among how many cells a token's attention is shared out.
    """

    @property
    def cells(self) -> Cells: ...

    @property
    def summaries(self) -> Summaries | None: ...

    @property
    def score(self) -> FloatArray: ...

    @property
    def level(self) -> IntArray: ...

    @property
    def sizes(self) -> FloatArray: ...

    def __len__(self) -> int: ...

    def take(self, keep: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> SeenBlock:
        """Some of the tokens, by mask."""
        ...


@dataclass(frozen=True, slots=True)
class FrameEntry:
    """A block in the memory.

    Args:
        block: Its cells.
        grid: The cells of its frame.
        frame_index: The frame, or the later one of a pair.
        seconds: Time that is told to the model: the frame's, or the mean of the pair's.
        media: As a picture or as part of a video.
    """

    block: SeenBlock
    grid: Grid
    frame_index: int
    seconds: float
    media: Media = "video"


@dataclass(frozen=True, slots=True)
class TextEntry:
    """Text in the memory: a question and its answer, with the markers around them."""

    ids: tuple[int, ...]


Entry = FrameEntry | TextEntry


class SeenMemory(Protocol):
    """What a model has seen, in order.

    Attributes:
        entries: All of it.
        frames: The blocks among the entries.
        tokens: Of all that is in it.
        opening_tokens: That are there before anything is seen.
        visual_tokens: Cells and summaries.
        cache_bytes: What it takes up here.
    """

    entries: list[Entry]

    @property
    def frames(self) -> list[FrameEntry]: ...

    @property
    def tokens(self) -> int: ...

    @property
    def opening_tokens(self) -> int: ...

    @property
    def visual_tokens(self) -> int: ...

    @property
    def cache_bytes(self) -> int: ...

    def cost(self, entries: Sequence[Entry]) -> int:
        """Tokens that entries would add, the opening included where it is still to come."""
        ...

    def append(self, entries: Sequence[Entry]) -> object:
        """Take in entries, in order."""
        ...

    def restart(self) -> None:
        """Forget everything but the opening."""
        ...


DIALOGUE_SHARE = 0.25
"""Most of a rebuilt memory that goes to dialogue."""


def survivors(
    entries: Sequence[Entry], capacity: int, overhead: Callable[[FrameEntry], int], half_life_seconds: float
) -> list[Entry]:
    """What fits into `capacity` tokens, in its old order.

    A cell's rank is its relevance when it was chosen, halved for every half-life that it is older than the newest
    frame; that of a summary is the mean of its cells'. A frame keeps the tokens that rank high enough, and disappears
    with its last one. Of the dialogue the newest turns stay, in at most a quarter of the room.

    Args:
        entries: What is there.
        capacity: Most tokens, markers included.
        overhead: Tokens of a frame beside its cells.
        half_life_seconds: Age at which a cell counts half.
    """
    said = _newest_dialogue(entries, int(capacity * DIALOGUE_SHARE))
    room = capacity - sum(len(entry.ids) for entry in entries if isinstance(entry, TextEntry) and id(entry) in said)
    kept = _best_cells([entry for entry in entries if isinstance(entry, FrameEntry)], room, overhead, half_life_seconds)
    result: list[Entry] = []
    for entry in entries:
        if isinstance(entry, TextEntry):
            if id(entry) in said:
                result.append(entry)
        elif (mask := kept[id(entry)]).any():
            result.append(entry if mask.all() else replace(entry, block=entry.block.take(mask)))
    return result


def _newest_dialogue(entries: Sequence[Entry], room: int) -> set[int]:
    kept = set()
    for entry in reversed(entries):
        if isinstance(entry, TextEntry):
            room -= len(entry.ids)
            if room < 0:
                break
            kept.add(id(entry))
    return kept


def _best_cells(
    seen: Sequence[FrameEntry], room: int, overhead: Callable[[FrameEntry], int], half_life_seconds: float
) -> dict[int, np.ndarray[tuple[int], np.dtype[np.bool_]]]:
    """For each frame a mask over its tokens."""
    kept = {id(entry): np.zeros(len(entry.block), bool) for entry in seen}
    if not seen:
        return kept
    newest = max(entry.seconds for entry in seen)
    ranks = [entry.block.score * 0.5 ** ((newest - entry.seconds) / half_life_seconds) for entry in seen]
    # Among equals the newer first: of a still scene with one score everywhere the last look stays.
    frame = np.repeat(np.arange(len(seen)), [len(rank) for rank in ranks])
    cell = np.concatenate([np.arange(len(rank)) for rank in ranks])
    for place in np.lexsort((cell, -frame, -np.concatenate(ranks))):
        entry = seen[frame[place]]
        mask = kept[id(entry)]
        price = 1 if mask.any() else 1 + overhead(entry)
        if price <= room:
            mask[cell[place]] = True
            room -= price
    return kept
