"""A Qwen3-VL that watches: the chosen cells of frame after frame, and questions at any time."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from arr_stream.config import Settings
from arr_stream.errors import ArrStreamError, ContextExceeded, EmptyQuery, InvalidSetting, ModelTooLarge, NothingChosen
from arr_stream.patch_set import Answer, Feeding, PatchSet
from arr_stream.texture.arrays import to_numpy
from arr_stream.texture.layout import CHANNEL_INDEX
from arr_stream.texture.pictures import Pictures
from arr_stream.types import ByteArray, FloatArray, Frame, Grid, IntArray
from arr_stream.vlm.qwen3_vl.adapter import Adapter
from arr_stream.vlm.qwen3_vl.cells import Cells, concatenated, merged, texture_picture
from arr_stream.vlm.qwen3_vl.decoding import (
    AttentionGatherer,
    Response,
    Sampler,
    default_layer,
    likelihoods,
    respond,
)
from arr_stream.vlm.qwen3_vl.encoding import Feeder
from arr_stream.vlm.qwen3_vl.loading import LoadedModel
from arr_stream.vlm.qwen3_vl.memory import Entry, FrameEntry, Memory, TextEntry, survivors
from arr_stream.vlm.qwen3_vl.prompt import Prompt
from arr_stream.vlm.qwen3_vl.regions import Summaries, summarised
from arr_stream.vlm.qwen3_vl.sent_cells import SentCells
from arr_stream.vlm.viewer import OnText, Stop, check_region_tokens

_CLUSTER = CHANNEL_INDEX["cluster"]

_QUESTION_TOKENS = 256
"""Room that is kept free for a question, beside the answer's."""


@dataclass(frozen=True, slots=True, eq=False)
class _ChosenFrame:
    """One frame as it was chosen, ready to be encoded."""

    source: ByteArray
    picture: ByteArray
    eighth_grey: ByteArray
    cells: Cells
    relevance: FloatArray
    clusters: IntArray | None
    grid: Grid
    index: int
    seconds: float

    @classmethod
    def of(cls, frame: Frame, patches: PatchSet, *, clusters: bool) -> _ChosenFrame:
        return cls(
            source=frame.rgb,
            picture=texture_picture(frame.rgb, patches.grid.texture_wh),
            eighth_grey=Pictures(frame, patches.grid).eighth_grey,
            cells=Cells.chosen(patches),
            relevance=patches.relevance,
            clusters=to_numpy(patches.texture.cells([_CLUSTER])[0]).astype(np.int32) if clusters else None,
            grid=patches.grid,
            index=frame.index,
            seconds=frame.pts_seconds,
        )


@dataclass(slots=True)
class _Tally:
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
        settings: `vlm`, `selection.novelty` and `selection.per_second` are read.

    Attributes:
        name: The model's name.
        memory: What it has seen.
        context_tokens: Most tokens in it, question and answer included.
        attention: See `Viewer.attention`.
    """

    def __init__(self, loaded: LoadedModel, settings: Settings) -> None:
        check_region_tokens(settings.vlm)
        self.name = loaded.name
        self._settings = settings.vlm
        self._novelty = settings.selection.novelty
        self._per_second = settings.selection.per_second
        self._limits = loaded.limits
        self._adapter = Adapter(loaded.model)
        self._adapter.check()
        self._prompt = Prompt(loaded.tokenizer, loaded.model.config)
        self._feeder = Feeder(self._adapter, loaded.normalisation, settings.vlm.mode, settings.vlm.halo)
        self.memory = Memory(self._adapter, self._prompt, settings.vlm.instruction)
        trained = int(loaded.model.config.text_config.max_position_embeddings)
        self.context_tokens = min(settings.vlm.context_tokens, trained)
        self._sampler = Sampler(settings.vlm.temperature, getattr(loaded.model, "generation_config", None))
        self._layer = _attention_layer(settings.vlm.attention_layer, self._adapter.layers)
        self._lock = threading.RLock()
        self._tally = _Tally()
        self._waiting: _ChosenFrame | None = None
        self._last: _ChosenFrame | None = None
        self._sent_cells: SentCells | None = None
        self._refreshed_seconds = self._overviewed_seconds = -math.inf
        self.attention: FloatArray | None = None

    def see(self, frame: Frame, patches: PatchSet) -> Feeding:
        """See `Viewer.see`.

        In `video`, frames wait for their partner: two share a block, the cells of either within the budget of one, or
        all of them with a budget over time.

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
            self._tally = _Tally()
            shown = _ChosenFrame.of(frame, patches, clusters=self._settings.region_tokens > 0)
            self._refresh_if_due(patches, shown)
            self._last = shown
            if self._settings.media == "video" and self._waiting is None:
                self._waiting = shown
            else:
                pair = [shown] if self._waiting is None else [self._waiting, shown]
                self._waiting = None
                self._take(pair)
            return self._fed(frame.index)

    def ask(self, question: str, *, on_text: OnText | None = None, stop: Stop | None = None) -> Answer:
        """See `Viewer.ask`; the memory is as before, unless the dialogue is kept.

        Raises:
            NothingChosen: Nothing was seen yet.
            ContextExceeded: The question is longer than the context.
            ModelTooLarge: The model ran out of memory.
        """
        if not question.strip():
            raise EmptyQuery("the question is empty", remedy="ask something")
        with self._lock, self._memory_errors():
            self._tally = _Tally()
            self._flush()
            last = self._check_seen()
            ids = self._prompt.question(question)
            self._make_room_for_question(question, len(ids))
            gatherer = AttentionGatherer(self.memory, self._layer)
            response = respond(
                self.memory,
                ids,
                most_tokens=self._settings.answer_tokens,
                sampler=self._sampler,
                gatherer=gatherer,
                on_text=on_text,
                stop=stop,
            )
            answer = self._answer(question, ids, response, gatherer.mean.numpy(), last)
            if self._settings.keep_dialogue:
                self._keep(TextEntry((*ids, *response.ids, *self._prompt.next_turn)))
            return answer if self._tally == _Tally() else replace(answer, fed=self._fed(last.index))

    def weigh(self, question: str, answers: Sequence[str]) -> tuple[float, ...]:
        """See `arr_stream.vlm.viewer.Weighs`.

        Raises:
            NothingChosen: Nothing was seen yet.
            ModelTooLarge: The model ran out of memory.
        """
        with self._lock, self._memory_errors():
            self._flush()
            self._check_seen()
            ids = [self._prompt.text(answer) for answer in answers]
            return tuple(each.log for each in likelihoods(self.memory, self._prompt.question(question), ids))

    def close(self) -> None:
        """Let go of the memory; the model itself is its owner's. What is shown afterwards begins a new one."""
        with self._lock:
            self.memory.restart()
            self._waiting = self._last = self._sent_cells = self.attention = None
            self._refreshed_seconds = self._overviewed_seconds = -math.inf

    def _check_seen(self) -> _ChosenFrame:
        """The newest frame.

        Raises:
            NothingChosen: There is none.
        """
        if self._last is None or not self.memory.visual_tokens:
            raise NothingChosen("the model has seen nothing yet", remedy="show it a frame first")
        return self._last

    def _refresh_if_due(self, patches: PatchSet, shown: _ChosenFrame) -> None:
        """Before a frame of another size or scene, finish what waits; rebuild where the schedule says so."""
        size = self._last is not None and self._last.grid != shown.grid
        cut = patches.refresh_reason == "cut"
        period = self._settings.refresh_seconds
        again = 0 < period <= shown.seconds - self._refreshed_seconds < math.inf
        if size or cut or again:
            self._flush()
        if self._sent_cells is None or size or cut or again:
            self._sent_cells = SentCells(self.memory, shown.grid, since=shown.index)
            self._refreshed_seconds = shown.seconds
        if size or cut:
            self._overviewed_seconds = -math.inf
        keyframe = patches.keyframe and self._settings.refresh == "keyframe"
        if (cut and self._settings.refresh != "budget") or keyframe or again:
            self._flush()
            self._rebuild(self._kept_most, "cut" if cut else "keyframe" if keyframe else "period")

    def _flush(self) -> None:
        """A frame without a partner stands alone; if it cannot be taken, what comes next still can."""
        if self._waiting is not None:
            alone, self._waiting = self._waiting, None
            try:
                self._take([alone])
            except ArrStreamError as exc:
                self._tally.error = str(exc)

    def _take(self, frames: Sequence[_ChosenFrame]) -> None:
        """Encode and append one frame or a pair."""
        first, last = frames[0], frames[-1]
        chosen = self._chosen(frames)
        cells = self._new(chosen, last)
        self._tally.held += len(chosen) - len(cells)
        if not len(cells):
            return
        summaries = self._summaries(frames, chosen)
        summed = 0 if summaries is None else len(summaries)
        try:
            if self.memory.tokens + self.memory.cost([]) + self._cost(len(cells) + summed, last.seconds) > self._room:
                # What the rebuild drops of the chosen is new again, so that it is looked up a second time.
                self._lose(cells)
                self._make_room_for_frame(len(chosen) + summed, last)
                self._tally.held -= len(chosen) - len(cells)
                cells = self._new(chosen, last)
                self._tally.held += len(chosen) - len(cells)
            started = time.perf_counter()
            sources = first.source, last.source
            block = self._feeder.feed(first.picture, last.picture, cells, last.relevance, sources, summaries)
            self._settle()
            self._tally.vision_ms += (time.perf_counter() - started) * 1e3
            seconds = (first.seconds + last.seconds) / 2
            self._append([FrameEntry(block, last.grid, last.index, seconds, self._settings.media)])
            if summaries is not None and self._sent_cells is not None:
                self._sent_cells.summarise(summaries, last.eighth_grey)
            self._tally.sent += len(block)
        except BaseException:
            # What the model did not get must be sent again.
            self._lose(cells)
            raise

    def _chosen(self, frames: Sequence[_ChosenFrame]) -> Cells:
        """The best cells of either within the budget of one; every cell where relevance only weighs them.

        Summaries take the places of the last ones, as far as there is something to sum up, but for the best cell.
        """
        if self._settings.mode == "weight":
            grid, relevance = frames[-1].grid, np.max([shown.relevance for shown in frames], axis=0)
            return Cells.whole((grid.rows, grid.columns), relevance)
        cells, budget = merged([shown.cells for shown in frames]), self._budget(frames)
        overview = self._overview(frames[-1])
        if overview is not None and len(overview) < budget:
            self._overviewed_seconds = frames[-1].seconds
            cells = cells.best(budget - len(overview))
            return merged([cells, overview.take(~overview.within(cells))])
        chosen, summaries = cells.best(budget), self._settings.region_tokens
        if not summaries:
            return chosen
        return cells.best(max(1, budget - min(summaries, int(self._left(chosen, frames[-1]).sum()))))

    def _overview(self, shown: _ChosenFrame) -> Cells | None:
        """The whole frame in coarse cells, where it is time for it."""
        every = self._settings.overview_seconds
        if not 0 < every <= shown.seconds - self._overviewed_seconds:
            return None
        return Cells.coarse((shown.grid.rows, shown.grid.columns), shown.relevance)

    def _budget(self, frames: Sequence[_ChosenFrame]) -> int:
        """Most tokens of one frame or a pair."""
        sizes = [len(shown.cells) for shown in frames]
        # What a budget over time has chosen it chooses once.
        return sum(sizes) if self._per_second else max(sizes)

    def _left(self, chosen: Cells, shown: _ChosenFrame) -> npt.NDArray[np.bool_]:
        """`[gh, gw]`: what was not chosen and the model does not have."""
        left = ~chosen.near(0)
        if self._novelty != "off" and self._sent_cells is not None:
            left &= ~self._sent_cells.held(shown.eighth_grey)
        return left

    def _summaries(self, frames: Sequence[_ChosenFrame], chosen: Cells) -> Summaries | None:
        """Of what is left, within the budget; None where nothing is, or none are wanted."""
        clusters = frames[-1].clusters
        if clusters is None:
            return None
        left = self._left(chosen, frames[-1])
        count = min(self._settings.region_tokens, self._budget(frames) - len(chosen), int(left.sum()))
        return None if count < 1 else summarised(clusters, frames[-1].relevance, left, count)

    def _new(self, chosen: Cells, shown: _ChosenFrame) -> Cells:
        """Those that the model does not have, or that have changed."""
        assert self._sent_cells is not None
        new = self._sent_cells.take_new(chosen, shown.eighth_grey)
        return chosen if self._novelty == "off" or self._settings.mode == "weight" else new

    def _lose(self, cells: Cells) -> None:
        if self._sent_cells is not None:
            self._sent_cells.lose(cells)

    @property
    def _room(self) -> int:
        """Most tokens of the memory that leave room for a question and its answer."""
        return self.context_tokens - min(self._settings.answer_tokens + _QUESTION_TOKENS, self.context_tokens // 4)

    @property
    def _kept_most(self) -> int:
        """Most tokens of a rebuilt memory."""
        return int(self.context_tokens * self._settings.keep_share)

    def _cost(self, cells: int, seconds: float) -> int:
        """Tokens of a frame with its markers."""
        before = self._prompt.before_cells(self._settings.media, seconds)
        return len(before) + cells + len(self._prompt.after_cells)

    def _make_room_for_frame(self, cells: int, shown: _ChosenFrame) -> None:
        cost, opening = self._cost(cells, shown.seconds), self.memory.opening_tokens
        if opening + cost > self._room:
            every = self._settings.mode == "weight"
            smaller = "choose another --mode (`weight` takes every cell)" if every else "lower --budget"
            raise ContextExceeded(
                f"{cells} cells take {cost} tokens after {opening} of the instruction and markers, and the context has "
                f"room for {self._room}",
                remedy=f"{smaller}, or raise vlm.context_tokens",
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

    def _overhead(self, seen: FrameEntry) -> int:
        return self._cost(0, seen.seconds)

    def _rebuild(self, capacity: int, reason: str) -> None:
        """The memory anew from kept features, within `capacity` tokens; as it is, if nothing has to go."""
        room = capacity - self.memory.opening_tokens
        kept = survivors(self.memory.entries, room, self._overhead, self._settings.half_life_seconds)
        if [id(entry) for entry in kept] == [id(entry) for entry in self.memory.entries]:
            return
        self._tally.rebuilt = reason
        with self._sent_cells.through_rebuild() if self._sent_cells is not None else nullcontext():
            # The old cache goes before the new one comes: the two together would be over the budget.
            self.memory.restart()
            self._append(kept)

    def _append(self, entries: Sequence[Entry]) -> None:
        started = time.perf_counter()
        self.memory.append(entries)
        self._settle()
        self._tally.prefill_ms += (time.perf_counter() - started) * 1e3

    def _keep(self, said: TextEntry) -> None:
        cost = self.memory.cost([said])
        if self.memory.tokens + cost > self.context_tokens:
            self._rebuild(min(self._kept_most, self.context_tokens - cost), "dialogue")
        self._append([said])

    def _answer(
        self, question: str, ids: list[int], response: Response, attention: FloatArray, last: _ChosenFrame
    ) -> Answer:
        places = [place for place in self.memory.places if place >= 0]
        seen = self.memory.frames
        shares = [attention[at : at + len(entry.block)] for at, entry in zip(places, seen, strict=True)]
        self.attention = self._map(shares, last)
        cells, frames = _cells_attended(seen, shares)
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
            note=self._limits(question),
        )

    def _map(self, shares: Sequence[FloatArray], last: _ChosenFrame) -> FloatArray:
        """`[gh, gw]`: attention to what still stands on the newest frame, largest 1."""
        if self._sent_cells is None:
            return np.zeros((last.grid.rows, last.grid.columns), np.float32)
        spread = [share / seen.block.sizes for seen, share in zip(self.memory.frames, shares, strict=True)]
        attention = self._sent_cells.map(spread, last.eighth_grey)
        largest = float(attention.max(initial=0.0))
        return attention / largest if largest > 0 else attention

    def _fed(self, frame_index: int) -> Feeding:
        return Feeding(
            frame_index=frame_index,
            sent=self._tally.sent,
            held=self._tally.held,
            memory_tokens=self.memory.tokens,
            cache_bytes=self.memory.cache_bytes,
            vision_ms=self._tally.vision_ms,
            prefill_ms=self._tally.prefill_ms,
            rebuilt=self._tally.rebuilt,
            error=self._tally.error,
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


def _cells_attended(seen: Sequence[FrameEntry], shares: Sequence[FloatArray]) -> tuple[FloatArray, IntArray]:
    """`[N, 5]` rectangles in source pixels with their share of the attention to cells, largest first; their frames."""
    if not seen:
        return np.zeros((0, 5), np.float32), np.zeros(0, np.int32)
    boxes, frames = [], []
    for entry, share in zip(seen, shares, strict=True):
        cells, summaries, shown = entry.block.cells, entry.block.summaries, share[: len(entry.block.cells)]
        if summaries is not None:
            # What a summary was given goes to its cells in equal parts.
            inside = summaries.of_cell >= 0
            each = (share[len(cells) :] / summaries.sizes)[summaries.of_cell[inside]]
            fine = Cells.whole(cells.grid_hw).take(inside.ravel())
            cells, shown = concatenated([cells, fine]), np.append(shown, each)
        first, covered = np.split(cells.extents[:, [1, 0, 3, 2]], 2, axis=1)
        corners = np.concatenate([first, first + covered], axis=1) * np.tile(entry.grid.cell_px, 2)
        boxes.append(np.concatenate([corners, shown[:, None]], axis=1))
        frames.append(np.full(len(cells), entry.frame_index, np.int32))
    table, frame = np.concatenate(boxes).astype(np.float32), np.concatenate(frames)
    table[:, 4] /= max(float(table[:, 4].sum()), 1e-12)
    order = np.argsort(-table[:, 4], kind="stable")
    return table[order], frame[order]


def _attention_layer(wanted: int, layers: int) -> int:
    if wanted >= layers:
        raise InvalidSetting(f"vlm.attention_layer={wanted}: the model has {layers} layers", remedy="count from 0")
    return default_layer(layers) if wanted < 0 else wanted
