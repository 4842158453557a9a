"""The session for a local Qwen3-VL: it shows the chosen cells frame by frame and takes questions at any time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch

from arr_stream.config import Settings
from arr_stream.errors import EmptyQuery, ModelTooLarge
from arr_stream.patch_set import Answer, Feeding
from arr_stream.types import FloatArray, IntArray
from arr_stream.vlm import OnText, Stop
from arr_stream.vlm.qwen3_vl.adapter import Adapter
from arr_stream.vlm.qwen3_vl.cells import Cells
from arr_stream.vlm.qwen3_vl.decoding import AttentionGatherer, Response, default_layer, respond
from arr_stream.vlm.qwen3_vl.encoding import Block, Feeder
from arr_stream.vlm.qwen3_vl.entries import FrameEntry
from arr_stream.vlm.qwen3_vl.loading import LoadedModel
from arr_stream.vlm.qwen3_vl.memory import Memory
from arr_stream.vlm.qwen3_vl.prompt import Prompt
from arr_stream.vlm.qwen3_vl.streaming import ChosenFrame, StreamingSession


class QwenSession(StreamingSession):
    """Local Qwen3-VL with a streaming memory; see `arr_stream.vlm.ModelSession`."""

    memory: Memory

    def __init__(self, loaded: LoadedModel, settings: Settings) -> None:
        self._limits = loaded.limits
        self._adapter = Adapter(loaded.model)
        self._prompt = Prompt(loaded.tokenizer, loaded.model.config)
        self._feeder = Feeder(self._adapter, loaded.normalisation, settings.vlm.mode)
        memory = Memory(self._adapter, self._prompt, settings.vlm.instruction)
        trained = int(loaded.model.config.text_config.max_position_embeddings)
        super().__init__(loaded.name, settings, memory, min(settings.vlm.context_tokens, trained))
        layers = self._adapter.attention_layers
        self._layer = layers[default_layer(len(layers))]

    def _encoded(self, first: ChosenFrame, last: ChosenFrame, cells: Cells) -> Block:
        sources = first.source, last.source
        return self._feeder.feed(first.picture, last.picture, cells, last.relevance, sources)

    def ask(self, question: str, *, on_text: OnText | None = None, stop: Stop | None = None) -> Answer:
        """Answer a question; the memory is unchanged. See `ModelSession.ask`."""
        if not question.strip():
            raise EmptyQuery("the question is empty", remedy="ask something")
        with self._lock, self._memory_errors():
            self._tally = Feeding()
            self._flush()
            last = self._check_seen()
            ids = self._prompt.question(question)
            self._make_room_for_question(question, len(ids))
            gatherer = AttentionGatherer(self.memory, self._layer)
            response = respond(
                self.memory,
                ids,
                most_tokens=self._settings.answer_tokens,
                gatherer=gatherer,
                on_text=on_text,
                stop=stop,
            )
            answer = self._answer(question, ids, response, gatherer.mean.numpy(), last)
            return answer if self._tally == Feeding() else replace(answer, fed=self._fed(last.index))

    def _answer(
        self, question: str, ids: list[int], response: Response, attention: FloatArray, last: ChosenFrame
    ) -> Answer:
        seen = self.memory.frames
        shares = [attention[at : at + len(entry.block)] for at, entry in zip(self.memory.places, seen, strict=True)]
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

    def _map(self, shares: Sequence[FloatArray], last: ChosenFrame) -> FloatArray:
        """Return the attention to the unchanged cells of the newest frame, `[gh, gw]`, maximum 1."""
        if self._sent_cells is None:
            return np.zeros((last.grid.rows, last.grid.columns), np.float32)
        attention = self._sent_cells.map(shares, last.eighth_grey)
        largest = float(attention.max(initial=0.0))
        return attention / largest if largest > 0 else attention

    def _settle(self) -> None:
        """Synchronise a GPU, so that times include the work itself."""
        if self._adapter.device.type == "cuda":
            torch.cuda.synchronize(self._adapter.device)

    @contextmanager
    def _memory_errors(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as exc:
            # The CPU's allocator has no error class of its own.
            if not isinstance(exc, torch.OutOfMemoryError) and "can't allocate memory" not in str(exc):
                raise
            torch.cuda.empty_cache()
            raise ModelTooLarge(
                f"{self.name}: out of memory on {self._adapter.device}",
                remedy="lower vlm.context_tokens or --budget, or choose vlm.dtype=bfloat16 or int8",
            ) from exc


def _cells_attended(seen: Sequence[FrameEntry], shares: Sequence[FloatArray]) -> tuple[FloatArray, IntArray]:
    """Return `[N, 5]` rectangles in source pixels with their share of attention, largest first, and their frames."""
    if not seen:
        return np.zeros((0, 5), np.float32), np.zeros(0, np.int32)
    boxes, frames = [], []
    for entry, share in zip(seen, shares, strict=True):
        cells = entry.block.cells
        first, covered = np.split(cells.extents[:, [1, 0, 3, 2]], 2, axis=1)
        corners = np.concatenate([first, first + covered], axis=1) * np.tile(entry.grid.cell_px, 2)
        boxes.append(np.concatenate([corners, share[:, None]], axis=1))
        frames.append(np.full(len(cells), entry.frame_index, np.int32))
    table, frame = np.concatenate(boxes).astype(np.float32), np.concatenate(frames)
    table[:, 4] /= max(float(table[:, 4].sum()), 1e-12)
    order = np.argsort(-table[:, 4], kind="stable")
    return table[order], frame[order]
