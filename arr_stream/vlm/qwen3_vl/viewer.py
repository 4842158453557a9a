"""A Qwen3-VL that watches: the chosen cells of frame after frame, and questions at any time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace

import numpy as np
import torch

from arr_stream.config import Settings
from arr_stream.errors import ArrStreamError, ContextExceeded, EmptyQuery, InvalidSetting, ModelTooLarge, NothingChosen
from arr_stream.patch_set import Answer, Feeding, PatchSet
from arr_stream.texture.pictures import Pictures
from arr_stream.types import ByteArray, FloatArray, Frame, Grid, IntArray
from arr_stream.vlm.qwen3_vl.adapter import Adapter
from arr_stream.vlm.qwen3_vl.attention import AttentionGatherer, default_layer
from arr_stream.vlm.qwen3_vl.cells import Cells, merged
from arr_stream.vlm.qwen3_vl.decoding import Response, Sampler, respond
from arr_stream.vlm.qwen3_vl.encoding import Feeder, Normalisation
from arr_stream.vlm.qwen3_vl.eviction import survivors
from arr_stream.vlm.qwen3_vl.loading import Loaded
from arr_stream.vlm.qwen3_vl.memory import Entry, Memory, Said, Seen
from arr_stream.vlm.qwen3_vl.pixels import texture_picture
from arr_stream.vlm.qwen3_vl.prompt import Prompt
from arr_stream.vlm.qwen3_vl.sent_cells import Holding
from arr_stream.vlm.viewer import OnText, Stop

_QUESTION_TOKENS = 256
"""Room that is kept free for a question, beside the answer's."""


@dataclass(frozen=True, slots=True, eq=False)
class _Look:
    """One frame as it was chosen, ready to be encoded."""

    picture: ByteArray
    eighth_grey: ByteArray
    cells: Cells
    relevance: FloatArray
    grid: Grid
    index: int
    seconds: float


@dataclass(slots=True)
class _Took:
    """What was done since the last report."""

    sent: int = 0
    held: int = 0
    vision_ms: float = 0.0
    prefill_ms: float = 0.0
    rebuilt: str | None = None
    error: str | None = None


class QwenViewer:
    """A Qwen3-VL with a streaming memory; see `arr_stream.vlm.viewer.Viewer`.

    Methods may be called from any thread, one at a time, and not from within `on_text`.

    Args:
        loaded: The model.
        settings: `vlm` and `selection.novelty` are read.

    Attributes:
        name: The model's name.
        memory: What it has seen.
    """

    def __init__(self, loaded: Loaded, settings: Settings) -> None:
        self.name = loaded.name
        self._settings = settings.vlm
        self._novelty = settings.selection.novelty
        self._adapter = Adapter(loaded.model)
        self._adapter.check()
        self._prompt = Prompt(loaded.tokenizer, loaded.model.config)
        normalisation = Normalisation(np.array(loaded.image_mean, np.float32), np.array(loaded.image_std, np.float32))
        self._feeder = Feeder(self._adapter, normalisation, settings.vlm.mode, settings.vlm.halo)
        self.memory = Memory(self._adapter, self._prompt, settings.vlm.instruction)
        self._context = _context_tokens(loaded, settings)
        self._sampler = Sampler(settings.vlm.temperature, getattr(loaded.model, "generation_config", None))
        self._layer = _attention_layer(settings.vlm.attention_layer, self._adapter.layers)
        self._lock = threading.RLock()
        self._waiting: _Look | None = None
        self._last: _Look | None = None
        self._holding: Holding | None = None
        self._attention: FloatArray | None = None

    @property
    def context_tokens(self) -> int:
        """Most tokens in the memory, question and answer included."""
        return self._context

    @property
    def attention(self) -> FloatArray | None:
        return self._attention

    def see(self, frame: Frame, patches: PatchSet) -> Feeding:
        """Take the chosen cells of one frame.

        In `video`, frames wait for their partner: two share a block, the cells of either within the budget of one.

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
            took = _Took()
            look = self._look(frame, patches)
            self._turn_over(patches, look, took)
            self._last = look
            if self._settings.media == "video" and self._waiting is None:
                self._waiting = look
            else:
                pair = [look] if self._waiting is None else [self._waiting, look]
                self._waiting = None
                self._take(pair, took)
            return self._fed(frame.index, took)

    def ask(self, question: str, *, on_text: OnText | None = None, stop: Stop | None = None) -> Answer:
        """Answer about what was seen; the memory is as before, unless the dialogue is kept.

        Raises:
            EmptyQuery: The question is empty.
            NothingChosen: Nothing was seen yet.
            ContextExceeded: The question is longer than the context.
            ModelTooLarge: The model ran out of memory.
        """
        if not question.strip():
            raise EmptyQuery("the question is empty", remedy="ask something")
        with self._lock, self._memory_errors():
            took = _Took()
            self._flush(took)
            last = self._last
            if last is None or not self.memory.visual_tokens:
                raise NothingChosen("the model has seen nothing yet", remedy="show it a frame first")
            ids = self._prompt.question(question)
            self._make_room_for_question(question, len(ids), took)
            gatherer = AttentionGatherer(self._adapter, self.memory, self._layer)
            response = respond(
                self._adapter,
                self.memory,
                self._prompt,
                ids,
                most_tokens=self._settings.answer_tokens,
                sampler=self._sampler,
                gatherer=gatherer,
                on_text=on_text,
                stop=stop,
            )
            answer = self._answer(question, ids, response, gatherer.mean.numpy(), last)
            if self._settings.keep_dialogue:
                self._keep(Said((*ids, *response.ids, *self._prompt.next_turn)), took)
            return answer if took == _Took() else replace(answer, fed=self._fed(last.index, took))

    def close(self) -> None:
        """Let go of the memory; the model itself is its owner's."""
        with self._lock:
            self.memory.restart()
            self._waiting = self._last = self._holding = self._attention = None

    def _look(self, frame: Frame, patches: PatchSet) -> _Look:
        pictures = Pictures(frame, patches.grid)
        return _Look(
            picture=texture_picture(frame.rgb, patches.grid.texture_wh),
            eighth_grey=pictures.eighth_grey,
            cells=Cells.chosen(patches),
            relevance=patches.relevance,
            grid=patches.grid,
            index=frame.index,
            seconds=frame.pts_seconds,
        )

    def _turn_over(self, patches: PatchSet, look: _Look, took: _Took) -> None:
        """Before a frame of another size or scene, finish what waits; rebuild where the schedule says so."""
        size = self._last is not None and self._last.grid != look.grid
        cut = patches.refresh_reason == "cut"
        if size or cut:
            self._flush(took)
        if self._holding is None or size or cut:
            self._holding = Holding(self.memory, look.grid, since=look.index)
        due = (cut and self._settings.refresh != "budget") or (
            patches.keyframe and self._settings.refresh == "keyframe"
        )
        if due:
            self._flush(took)
            self._rebuild(self._kept_most, took, "cut" if cut else "keyframe")

    def _flush(self, took: _Took) -> None:
        """A frame without a partner stands alone; if it cannot be taken, what comes next still can."""
        if self._waiting is not None:
            alone, self._waiting = self._waiting, None
            try:
                self._take([alone], took)
            except ArrStreamError as exc:
                took.error = str(exc)

    def _take(self, looks: Sequence[_Look], took: _Took) -> None:
        """Encode and append one frame or a pair."""
        first, last = looks[0], looks[-1]
        chosen = self._chosen(looks)
        cells = self._new(chosen, last)
        took.held += len(chosen) - len(cells)
        if not len(cells):
            return
        try:
            if not self._fits(len(cells), last):
                # What the rebuild drops of the chosen is new again, so that it is looked up a second time.
                self._lose(cells)
                self._make_room_for_frame(len(chosen), last, took)
                took.held -= len(chosen) - len(cells)
                cells = self._new(chosen, last)
                took.held += len(chosen) - len(cells)
            started = time.perf_counter()
            block = self._feeder.feed(first.picture, last.picture, cells, last.relevance)
            self._settle()
            took.vision_ms += (time.perf_counter() - started) * 1e3
            seconds = (first.seconds + last.seconds) / 2
            self._append([Seen(block, last.grid, last.index, seconds, self._settings.media)], took)
            took.sent += len(block)
        except BaseException:
            # What the model did not get must be sent again.
            self._lose(cells)
            raise

    def _chosen(self, looks: Sequence[_Look]) -> Cells:
        """The best cells of either within the budget of one; every cell where relevance only weighs them."""
        if self._settings.mode == "weight":
            grid, relevance = looks[-1].grid, np.max([look.relevance for look in looks], axis=0)
            return Cells.whole((grid.rows, grid.columns), relevance)
        return merged([look.cells for look in looks]).best(max(len(look.cells) for look in looks))

    @property
    def _sends_all(self) -> bool:
        return self._novelty == "off" or self._settings.mode == "weight"

    def _new(self, chosen: Cells, look: _Look) -> Cells:
        """Those that the model does not have, or that have changed."""
        assert self._holding is not None
        new = self._holding.take_new(chosen, look.eighth_grey)
        return chosen if self._sends_all else new

    def _lose(self, cells: Cells) -> None:
        if self._holding is not None:
            self._holding.lose(cells)

    @property
    def _room(self) -> int:
        """Most tokens of the memory that leave room for a question and its answer."""
        return self._context - min(self._settings.answer_tokens + _QUESTION_TOKENS, self._context // 4)

    @property
    def _kept_most(self) -> int:
        """Most tokens of a rebuilt memory."""
        return int(self._context * self._settings.keep_share)

    def _cost(self, cells: int, look: _Look) -> int:
        """Tokens of a frame with its markers."""
        before = self._prompt.before_cells(self._settings.media, look.seconds)
        return len(before) + cells + len(self._prompt.after_cells)

    def _fits(self, cells: int, look: _Look) -> bool:
        return self.memory.tokens + self.memory.cost([]) + self._cost(cells, look) <= self._room

    def _make_room_for_frame(self, cells: int, look: _Look, took: _Took) -> None:
        cost, opening = self._cost(cells, look), self.memory.opening_tokens
        if opening + cost > self._room:
            every = self._settings.mode == "weight"
            smaller = "choose another --mode (`weight` takes every cell)" if every else "lower --budget"
            raise ContextExceeded(
                f"{cells} cells take {cost} tokens after {opening} of the instruction and markers, and the context has "
                f"room for {self._room}",
                remedy=f"{smaller}, or raise vlm.context_tokens",
            )
        self._rebuild(min(self._kept_most, self._room - cost), took, "budget")

    def _make_room_for_question(self, question: str, tokens: int, took: _Took) -> None:
        room = self._context - tokens - self._settings.answer_tokens
        if self.memory.tokens <= room:
            return
        one_cell = min(self._overhead(seen) for seen in self.memory.seen) + 1
        if room < self.memory.opening_tokens + one_cell:
            raise ContextExceeded(
                f"the question {question[:40]!r}... takes {tokens} tokens and its answer up to "
                f"{self._settings.answer_tokens}, and the context holds {self._context}",
                remedy="ask shorter, lower vlm.answer_tokens, or raise vlm.context_tokens",
            )
        self._rebuild(room, took, "question")

    def _overhead(self, seen: Seen) -> int:
        """Tokens of a block beside its cells."""
        return self.memory.cost([seen]) - self.memory.cost([]) - len(seen.block)

    def _rebuild(self, capacity: int, took: _Took, reason: str) -> None:
        """The memory anew from kept features, within `capacity` tokens; as it is, if nothing has to go."""
        room = capacity - self.memory.opening_tokens
        kept = survivors(self.memory.entries, room, self._overhead, self._settings.half_life_seconds)
        entries = self.memory.entries
        if len(kept) == len(entries) and all(new is old for new, old in zip(kept, entries, strict=True)):
            return
        took.rebuilt = reason
        with self._holding.through_rebuild() if self._holding is not None else nullcontext():
            # The old cache goes before the new one comes: the two together would be over the budget.
            self.memory.restart()
            self._append(kept, took)

    def _append(self, entries: Sequence[Entry], took: _Took) -> None:
        started = time.perf_counter()
        self.memory.append(entries)
        self._settle()
        took.prefill_ms += (time.perf_counter() - started) * 1e3

    def _keep(self, said: Said, took: _Took) -> None:
        cost = self.memory.cost([said])
        if self.memory.tokens + cost > self._context:
            self._rebuild(min(self._kept_most, self._context - cost), took, "dialogue")
        self._append([said], took)

    def _answer(self, question: str, ids: list[int], response: Response, attention: FloatArray, last: _Look) -> Answer:
        places = [place for place in self.memory.places if place >= 0]
        seen = self.memory.seen
        shares = [attention[at : at + len(entry.block)] for at, entry in zip(places, seen, strict=True)]
        self._attention = self._map(shares, last)
        cells, frames = _rested_on(seen, shares)
        return Answer(
            question=question,
            text=response.text,
            frame_index=last.index,
            pts_seconds=last.seconds,
            model=self.name,
            cells=cells,
            cell_frames=frames,
            visual_tokens=self.memory.visual_tokens,
            prompt_tokens=len(ids),
            answer_tokens=len(response.ids),
            prefill_ms=response.prefill_ms,
            decode_ms=response.decode_ms,
            memory_tokens=self.memory.tokens,
            cache_bytes=response.cache_bytes,
            finish=response.finish,
        )

    def _map(self, shares: Sequence[FloatArray], last: _Look) -> FloatArray:
        """`[gh, gw]`: attention to what still stands on the newest frame, largest 1."""
        if self._holding is None:
            return np.zeros((last.grid.rows, last.grid.columns), np.float32)
        attention = self._holding.map(shares, last.eighth_grey)
        largest = float(attention.max(initial=0.0))
        return attention / largest if largest > 0 else attention

    def _fed(self, frame_index: int, took: _Took) -> Feeding:
        return Feeding(
            frame_index=frame_index,
            sent=took.sent,
            held=took.held,
            memory_tokens=self.memory.tokens,
            cache_bytes=self.memory.cache_bytes,
            vision_ms=took.vision_ms,
            prefill_ms=took.prefill_ms,
            rebuilt=took.rebuilt,
            error=took.error,
        )

    def _settle(self) -> None:
        """Wait for a GPU, so that times are of work done and not of work handed over."""
        if self._adapter.device.type == "cuda":
            torch.cuda.synchronize(self._adapter.device)

    @contextmanager
    def _memory_errors(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as exc:
            # A CPU's allocator has no error of its own.
            if not isinstance(exc, torch.OutOfMemoryError) and "can't allocate memory" not in str(exc):
                raise
            torch.cuda.empty_cache()
            raise ModelTooLarge(
                f"{self.name}: out of memory on {self._adapter.device}",
                remedy="lower vlm.context_tokens or --budget, or choose --dtype bfloat16 or --quantize int8",
            ) from exc


def _rested_on(seen: Sequence[Seen], shares: Sequence[FloatArray]) -> tuple[FloatArray, IntArray]:
    """`[N, 5]` rectangles in source pixels with their share of the attention to cells, largest first; their frames."""
    if not seen:
        return np.zeros((0, 5), np.float32), np.zeros(0, np.int32)
    boxes, frames = [], []
    for entry, share in zip(seen, shares, strict=True):
        cells = entry.block.cells
        corners = entry.grid.cells_xyxy(cells.rows, cells.columns, np.left_shift(1, cells.level))
        boxes.append(np.concatenate([corners, share[:, None]], axis=1))
        frames.append(np.full(len(cells), entry.frame_index, np.int32))
    table, frame = np.concatenate(boxes).astype(np.float32), np.concatenate(frames)
    table[:, 4] /= max(float(table[:, 4].sum()), 1e-12)
    order = np.argsort(-table[:, 4], kind="stable")
    return table[order], frame[order]


def _context_tokens(loaded: Loaded, settings: Settings) -> int:
    trained = int(loaded.model.config.get_text_config().max_position_embeddings)
    return min(settings.vlm.context_tokens, trained)


def _attention_layer(wanted: int, layers: int) -> int:
    if wanted >= layers:
        raise InvalidSetting(f"vlm.attention_layer={wanted}: the model has {layers} layers", remedy="count from 0")
    return default_layer(layers) if wanted < 0 else wanted
