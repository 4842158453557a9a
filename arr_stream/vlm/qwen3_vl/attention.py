"""Where an answer looked: the attention of one layer, averaged over its heads and over the tokens of the answer.

It is computed anew for the few tokens that count, from the layer's inputs and the cached keys, so that any
implementation of attention will do, those included that never form the weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from arr_stream.vlm.qwen3_vl.adapter import Adapter
from arr_stream.vlm.qwen3_vl.memory import Memory


def default_layer(layers: int) -> int:
    """Two thirds up: later than where pictures are read in, earlier than where words are picked."""
    return max(0, round(layers * 2 / 3) - 1)


class AttentionGatherer:
    """Adds up the attention of the passes that each answer token was predicted from.

    Args:
        adapter: The model.
        memory: What is attended to.
        layer: Which layer, from 0.
    """

    def __init__(self, adapter: Adapter, memory: Memory, layer: int) -> None:
        self._adapter = adapter
        self._memory = memory
        self._layer = layer
        self._kept_tokens = memory.tokens
        self._total = torch.zeros(self._kept_tokens)
        self._count = 0

    @contextmanager
    def gathering(self) -> Iterator[None]:
        """A pass of the model whose last token predicts a token of the answer."""
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
        """`[tokens]` float32: the share of the attention that each token of the memory got."""
        return self._total / max(1, self._count)
