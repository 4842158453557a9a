"""The 40-channel texture of a frame."""

from __future__ import annotations

from typing import TYPE_CHECKING

from arr_stream.texture.layout import CHANNEL_INDEX, CHANNELS, EMBEDDING, Channel

if TYPE_CHECKING:
    from arr_stream.texture.array import Texture

__all__ = ["CHANNELS", "CHANNEL_INDEX", "EMBEDDING", "Channel", "Texture"]


def __getattr__(name: str) -> object:
    if name == "Texture":
        from arr_stream.texture.array import Texture

        return Texture
    raise AttributeError(name)
