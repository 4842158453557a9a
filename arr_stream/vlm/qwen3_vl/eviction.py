"""Which of what was seen a rebuilt memory keeps: the most relevant and the most recent first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from arr_stream.vlm.qwen3_vl.memory import Entry, Said, Seen

DIALOGUE_SHARE = 0.25
"""Most of a rebuilt memory that goes to dialogue."""


def survivors(
    entries: Sequence[Entry], capacity: int, overhead: Callable[[Seen], int], half_life_seconds: float
) -> list[Entry]:
    """What fits into `capacity` tokens, in its old order.

    A cell's rank is its relevance when it was chosen, halved for every half-life that it is older than the newest
    frame. A frame keeps the cells that rank high enough, and disappears with its last one. Of the dialogue the
    newest turns stay, in at most a quarter of the room.

    Args:
        entries: What is there.
        capacity: Most tokens, markers included.
        overhead: Tokens of a frame beside its cells.
        half_life_seconds: Age at which a cell counts half.
    """
    said = _newest_dialogue(entries, int(capacity * DIALOGUE_SHARE))
    room = capacity - sum(len(entry.ids) for entry in entries if isinstance(entry, Said) and id(entry) in said)
    kept = _best_cells([entry for entry in entries if isinstance(entry, Seen)], room, overhead, half_life_seconds)
    result: list[Entry] = []
    for entry in entries:
        if isinstance(entry, Said):
            if id(entry) in said:
                result.append(entry)
        elif (mask := kept[id(entry)]).any():
            result.append(entry if mask.all() else replace(entry, block=entry.block.take(mask)))
    return result


def _newest_dialogue(entries: Sequence[Entry], room: int) -> set[int]:
    kept = set()
    for entry in reversed(entries):
        if isinstance(entry, Said):
            room -= len(entry.ids)
            if room < 0:
                break
            kept.add(id(entry))
    return kept


def _best_cells(
    seen: Sequence[Seen], room: int, overhead: Callable[[Seen], int], half_life_seconds: float
) -> dict[int, np.ndarray[tuple[int], np.dtype[np.bool_]]]:
    """For each frame a mask over its cells."""
    kept = {id(entry): np.zeros(len(entry.block), bool) for entry in seen}
    if not seen:
        return kept
    newest = max(entry.seconds for entry in seen)
    ranks = [entry.block.cells.score * 0.5 ** ((newest - entry.seconds) / half_life_seconds) for entry in seen]
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
