"""Entries of a model's memory, in order, and the choice of those that survive a rebuild."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from arr_stream.types import FloatArray, Grid, IntArray
from arr_stream.vlm.qwen3_vl.cells import Cells
from arr_stream.vlm.qwen3_vl.prompt import Media


class SeenBlock(Protocol):
    """Tokens of one frame, or of a pair, in a local cache or on a server.

    Attributes:
        cells: One token each.
        score: `[K]` relevance of each token.
        level: `[K]` level of detail of each token.
    """

    @property
    def cells(self) -> Cells: ...

    @property
    def score(self) -> FloatArray: ...

    @property
    def level(self) -> IntArray: ...

    def __len__(self) -> int: ...

    def take(self, keep: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> SeenBlock:
        """Return the tokens that the mask keeps."""
        ...


@dataclass(frozen=True, slots=True)
class FrameEntry:
    """Block in the memory.

    Args:
        block: Its cells.
        grid: The cells of its frame.
        frame_index: The frame, or the later one of a pair.
        seconds: Timestamp in the prompt: the frame's, or the mean of the pair's.
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
    """Frames and dialogue that a model has, in order.

    Attributes:
        entries: All entries.
        frames: The blocks among the entries.
        tokens: Of all entries.
        opening_tokens: Tokens before the first frame.
        visual_tokens: Cells.
        cache_bytes: Size of the local KV cache.
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
        """Return the tokens that entries would add, including the opening if it is not in yet."""
        ...

    def append(self, entries: Sequence[Entry]) -> object:
        """Append entries, in order."""
        ...

    def restart(self) -> None:
        """Forget everything but the opening."""
        ...


DIALOGUE_SHARE = 0.25
"""Largest share of a rebuilt memory for dialogue."""


def survivors(
    entries: Sequence[Entry], capacity: int, overhead: Callable[[FrameEntry], int], half_life_seconds: float
) -> list[Entry]:
    """Return the entries that fit into `capacity` tokens, in their old order.

    A cell's rank is its relevance at its selection, halved for every half-life that it is older than the newest frame.
    A frame keeps the tokens that rank high enough, and disappears with its last one. The newest dialogue turns stay, in
    at most a quarter of the capacity.

    Args:
        entries: The current entries.
        capacity: Most tokens, markers included.
        overhead: Tokens of a frame in addition to its cells.
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
    """Return a mask over the tokens of each frame."""
    kept = {id(entry): np.zeros(len(entry.block), bool) for entry in seen}
    if not seen:
        return kept
    newest = max(entry.seconds for entry in seen)
    ranks = [entry.block.score * 0.5 ** ((newest - entry.seconds) / half_life_seconds) for entry in seen]
    # Among equal ranks the newer wins: of a still scene with one score everywhere, the last view stays.
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
