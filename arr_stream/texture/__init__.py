"""The 40-channel texture of a frame."""

from arr_stream.texture.array import Texture
from arr_stream.texture.layout import CHANNEL_INDEX, CHANNELS, EMBEDDING, Channel

__all__ = ["CHANNELS", "CHANNEL_INDEX", "EMBEDDING", "Channel", "Texture"]
