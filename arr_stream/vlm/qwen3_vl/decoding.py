"""Decoding: read a question on top of the memory, write the answer token by token, and measure its attention.

The attention is that of one layer, averaged over heads and tokens of the answer. It is recomputed from the layer's
inputs and the cached keys, since most attention kernels never form the weights.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from arr_stream.errors import WeightsInvalid
from arr_stream.plain_text import AnswerText
from arr_stream.vlm import Stop
from arr_stream.vlm.qwen3_vl.memory import Memory


@dataclass(frozen=True, slots=True)
class Response:
    """Answer as tokens, without the one that ended it, and as text; see `Answer`.

    `prefill_ms` is the time to the first token, `cache_bytes` the largest size of the KV cache.
    """

    ids: tuple[int, ...]
    text: str
    finish: Literal["stop", "length", "cancelled"]
    prefill_ms: float
    decode_ms: float
    cache_bytes: int


@torch.inference_mode()
def respond(
    memory: Memory,
    question: Sequence[int],
    *,
    most_tokens: int,
    gatherer: AttentionGatherer | None = None,
    on_text: Callable[[str], None] | None = None,
    stop: Stop | None = None,
) -> Response:
    """Answer a question with the likeliest tokens; the memory is unchanged when this returns or raises."""
    from tokenizers.decoders import DecodeStream

    pieces, cleaner = DecodeStream(skip_special_tokens=True), AnswerText()
    ids: list[int] = []
    text: list[str] = []

    def say(piece: str) -> None:
        text.append(piece)
        if piece and on_text is not None:
            on_text(piece)

    finish: Literal["stop", "length", "cancelled"] = "length"
    unread, position = list(question), memory.position
    started, first = time.perf_counter(), None
    with memory.kept():
        while True:
            with gatherer.gathering() if gatherer is not None else nullcontext():
                hidden = memory.read(unread, position)
            token = int(_finite(memory.adapter.logits(hidden)).argmax())
            first = first or time.perf_counter()
            if token in memory.prompt.end_tokens:
                finish = "stop"
                break
            ids.append(token)
            say(cleaner.feed(pieces.step(memory.prompt.tokenizer.backend_tokenizer, token) or ""))
            if len(ids) >= most_tokens:
                break
            if stop is not None and stop.is_set():
                finish = "cancelled"
                break
            position += len(unread)
            unread = [token]
        cache_bytes = memory.cache_bytes
    say(cleaner.finish())
    ended = time.perf_counter()
    return Response(tuple(ids), "".join(text), finish, (first - started) * 1e3, (ended - first) * 1e3, cache_bytes)


def _finite(logits: Tensor) -> Tensor:
    if not bool(torch.isfinite(logits).all()):
        raise WeightsInvalid(
            "the model's output holds numbers that are not finite", remedy="load it with vlm.dtype=float32 or bfloat16"
        )
    return logits


def default_layer(layers: int) -> int:
    """Return the layer at two thirds: after the layers that read pictures, before those that pick words."""
    return max(0, round(layers * 2 / 3) - 1)


class AttentionGatherer:
    """Sum of one layer's attention to the memory over the passes that predict the answer's tokens."""

    def __init__(self, memory: Memory, layer: int) -> None:
        self._adapter = memory.adapter
        self._memory = memory
        self._layer = layer
        self._kept_tokens = memory.tokens
        self._total = torch.zeros(self._kept_tokens)
        self._count = 0

    @contextmanager
    def gathering(self) -> Iterator[None]:
        """Record a pass of the model whose last token predicts a token of the answer."""
        with self._adapter.attention_inputs(self._layer) as inputs:
            yield
        hidden, rotation = inputs[-1]
        last = (rotation[0][:, -1:], rotation[1][:, -1:])
        query = self._adapter.queries(self._layer, hidden[:, -1:], last)
        scores = (query @ self._memory.keys(self._layer).transpose(1, 2)).float()
        bias = self._memory.bias()
        if bias is not None:
            scores = scores + bias.to(scores.device)
        weights = scores.softmax(dim=-1).mean(dim=(0, 1))
        self._total += weights[: self._kept_tokens].cpu()
        self._count += 1

    @property
    def mean(self) -> Tensor:
        """Share of the attention that each token of the memory got, `[tokens]` float32."""
        return self._total / max(1, self._count)
