"""CLIP and similar models: places and texts in one space, so that a text query can be compared with places.

The model sees the frame at its own aspect, in one forward with resized positions, at the texture's scale of 32 px a
cell, or the nearest scale with at most two places a cell: patches of 16 px give exactly two, patches of 32 px one.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from arr_stream.config import ClipSettings, ModelSettings
from arr_stream.errors import KeyframeFailed, WeightsInvalid
from arr_stream.keyframes.base import KeyframeInput, resized
from arr_stream.keyframes.embeddings.dense import Tower, make_tower
from arr_stream.keyframes.embeddings.openclip import load_clip
from arr_stream.threads import one_torch_thread, torch_threads
from arr_stream.types import CELL_PX, ByteArray, Embedding, FloatArray, Grid

CACHED_TEXTS = 256
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
        from arr_stream.weights import pick_device

        device = pick_device(models.device)
        loaded = load_clip(settings, models, towers="vision")
        assert loaded.visual is not None
        self.space = loaded.space
        self._threads = threads
        self._tower = make_tower(loaded.visual.to(device), loaded.space)
        self._normal = Normalisation(loaded.mean, loaded.std, device)
        self.name = f"clip {self.space}"

    def embed(self, picture: KeyframeInput) -> Embedding:
        """Return `[D, h, w]` of unit length, at most two samples a cell.

        Raises:
            KeyframeFailed: The model gives values that are not numbers, or the device has too little memory.
        """
        device = self._normal.device
        try:
            with torch.inference_mode(), torch_threads(self._threads), fused_attention(), _precision(device):
                features = frame_features(self._tower, picture.frame.rgb, picture.grid, self._normal)
        except torch.OutOfMemoryError as exc:
            raise KeyframeFailed(
                f"embedding: {self.name} needs more memory than {device} has",
                remedy="use a smaller model or models.device=cpu",
            ) from exc
        values = np.ascontiguousarray(features.cpu().numpy(), dtype=np.float32)
        if not np.isfinite(values).all():
            raise KeyframeFailed(
                f"embedding: {self.name} gives values that are not numbers", remedy="use other weights for clip.model"
            )
        return Embedding(values, self.space, joint=True)


class ClipTextEncoder:
    """Encoder of texts in the joint space, one by one; callable from any thread. Raises as `ClipEmbedder`."""

    def __init__(self, settings: ClipSettings, models: ModelSettings) -> None:
        from arr_stream.weights import pick_device

        self._device = pick_device(models.device)
        loaded = load_clip(settings, models, towers="text")
        assert loaded.tokenizer is not None
        self.space, self.context_length = loaded.space, loaded.context_length
        self._model = loaded.text.to(self._device)
        self._tokenizer, self._templates = loaded.tokenizer, loaded.templates
        self._lock = threading.Lock()
        self._cache: OrderedDict[str, FloatArray] = OrderedDict()

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
            vectors = [self._cached(text) for text in texts]
            return np.stack(vectors) if vectors else np.zeros((0, len(self._cached(""))), np.float32)

    def _cached(self, text: str) -> FloatArray:
        if text not in self._cache:
            self._cache[text] = self._encoded(text)
            if len(self._cache) > CACHED_TEXTS:
                self._cache.popitem(last=False)
        self._cache.move_to_end(text)
        return self._cache[text]

    def _encoded(self, text: str) -> FloatArray:
        """Return the mean of the unit vectors of all phrases, scaled to unit length (Radford et al., 2021)."""
        tokens = self._tokenizer.batch([template.format(text) for template in self._templates]).to(self._device)
        # More threads add in another order, so that the same words would get different vectors on other machines.
        with torch.inference_mode(), one_torch_thread(), _precision(self._device):
            each = F.normalize(encode_text(self._model, tokens).float(), dim=-1)
            vector: FloatArray = F.normalize(each.mean(dim=0), dim=-1).cpu().numpy()
        if not np.isfinite(vector).all():
            raise WeightsInvalid(
                f"{self.space}: the text encoder gives values that are not numbers",
                remedy="use other weights for clip.model",
            )
        return vector


def encode_text(model: Any, tokens: Tensor) -> Tensor:
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
def fused_attention() -> Iterator[None]:
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


SAMPLES_A_CELL = 2


class Normalisation:
    """Normalisation of a model's input: red, green and blue in [0, 1], minus `mean`, over `std`, on its device."""

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...], device: torch.device) -> None:
        self.device = device
        self._mean = torch.tensor(mean, device=device).view(1, 3, 1, 1)
        self._std = torch.tensor(std, device=device).view(1, 3, 1, 1)

    def pixels(self, rgb: ByteArray, size_hw: tuple[int, int], stride_px: int) -> Tensor:
        """Return `[1, 3, h, w]` float32 of the picture, resized to a number of places of `stride_px`."""
        bytes_hwc = torch.from_numpy(resized(rgb, (size_hw[1] * stride_px, size_hw[0] * stride_px))).to(self.device)
        return (bytes_hwc.permute(2, 0, 1)[None].float() / 255.0 - self._mean) / self._std


def places_hw(grid: Grid, stride_px: int, *, most: int | None = None) -> tuple[int, int]:
    """Return the model's places on a frame for a stride, at most two a cell and at most `most` in all."""
    by_scale = CELL_PX / stride_px
    a_cell = min(SAMPLES_A_CELL, math.floor(by_scale) if by_scale >= 1 else by_scale)
    rows, columns = max(1, round(grid.rows * a_cell)), max(1, round(grid.columns * a_cell))
    if most is not None and rows * columns > most:
        shrink = math.sqrt(most / (rows * columns))
        # Rounded down to respect the limit; a strip that is still too long is limited to it.
        rows, columns = max(1, math.floor(rows * shrink)), max(1, math.floor(columns * shrink))
        return min(rows, most), min(columns, most // min(rows, most))
    return rows, columns


def frame_features(tower: Tower, rgb: ByteArray, grid: Grid, normal: Normalisation) -> Tensor:
    """Embed every place of a frame `[H, W, 3]` uint8 in the joint space.

    Returns:
        `[D, h, w]` float32 of unit length, at most two samples a cell.
    """
    pixels = normal.pixels(rgb, places_hw(grid, tower.stride_px, most=MOST_PLACES), tower.stride_px)
    return at_most(tower.features(pixels)[0], (SAMPLES_A_CELL * grid.rows, SAMPLES_A_CELL * grid.columns))


def at_most(features: Tensor, most_hw: tuple[int, int]) -> Tensor:
    """Return `[D, h, w]` of unit length, averaged along every side that has more samples than `most_hw`."""
    height, width = features.shape[1:]
    size_hw = min(height, most_hw[0]), min(width, most_hw[1])
    if size_hw == (height, width):
        return features
    return F.normalize(F.adaptive_avg_pool2d(features[None], size_hw)[0], dim=0)
