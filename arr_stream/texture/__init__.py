"""The 40-channel texture of a frame."""

from __future__ import annotations

from arr_stream.texture.layout import CHANNEL_INDEX, CHANNELS, EMBEDDING, Channel

__all__ = ["CHANNELS", "CHANNEL_INDEX", "EMBEDDING", "Channel"]
