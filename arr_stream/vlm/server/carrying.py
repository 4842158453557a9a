"""The session for a server with arr-stream's plugin: it sends cells exactly, each with its true position.

The conversation only grows at its end, byte for byte, so a server that caches prefixes computes nothing twice. When the
context is full, the session rewrites the conversation to half of the context and continues from there.
"""

from __future__ import annotations

import base64
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from arr_stream.config import Settings
from arr_stream.errors import EmptyQuery
from arr_stream.patch_set import Answer, Feeding
from arr_stream.types import BoolArray, Grid
from arr_stream.vlm import OnText, Stop
from arr_stream.vlm.qwen3_vl.carrier import CarriedCells
from arr_stream.vlm.qwen3_vl.cells import POSITIONS_PER_TOKEN, Cells, block_extent, cell_pictures
from arr_stream.vlm.qwen3_vl.entries import FrameEntry
from arr_stream.vlm.qwen3_vl.prompt import Media, time_text
from arr_stream.vlm.qwen3_vl.streaming import ChosenFrame, StreamingSession
from arr_stream.vlm.server.chat import ChatServer, Message
from arr_stream.vlm.server.session import MARKER_TOKENS, MESSAGE_TOKENS, asked_of, text_tokens

_MOST_PICTURES = 512
"""Most pictures in one question, as `arr-stream vllm-args` configures servers."""
_PROBE_SECONDS = 5.0
_PROBES = (1, 17)
"""Cell counts of two made-up pictures; a server that places cells counts exactly as many tokens."""


@dataclass(frozen=True, eq=False)
class SentBlock(CarriedCells):
    """Cells of one frame, or of a pair, as they are sent."""

    def select(self, keep: BoolArray) -> SentBlock:
        """Return the tokens that the mask keeps."""
        return SentBlock(self.cells.select(keep), self.pictures[keep])

    @cached_property
    def url(self) -> str:
        """Data URL of the picture that carries the cells; cached, since later requests must repeat it exactly."""
        return f"data:image/png;base64,{base64.b64encode(self.png()).decode('ascii')}"


class Conversation:
    """Frames that a server's model has been shown; see `SeenMemory`.

    A picture counts as its tokens, or more if the server's limits on pictures and positions would be exhausted first.
    """

    def __init__(self, instruction: str, context_tokens: int) -> None:
        self.instruction = instruction
        self._context_tokens = context_tokens
        self.frames: list[FrameEntry] = []

    @property
    def tokens(self) -> int:
        frames = [self.frame_tokens(len(seen.block), seen.grid, seen.seconds, seen.media) for seen in self.frames]
        return self.opening_tokens + sum(frames)

    @property
    def opening_tokens(self) -> int:
        return text_tokens(self.instruction) + 2 * MESSAGE_TOKENS

    @property
    def visual_tokens(self) -> int:
        return sum(len(seen.block) for seen in self.frames)

    @property
    def cache_bytes(self) -> int:
        """0: the KV cache is the server's."""
        return 0

    def frame_tokens(self, cells: int, grid: Grid, seconds: float, media: Media) -> int:
        extent = block_extent((grid.rows, grid.columns))
        least = max(extent / (POSITIONS_PER_TOKEN - 1), self._context_tokens / _MOST_PICTURES)
        return max(_picture_tokens(cells, seconds, media), math.ceil(least))

    def append(self, entries: Sequence[FrameEntry]) -> None:
        self.frames += entries

    def restart(self) -> None:
        self.frames = []

    def most_tokens(self, question: str) -> int:
        """Return an upper bound of a cell-placing server's prompt tokens: a text has no more tokens than bytes."""
        said = len(self.instruction.encode("utf-8", "replace")) + len(question.encode("utf-8", "replace"))
        shown = sum(_picture_tokens(len(seen.block), seen.seconds, seen.media) for seen in self.frames)
        return shown + said + 3 * MESSAGE_TOKENS

    def messages(self, question: str) -> list[Message]:
        """Return the whole conversation with a question at the end."""
        content: list[dict[str, Any]] = []
        for seen in self.frames:
            assert isinstance(seen.block, SentBlock)
            if seen.media == "video":
                content.append({"type": "text", "text": time_text(seen.seconds)})
            content.append({"type": "image_url", "image_url": {"url": seen.block.url}})
        return asked_of(content, question, self.instruction)


class CarryingSession(StreamingSession):
    """`ModelSession` that sends the chosen cells of frames to a server, whose owner closes it.

    One thread can show frames while another waits for an answer.
    """

    memory: Conversation

    def __init__(self, server: ChatServer, settings: Settings) -> None:
        settings = settings.with_values({"vlm.mode": "sparse"})
        context_tokens = settings.vlm.context_tokens
        memory = Conversation(settings.vlm.instruction, context_tokens)
        super().__init__(server.model, settings, memory, context_tokens)
        self._server = server
        self._newest: FrameEntry | None = None

    def ask(self, question: str, *, on_text: OnText | None = None, stop: Stop | None = None) -> Answer:
        """Answer a question; an interrupted answer is `failed`, with its text and a reason. See `ModelSession.ask`."""
        if not question.strip():
            raise EmptyQuery("the question is empty", remedy="ask something")
        with self._lock:
            self._tally = Feeding()
            self._flush()
            last = self._check_seen()
            self._make_room_for_question(question, text_tokens(question))
            fed = None if self._tally == Feeding() else self._fed(last.index)
            messages = self.memory.messages(question)
            newest = self.memory.frames[-1]
            new_frames = self.memory.messages("") if newest is not self._newest else None
            tokens, most_tokens = self.memory.visual_tokens, self.memory.most_tokens(question)
        asked = Answer(
            question, "", last.index, last.seconds, self.name, visual_tokens=tokens, memory_tokens=tokens, fed=fed
        )
        prefill_ms = 0.0
        if new_frames is not None and self._server.keeps_states:
            # A recurrent state cannot be resumed within a prompt: without this request the server would keep none
            # between the frames and the question, and the next question would compute all frames again.
            began = time.perf_counter()
            self._server.prefill(new_frames, stop=stop)
            self._newest, prefill_ms = newest, (time.perf_counter() - began) * 1e3
        answer = self._server.ask(
            messages, asked=asked, answer_tokens=self._settings.answer_tokens, on_text=on_text, stop=stop
        )
        if answer.prompt_tokens > most_tokens:
            raise self._server.endpoint.failed(
                f"counts {answer.prompt_tokens} tokens where at most {most_tokens} were sent: it took cells for whole "
                "pictures",
                "start it with arr-stream's plugin (arr-stream vllm-args), or start anew to send crops",
            )
        return replace(answer, prefill_ms=answer.prefill_ms + prefill_ms)

    def _encoded(self, first: ChosenFrame, last: ChosenFrame, cells: Cells) -> SentBlock:
        cells = cells.in_reading_order()
        pictures = [cell_pictures(shown.picture, cells, shown.source) for shown in (first, last)]
        pair = pictures if last is not first else pictures[:1]
        return SentBlock(cells, np.stack(pair, axis=1))


def places_cells(server: ChatServer) -> bool:
    """Return whether a server gives a picture one token a cell, tested with two small requests."""
    counts = []
    for count in _PROBES:
        block = SentBlock(Cells.whole((1, count)), np.full((count, 1, 32, 32, 3), 128, np.uint8))
        content = [{"type": "image_url", "image_url": {"url": block.url}}, {"type": "text", "text": "?"}]
        counts.append(server.prefill([{"role": "user", "content": content}], timeout_seconds=_PROBE_SECONDS))
    return counts[1] - counts[0] == _PROBES[1] - _PROBES[0]


def _picture_tokens(cells: int, seconds: float, media: Media) -> int:
    # Qwen's tokens of a timestamp are each digit, the point, the brackets and the word.
    return cells + MARKER_TOKENS + (len(f"<{seconds:.1f}") + 2 if media == "video" else 0)
