"""CLIP and its kin: places and texts in one space, so that a query in plain words finds its places."""

from __future__ import annotations

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
from arr_stream.keyframes.base import KeyframeInput
from arr_stream.keyframes.embeddings.dense import make_tower
from arr_stream.keyframes.embeddings.openclip import load_clip
from arr_stream.keyframes.embeddings.passes import Normalisation, frame_features
from arr_stream.threads import one_torch_thread, torch_threads
from arr_stream.types import Embedding, FloatArray

CACHED_TEXTS = 256


class ClipEmbedder:
    """Every place of a frame in the joint space of pictures and texts.

    Args:
        settings: Model, method and pass.
        models: Where weights are kept and where the model runs.
        threads: CPU threads while it works; None for torch's own number.

    Raises:
        BackendUnavailable: A package, weights or the device are missing.
        InvalidSetting: A model that does not exist, or a method that does not fit it.
        WeightsInvalid: Weights that are damaged or of another model.
    """

    def __init__(self, settings: ClipSettings, models: ModelSettings, threads: int | None = None) -> None:
        from arr_stream.weights import pick_device

        device = pick_device(models.device)
        loaded = load_clip(settings, models, towers="vision")
        assert loaded.visual is not None
        self.space = loaded.space
        self._settings, self._threads = settings, threads
        self._tower = make_tower(loaded.visual.to(device), loaded.space, settings.method)
        self._normal = Normalisation(loaded.mean, loaded.std, device)

    @property
    def name(self) -> str:
        return f"clip {self.space} {self._settings.method} {self._settings.passes}"

    @property
    def methods(self) -> tuple[str, ...]:
        """Methods that the model has."""
        return self._tower.methods

    def embed(self, picture: KeyframeInput) -> Embedding:
        """`[D, h, w]` of unit length, at most two samples a cell.

        Raises:
            KeyframeFailed: The model gives values that are not numbers, or the device has too little memory.
        """
        settings = self._settings
        try:
            with (
                torch.inference_mode(),
                torch_threads(self._threads),
                fused_attention(),
                _precision(self._normal.device),
            ):
                features = frame_features(
                    self._tower,
                    picture.frame.rgb,
                    picture.grid,
                    method=settings.method,
                    passes=settings.passes,
                    places=settings.places,
                    batch=settings.batch,
                    normal=self._normal,
                )
        except torch.OutOfMemoryError as exc:
            raise KeyframeFailed(
                f"embedding: {self.name} needs more memory than {self._normal.device} has",
                remedy="set clip.passes=coarse, a smaller clip.batch or models.device=cpu",
            ) from exc
        values = np.ascontiguousarray(features.cpu().numpy(), dtype=np.float32)
        if not np.isfinite(values).all():
            raise KeyframeFailed(
                f"embedding: {self.name} gives values that are not numbers", remedy="use other weights for clip.model"
            )
        return Embedding(values, self.space, joint=True)


class ClipTextEncoder:
    """Texts in the joint space; may be asked from any thread.

    Each text is encoded by itself, so that its vector does not depend on what it was asked together with.

    Args:
        settings: The model.
        models: Where weights are kept and where the model runs.

    Raises:
        BackendUnavailable, InvalidSetting, WeightsInvalid: As for `ClipEmbedder`.
    """

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
        """Tokens of the whole text in the longest phrase it is put into, start and end included."""
        with self._lock:
            return max(len(self._tokenizer.encode(template.format(text))) for template in self._templates)

    def encode(self, texts: Sequence[str]) -> FloatArray:
        """`[N, D]` float32 of unit length; what does not fit the context is cut off.

        Raises:
            WeightsInvalid: The model gives values that are not numbers.
        """
        with self._lock:
            return np.stack([self._cached(text) for text in texts]) if texts else self._none()

    def _cached(self, text: str) -> FloatArray:
        if text not in self._cache:
            self._cache[text] = self._encoded(text)
            if len(self._cache) > CACHED_TEXTS:
                self._cache.popitem(last=False)
        self._cache.move_to_end(text)
        return self._cache[text]

    def _encoded(self, text: str) -> FloatArray:
        """Mean of the unit vectors of all phrases, brought to unit length (Radford et al., 2021)."""
        tokens = self._tokenizer.batch([template.format(text) for template in self._templates]).to(self._device)
        # More threads add up in another order, and the same words would not get the same vector everywhere.
        with torch.inference_mode(), one_torch_thread(), _precision(self._device):
            each = F.normalize(encode_text(self._model, tokens).float(), dim=-1)
            vector: FloatArray = F.normalize(each.mean(dim=0), dim=-1).cpu().numpy()
        if not np.isfinite(vector).all():
            raise WeightsInvalid(
                f"{self.space}: the text encoder gives values that are not numbers",
                remedy="use other weights for clip.model",
            )
        return vector

    def _none(self) -> FloatArray:
        return np.zeros((0, len(self._cached(""))), np.float32)


def encode_text(model: Any, tokens: Tensor) -> Tensor:
    """`[N, D]`, as the model's own `encode_text` of `[N, context]` tokens, without the padding where that is idle.

    Behind a causal mask what follows a text's end changes nothing before it, and of 77 tokens a phrase fills about ten.
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
    """Let `nn.MultiheadAttention` take the fused product instead of its own fast path, which is twice as slow on a CPU.

    The switch is the process's: another thread's model that runs meanwhile is as right, and as fast or faster.
    """
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _precision(device: torch.device) -> torch.autocast:
    """Full precision on the CPU; half on CUDA, with the range of float32 where the GPU can."""
    if device.type != "cuda":
        return torch.autocast(device.type, enabled=False)
    return torch.autocast("cuda", dtype=torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16)
