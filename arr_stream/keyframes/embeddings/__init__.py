"""Embedders by name."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from arr_stream.config import TINY, Settings
from arr_stream.extras import needed_by
from arr_stream.files import expanded
from arr_stream.keyframes.base import Embedder, TextEncoder

if TYPE_CHECKING:
    from arr_stream.keyframes.embeddings.pca import Pca


def _needed_by_clip(settings: Settings) -> AbstractContextManager[None]:
    return needed_by(f"clip.model={settings.clip.model}", "torch" if settings.clip.model == TINY else "clip")


def _appearance(settings: Settings, threads: int | None) -> Embedder:
    from arr_stream.keyframes.embeddings.appearance import AppearanceEmbedder

    return AppearanceEmbedder()


def _clip(settings: Settings, threads: int | None) -> Embedder:
    with _needed_by_clip(settings):
        from arr_stream.keyframes.embeddings.clip import ClipEmbedder

    return ClipEmbedder(settings.clip, settings.models, threads)


EMBEDDERS: dict[str, Callable[[Settings, int | None], Embedder]] = {"appearance": _appearance, "clip": _clip}


def make_embedder(settings: Settings, threads: int | None = None) -> Embedder:
    """Return the embedder that `keyframes.embeddings` names, on at most `threads` threads (None: its default).

    Raises:
        BackendUnavailable, WeightsInvalid: A package or weights are missing or damaged.
    """
    return EMBEDDERS[settings.keyframes.embeddings](settings, threads)


def make_text_encoder(settings: Settings) -> TextEncoder | None:
    """Return the embedder's text encoder, or None if its space has no texts.

    Raises:
        BackendUnavailable, WeightsInvalid: A package or weights are missing or damaged.
    """
    if settings.keyframes.embeddings != "clip":
        return None
    with _needed_by_clip(settings):
        from arr_stream.keyframes.embeddings.clip import ClipTextEncoder

    return ClipTextEncoder(settings.clip, settings.models)


def find_pca(settings: Settings, encoder: TextEncoder | None) -> Pca | None:
    """Return the principal directions beside the model's weights; None where there are none, or no text encoder.

    Raises:
        WeightsInvalid: The file is damaged.
    """
    if encoder is None:
        return None
    from arr_stream import weights
    from arr_stream.keyframes.embeddings.pca import load_pca

    model = weights.shipped_folder(TINY) if settings.clip.model == TINY else expanded(settings.clip.model)
    path = model / weights.PCA_NAME
    return load_pca(path) if path.is_file() else None
