"""CLIP and similar models: places and texts in one space, so that a text query can be compared with places.

The model sees the frame at its own aspect, in one forward with resized positions, at the texture's scale of 32 px a
cell, or the nearest scale with at most two places a cell: patches of 16 px give exactly two, patches of 32 px one.

CLIP was trained to compare one pooled vector of a picture with a text. The last attention's value and output
projections, the last norm and the projection bring that vector into the joint space. As in MaskCLIP (Zhou, Loy and Dai,
ECCV 2022), every place goes through the same maps separately: the last block does not mix places, and its residual and
MLP are left out.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from arr_stream.config import ClipSettings, ModelSettings
from arr_stream.errors import KeyframeFailed, WeightsInvalid
from arr_stream.keyframes.base import KeyframeInput, resized
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
        self.space, self.name = loaded.space, f"clip {loaded.space}"
        self._threads = threads
        self._visual, self._stride_px = loaded.model.visual.to(self._device), int(loaded.model.visual.patch_size[0])
        self._mean, self._std = loaded.mean.to(self._device), loaded.std.to(self._device)

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
        grid, stride_px = picture.grid, self._stride_px
        rows, columns = places_hw(grid, stride_px, most=MOST_PLACES)
        rgb = torch.from_numpy(resized(picture.frame.rgb, (columns * stride_px, rows * stride_px))).to(self._device)
        pixels = (rgb.permute(2, 0, 1)[None].float() / 255.0 - self._mean) / self._std
        return at_most(
            dense_features(self._visual, pixels)[0], (SAMPLES_A_CELL * grid.rows, SAMPLES_A_CELL * grid.columns)
        )


class ClipTextEncoder:
    """Encoder of texts in the joint space, one by one; callable from any thread. Raises as `ClipEmbedder`."""

    def __init__(self, settings: ClipSettings, models: ModelSettings) -> None:
        self._device = pick_device(models.device)
        loaded = load_clip(settings, models)
        self.space, self._context_length = loaded.space, int(loaded.model.context_length)
        self._tokens, self._templates = make_tokenizer(loaded), loaded.templates
        loaded.model.visual = nn.Identity()
        self._model = loaded.model.to(self._device)
        self._lock = threading.Lock()
        self._encoded = lru_cache(CACHED_TEXTS)(self._encode)

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
        phrases = [self._tokens(template.format(text)) for template in self._templates]
        cut = [torch.tensor([*tokens[:-1][: self._context_length - 1], tokens[-1]]) for tokens in phrases]
        tokens = pad_sequence(cut, batch_first=True).to(self._device)
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
    """Return `[N, D]` as open_clip's `encode_text` of `[N, T]` tokens does, of any length T within the context.

    With a causal mask, padding does not change earlier tokens, and a phrase fills about ten of 77 tokens.
    """
    length = tokens.shape[1]
    embedded = model.token_embedding(tokens) + model.positional_embedding[:length]
    embedded = model.ln_final(model.transformer(embedded, attn_mask=model.attn_mask[:length, :length]))
    # The end has the highest number.
    ends = embedded[torch.arange(len(tokens), device=tokens.device), tokens.argmax(dim=1)]
    features: Tensor = ends @ model.text_projection
    return features


def dense_features(visual: Any, pixels: Tensor) -> Tensor:
    """Return the features of every place in the joint space.

    Args:
        visual: Vision tower of OpenAI's architecture.
        pixels: `[B, 3, H, W]`, normalised for the model; sides are multiples of the patch.

    Returns:
        `[B, D, H / patch, W / patch]` float32 of unit length.
    """
    *blocks, last = visual.transformer.resblocks
    patches = visual.conv1(pixels)
    grid_hw = patches.shape[2], patches.shape[3]
    patches = patches.flatten(2).transpose(1, 2)
    first = visual.class_embedding.to(patches.dtype).expand(len(patches), 1, -1)
    positions = _resized_positions(visual.positional_embedding, visual.grid_size, grid_hw)
    tokens = visual.ln_pre(torch.cat([first, patches], dim=1) + positions.to(patches.dtype))
    for block in blocks:
        tokens = block(tokens)
    # Attention of each token to itself alone: the value path.
    qkv = F.linear(last.ln_1(tokens), last.attn.in_proj_weight, last.attn.in_proj_bias)
    tokens = last.ls_1(last.attn.out_proj(qkv.chunk(3, dim=-1)[2]))
    places = F.normalize((visual.ln_post(tokens[:, 1:]) @ visual.proj).float(), dim=-1)
    return places.transpose(1, 2).reshape(len(places), -1, *grid_hw)


def _resized_positions(positions: Tensor, from_hw: tuple[int, int], to_hw: tuple[int, int]) -> Tensor:
    """Resize learned positions, `[1 + N, C]` with the class token's first, to another grid, bicubically."""
    if tuple(from_hw) == to_hw:
        return positions
    plane = positions[1:].float().T.reshape(1, -1, *from_hw)
    resized = F.interpolate(plane, size=to_hw, mode="bicubic", align_corners=False)[0]
    return torch.cat([positions[:1], resized.flatten(1).T.to(positions.dtype)])


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
