"""CLIP and similar models: places and texts in one space, so that a text query can be compared with places.

The model sees the frame at its own aspect, in one forward with resized positions, at the texture's scale of 32 px a
cell, or the nearest scale with at most two places a cell: patches of 16 px give exactly two, patches of 32 px one.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from arr_stream.config import ClipSettings, ModelSettings
from arr_stream.errors import KeyframeFailed, WeightsInvalid
from arr_stream.keyframes.base import KeyframeInput, resized
from arr_stream.keyframes.embeddings.dense import make_tower
from arr_stream.keyframes.embeddings.openclip import load_clip, make_tokenizer
from arr_stream.threads import one_torch_thread, torch_threads
from arr_stream.types import CELL_PX, Embedding, FloatArray, Grid
from arr_stream.weights import pick_device

CACHED_TEXTS = 256
SAMPLES_A_CELL = 2
MOST_PLACES = 2048
"""Most places of a frame in one forward, as attention grows with their square; larger frames are scaled down."""


class ClipEmbedder:
    """Embedder of every place of a frame in the joint space of pictures and texts.

    Args:
        settings: The model.
        models: Where weights are kept and where the model runs.
        threads: CPU threads while it works; None for torch's own number.

    Attributes:
        space: Name of the model's space; only texts of the same space can be compared.

    Raises:
        BackendUnavailable: A package, weights or the device are missing.
        InvalidSetting: A model that does not exist, or of an unsupported architecture.
        WeightsInvalid: Weights that are damaged or of another model.
    """

    def __init__(self, settings: ClipSettings, models: ModelSettings, threads: int | None = None) -> None:
        self._device = pick_device(models.device)
        loaded = load_clip(settings, models)
        self.space, self.name = loaded.plan.space, f"clip {loaded.plan.space}"
        self._threads = threads
        self._tower = make_tower(loaded.model.visual.to(self._device), self.space)
        statistics = (torch.tensor(values, device=self._device) for values in (loaded.plan.mean, loaded.plan.std))
        self._mean, self._std = (values.view(1, 3, 1, 1) for values in statistics)

    def embed(self, picture: KeyframeInput) -> Embedding:
        """Return `[D, h, w]` of unit length, at most two samples a cell.

        Raises:
            KeyframeFailed: The model gives values that are not numbers, or the device has too little memory.
        """
        try:
            with torch.inference_mode(), torch_threads(self._threads), _fused_attention(), _precision(self._device):
                features = self._features(picture)
        except torch.OutOfMemoryError as exc:
            raise KeyframeFailed(
                f"embedding: {self.name} needs more memory than {self._device} has",
                remedy="use a smaller model or models.device=cpu",
            ) from exc
        values = np.ascontiguousarray(features.cpu().numpy(), dtype=np.float32)
        if not np.isfinite(values).all():
            raise KeyframeFailed(
                f"embedding: {self.name} gives values that are not numbers", remedy="use other weights for clip.model"
            )
        return Embedding(values, self.space, joint=True)

    def _features(self, picture: KeyframeInput) -> Tensor:
        grid, stride_px = picture.grid, self._tower.stride_px
        rows, columns = places_hw(grid, stride_px, most=MOST_PLACES)
        rgb = torch.from_numpy(resized(picture.frame.rgb, (columns * stride_px, rows * stride_px))).to(self._device)
        pixels = (rgb.permute(2, 0, 1)[None].float() / 255.0 - self._mean) / self._std
        return at_most(self._tower.features(pixels)[0], (SAMPLES_A_CELL * grid.rows, SAMPLES_A_CELL * grid.columns))


class ClipTextEncoder:
    """Encoder of texts in the joint space, one by one; callable from any thread. Raises as `ClipEmbedder`."""

    def __init__(self, settings: ClipSettings, models: ModelSettings) -> None:
        self._device = pick_device(models.device)
        loaded = load_clip(settings, models)
        self.space, self.context_length = loaded.plan.space, int(loaded.model.context_length)
        self._tokenizer, self._templates = make_tokenizer(loaded.plan), loaded.plan.templates
        loaded.model.visual = nn.Identity()
        self._model = loaded.model.to(self._device)
        self._lock = threading.Lock()
        self._encoded = lru_cache(CACHED_TEXTS)(self._encode)

    def token_count(self, text: str) -> int:
        """Return the tokens of the whole text in its longest template, start and end included."""
        with self._lock:
            return max(len(self._tokenizer.encode(template.format(text))) for template in self._templates)

    def encode(self, texts: Sequence[str]) -> FloatArray:
        """Return `[N, D]` float32 of unit length; a text longer than the context is truncated.

        Raises:
            WeightsInvalid: The model gives values that are not numbers.
        """
        with self._lock:
            vectors = [self._encoded(text) for text in texts]
            return np.stack(vectors) if vectors else np.zeros((0, len(self._encoded(""))), np.float32)

    def _encode(self, text: str) -> FloatArray:
        """Return the mean of the unit vectors of all phrases, scaled to unit length (Radford et al., 2021)."""
        tokens = self._tokenizer.batch([template.format(text) for template in self._templates]).to(self._device)
        # More threads add in another order, so that the same words would get different vectors on other machines.
        with torch.inference_mode(), one_torch_thread(), _precision(self._device):
            each = F.normalize(_encode_text(self._model, tokens).float(), dim=-1)
            vector: FloatArray = F.normalize(each.mean(dim=0), dim=-1).cpu().numpy()
        if not np.isfinite(vector).all():
            raise WeightsInvalid(
                f"{self.space}: the text encoder gives values that are not numbers",
                remedy="use other weights for clip.model",
            )
        return vector


def _encode_text(model: Any, tokens: Tensor) -> Tensor:
    """Return `[N, D]` as the model's own `encode_text` of `[N, context]` tokens does, without the padding.

    With a causal mask, padding does not change earlier tokens, and a phrase fills about ten of 77 tokens.
    """
    text = getattr(model, "text", model)
    pool = getattr(text, "text_pool_type", None) or getattr(text, "pool_type", None)
    if pool != "argmax" or getattr(text, "attn_mask", None) is None:
        return cast(Tensor, model.encode_text(tokens))
    length = int(tokens.argmax(dim=1).max()) + 1
    tokens = tokens[:, :length]
    if text is not model:
        return cast(Tensor, model.encode_text(tokens))
    embedded = model.token_embedding(tokens) + model.positional_embedding[:length]
    embedded = model.ln_final(model.transformer(embedded, attn_mask=model.attn_mask[:length, :length]))
    ends = embedded[torch.arange(len(tokens), device=tokens.device), tokens.argmax(dim=1)]
    projection = model.text_projection
    if projection is None:
        return cast(Tensor, ends)
    return cast(Tensor, projection(ends) if isinstance(projection, nn.Module) else ends @ projection)


@contextmanager
def _fused_attention() -> Iterator[None]:
    """Let `nn.MultiheadAttention` use the fused product instead of its own fast path, which is twice as slow on a CPU.

    The switch applies to the process; models of other threads give the same results, as fast or faster.
    """
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _precision(device: torch.device) -> torch.autocast:
    """Return the precision: full on the CPU; half on CUDA, bfloat16 if the GPU supports it."""
    if device.type != "cuda":
        return torch.autocast(device.type, enabled=False)
    return torch.autocast("cuda", dtype=torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16)


def places_hw(grid: Grid, stride_px: int, *, most: int) -> tuple[int, int]:
    """Return the model's places on a frame for a stride, at most two a cell and side, and at most `most` in all."""
    by_scale = CELL_PX / stride_px
    a_cell = min(SAMPLES_A_CELL, math.floor(by_scale) if by_scale >= 1 else by_scale)
    rows, columns = max(1, round(grid.rows * a_cell)), max(1, round(grid.columns * a_cell))
    if rows * columns > most:
        shrink = math.sqrt(most / (rows * columns))
        # Rounded down to respect the limit; a strip that is still too long is limited to it.
        rows, columns = max(1, math.floor(rows * shrink)), max(1, math.floor(columns * shrink))
        return min(rows, most), min(columns, most // min(rows, most))
    return rows, columns


def at_most(features: Tensor, most_hw: tuple[int, int]) -> Tensor:
    """Return `[D, h, w]` of unit length, averaged along every side that has more samples than `most_hw`."""
    height, width = features.shape[1:]
    size_hw = min(height, most_hw[0]), min(width, most_hw[1])
    if size_hw == (height, width):
        return features
    return F.normalize(F.adaptive_avg_pool2d(features[None], size_hw)[0], dim=0)
