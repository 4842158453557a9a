"""Ways to describe every place of a frame by 16 numbers, by name."""

from __future__ import annotations

from collections.abc import Callable

from arr_stream.errors import InvalidSetting
from arr_stream.keyframes.base import Embedder


def _appearance() -> Embedder:
    from arr_stream.keyframes.embeddings.appearance import AppearanceEmbedder

    return AppearanceEmbedder()


EMBEDDERS: dict[str, Callable[[], Embedder]] = {"appearance": _appearance}


def make_embedder(name: str) -> Embedder:
    """The embedder of that name.

    Raises:
        InvalidSetting: No embedder has that name.
    """
    if name not in EMBEDDERS:
        raise InvalidSetting(f"keyframes.embeddings={name!r}", remedy=f"choose one of {', '.join(EMBEDDERS)}")
    return EMBEDDERS[name]()
