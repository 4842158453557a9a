"""Streaming of chosen cells to a model, frame by frame, and the rebuild of its memory when that is full.

Subclasses provide the memory: a local KV cache, or a conversation with a server.
"""

from __future__ import annotations

import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import numpy as np

from arr_stream.config import Settings
from arr_stream.errors import ArrStreamError, ContextExceeded, NothingChosen
from arr_stream.patch_set import Answer, Feeding, PatchSet
from arr_stream.texture.pictures import Pictures
from arr_stream.types import ByteArray, FloatArray, Frame, Grid
from arr_stream.vlm import OnText, Stop
from arr_stream.vlm.qwen3_vl.cells import Cells, merged, texture_picture
from arr_stream.vlm.qwen3_vl.entries import FrameEntry, SeenBlock, SeenMemory, SentCells, survivors

_QUESTION_TOKENS = 256
"""Tokens kept free for a question, in addition to the answer's."""


@dataclass(frozen=True, slots=True, eq=False)
class ChosenFrame:
    """One frame with its chosen cells, ready to be encoded."""

    source: ByteArray
    picture: ByteArray
    eighth_grey: ByteArray
    cells: Cells
    relevance: FloatArray
    grid: Grid
    index: int
    seconds: float

    @classmethod
    def of(cls, frame: Frame, patches: PatchSet) -> ChosenFrame:
        return cls(
            source=frame.rgb,
            picture=texture_picture(frame.rgb, patches.grid.texture_wh),
            eighth_grey=Pictures(frame, patches.grid).eighth_grey,
            cells=Cells.chosen(patches),
            relevance=patches.relevance,
            grid=patches.grid,
            index=frame.index,
            seconds=frame.pts_seconds,
        )


class StreamingSession(ABC):
    """Base of sessions that show a model the chosen cells of frames; not to be called from within `on_text`.

    Attributes:
        memory: Memory of the frames shown.
        context_tokens: Most tokens in it, question and answer included.
        kept_share: Share of the context that a rebuilt memory fills at most.
        half_life_seconds: Age at which a cell counts half in a rebuild.
        fills: The next best cells take the places of chosen cells that the model holds.
    """

    kept_share = 0.5
    half_life_seconds = 30.0

    def __init__(self, name: str, settings: Settings, memory: SeenMemory, context_tokens: int) -> None:
        self.name = name
        self.context_tokens = context_tokens
        self._settings = settings.vlm
        self._novelty = settings.selection.novelty
        self._per_second = settings.selection.per_second
        self.fills = self._novelty != "off" and not self._per_second and settings.vlm.mode != "weight"
        self.memory = memory
        self._lock = threading.RLock()
        self._tally = Feeding()
        self._waiting: ChosenFrame | None = None
        self._last: ChosenFrame | None = None
        self._sent_cells: SentCells | None = None
        self._refreshed_seconds = -math.inf
        self.attention: FloatArray | None = None

    @abstractmethod
    def ask(self, question: str, *, on_text: OnText | None = None, stop: Stop | None = None) -> Answer:
        """Answer a question; see `ModelSession.ask`."""

    @abstractmethod
    def _encoded(self, first: ChosenFrame, last: ChosenFrame, cells: Cells) -> SeenBlock:
        """Encode cells of a pair of frames, or of one frame given twice, for the memory."""

    def _settle(self) -> None:  # noqa: B027 - a server has no pending work
        """Wait for pending work, so that times are correct."""

    def _memory_errors(self) -> AbstractContextManager[None]:
        """Wrap code that may run out of memory."""
        return nullcontext()

    def see(self, frame: Frame, patches: PatchSet) -> Feeding:
        """Show a frame; see `ModelSession.see`.

        With `video`, a frame waits for its partner: the two share a block within the budget of one, or of both with a
        budget over time.

        Raises:
            NothingChosen: The patch set is empty.
            ContextExceeded: Its cells do not fit into the context.
            ModelTooLarge: The model ran out of memory.
        """
        if not len(patches):
            raise NothingChosen(
                f"frame {patches.index}: no cell was chosen",
                remedy="raise the budget (--budget), or see selection.novelty",
            )
        with self._lock, self._memory_errors():
            self._tally = Feeding()
            shown = ChosenFrame.of(frame, patches)
            self._refresh_if_due(patches, shown)
            self._last = shown
            if self._settings.media == "video" and self._waiting is None:
                self._waiting = shown
            else:
                pair = [shown] if self._waiting is None else [self._waiting, shown]
                self._waiting = None
                self._take(pair)
            return self._fed(frame.index)

    def close(self) -> None:
        """Clear the memory; the model belongs to its owner. Later frames begin a new memory."""
        with self._lock:
            self.memory.restart()
            self._waiting = self._last = self._sent_cells = self.attention = None
            self._refreshed_seconds = -math.inf

    def _check_seen(self) -> ChosenFrame:
        """Return the newest frame."""
        if self._last is None or not self.memory.visual_tokens:
            raise NothingChosen("the model has seen nothing yet", remedy="show it a frame first")
        return self._last

    def _refresh_if_due(self, patches: PatchSet, shown: ChosenFrame) -> None:
        """Flush the waiting frame before another frame size or scene; rebuild at a cut and every `refresh_seconds`."""
        size = self._last is not None and self._last.grid != shown.grid
        cut = patches.refresh_reason == "cut"
        period = self._settings.refresh_seconds
        again = 0 < period <= shown.seconds - self._refreshed_seconds < math.inf
        if self._sent_cells is None or size or cut or again:
            self._flush()
            self._sent_cells = SentCells(self.memory, shown.grid, since=shown.index)
            self._refreshed_seconds = shown.seconds
        if cut or again:
            self._rebuild(self._kept_most, "cut" if cut else "period")

    def _flush(self) -> None:
        """Take a waiting frame without its partner; an error is recorded, so that the next frame can follow."""
        if self._waiting is not None:
            alone, self._waiting = self._waiting, None
            try:
                self._take([alone])
            except ArrStreamError as exc:
                self._tally = replace(self._tally, error=str(exc))

    def _take(self, frames: Sequence[ChosenFrame]) -> None:
        assert self._sent_cells is not None
        first, last = frames[0], frames[-1]
        picked = self._chosen(frames)
        cells, held = self._wanted(picked, frames)
        if not len(cells):
            self._tally = self._tally.then(Feeding(held=held))
            return
        try:
            cost = self._cost(len(cells), last.grid, last.seconds)
            if max(self.memory.tokens, self.memory.opening_tokens) + cost > self._room:
                # The rebuild drops cells, which are then new again, so select a second time.
                self._sent_cells.lose(cells)
                self._make_room_for_frame(max(len(cells), len(picked)), last)
                cells, held = self._wanted(picked, frames)
            self._tally = self._tally.then(Feeding(held=held))
            started = time.perf_counter()
            block = self._encoded(first, last, cells)
            self._settle()
            self._tally = self._tally.then(Feeding(vision_ms=(time.perf_counter() - started) * 1e3))
            seconds = (first.seconds + last.seconds) / 2
            self._append([FrameEntry(block, last.grid, last.index, seconds, self._settings.media)])
            self._tally = self._tally.then(Feeding(sent=len(block)))
        except BaseException:
            # The model did not get these cells, so they must be sent again.
            self._sent_cells.lose(cells)
            raise

    def _chosen(self, frames: Sequence[ChosenFrame]) -> Cells:
        """Return the best cells of the frames within the budget of one; every cell in mode `weight`."""
        if self._settings.mode == "weight":
            grid, relevance = frames[-1].grid, np.max([shown.relevance for shown in frames], axis=0)
            return Cells.whole((grid.rows, grid.columns), relevance)
        return merged([shown.cells for shown in frames]).best(self._budget(frames))

    def _budget(self, frames: Sequence[ChosenFrame]) -> int:
        sizes = [len(shown.cells) for shown in frames]
        # With a budget over time, the selector chose each frame's cells only once.
        return sum(sizes) if self._per_second else max(sizes)

    def _new(self, chosen: Cells, shown: ChosenFrame) -> Cells:
        assert self._sent_cells is not None
        new = self._sent_cells.take_new(chosen, shown.eighth_grey)
        return chosen if self._novelty == "off" or self._settings.mode == "weight" else new

    def _wanted(self, picked: Cells, frames: Sequence[ChosenFrame]) -> tuple[Cells, int]:
        """Return the cells that the model does not hold, with others in place of the held ones; and the number held."""
        last = frames[-1]
        new = self._new(picked, last)
        held, spare = len(picked) - len(new), self._budget(frames) - len(new)
        if not self.fills or spare < 1:
            return new, held
        more = self._next_best(picked, spare, frames)
        return (merged([new, self._new(more, last)]) if len(more) else new), held

    def _next_best(self, picked: Cells, count: int, frames: Sequence[ChosenFrame]) -> Cells:
        """Return the next best fine cells that were not picked and that the model does not hold in full detail."""
        assert self._sent_cells is not None
        left = ~picked.select(picked.level <= 0).covered() & ~self._sent_cells.known(frames[-1].eighth_grey)
        score = np.where(left, np.max([shown.relevance for shown in frames], axis=0), -1)
        best = np.argsort(-score, axis=None, kind="stable")[:count].astype(np.int32)
        return Cells.whole(picked.grid_hw, score).select(best[score.ravel()[best] >= 0])

    @property
    def _room(self) -> int:
        """Most tokens of the memory that leave space for a question and its answer."""
        return self.context_tokens - min(self._settings.answer_tokens + _QUESTION_TOKENS, self.context_tokens // 4)

    @property
    def _kept_most(self) -> int:
        return int(self.context_tokens * self.kept_share)

    def _make_room_for_frame(self, cells: int, shown: ChosenFrame) -> None:
        cost, opening = self._cost(cells, shown.grid, shown.seconds), self.memory.opening_tokens
        if opening + cost > self._room:
            every = self._settings.mode == "weight"
            raise ContextExceeded(
                f"{cells} cells take {cost} tokens after {opening} of the instruction and markers, and the context has "
                f"room for {self._room}",
                remedy=f"{'choose another vlm.mode' if every else 'lower --budget'}, or raise vlm.context_tokens",
            )
        self._rebuild(min(self._kept_most, self._room - cost), "budget")

    def _make_room_for_question(self, question: str, tokens: int) -> None:
        room = self.context_tokens - tokens - self._settings.answer_tokens
        if self.memory.tokens <= room:
            return
        one_cell = min(self._overhead(seen) for seen in self.memory.frames) + 1
        if room < self.memory.opening_tokens + one_cell:
            raise ContextExceeded(
                f"the question {question[:40]!r}... takes {tokens} tokens and its answer up to "
                f"{self._settings.answer_tokens}, and the context holds {self.context_tokens}",
                remedy="ask shorter, lower vlm.answer_tokens, or raise vlm.context_tokens",
            )
        self._rebuild(room, "question")

    def _cost(self, cells: int, grid: Grid, seconds: float) -> int:
        return self.memory.frame_tokens(cells, grid, seconds, self._settings.media)

    def _overhead(self, seen: FrameEntry) -> int:
        return self._cost(0, seen.grid, seen.seconds)

    def _rebuild(self, capacity: int, reason: str) -> None:
        """Rebuild the memory from kept features, within `capacity` tokens; do nothing if every frame fits."""
        room = capacity - self.memory.opening_tokens
        kept = survivors(self.memory.frames, room, self._overhead, self.half_life_seconds)
        if [id(entry) for entry in kept] == [id(entry) for entry in self.memory.frames]:
            return
        self._tally = replace(self._tally, rebuilt=reason)
        with self._sent_cells.through_rebuild() if self._sent_cells is not None else nullcontext():
            # Free the old cache before the new one is built: both together would exceed the memory.
            self.memory.restart()
            self._append(kept)

    def _append(self, entries: Sequence[FrameEntry]) -> None:
        started = time.perf_counter()
        self.memory.append(entries)
        self._settle()
        self._tally = self._tally.then(Feeding(prefill_ms=(time.perf_counter() - started) * 1e3))

    def _fed(self, frame_index: int) -> Feeding:
        tokens, cache_bytes = self.memory.tokens, self.memory.cache_bytes
        return replace(self._tally, frame_index=frame_index, memory_tokens=tokens, cache_bytes=cache_bytes)
