"""Puts a frame's texture together from what is seen now, what the keyframe found and what is remembered."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import torch

from arr_stream.motion.carry import carry
from arr_stream.motion.memory import HISTORY_CHANNELS, TemporalCache
from arr_stream.texture.array import LazyPlane, Plane, Texture
from arr_stream.texture.layout import CHANNEL_INDEX, EMBEDDING
from arr_stream.texture.pictures import Pictures
from arr_stream.texture.visual import VisualChannels, eccentricity
from arr_stream.types import FloatArray, IntArray

_BYTE = 1 / 255


def assemble(pictures: Pictures, visual: VisualChannels, motion: FloatArray, cache: TemporalCache) -> Texture:
    """The 40 channels of a frame.

    Channels that nothing has asked for yet (clusters and what follows from them, text, embedding) are carried or
    derived when they are first read; what they are made from does not change after this call.
    """
    width, height = pictures.grid.texture_wh
    labels = _once(_carrying_labels(cache))
    planes: dict[int, Plane | LazyPlane] = {
        0: Plane(0, torch.from_numpy(pictures.full).permute(2, 0, 1), _BYTE),
        **_position_planes((width, height)),
        6: Plane(6, torch.from_numpy(visual.fine), _BYTE),
        9: Plane(9, torch.from_numpy(np.stack([visual.low_pass, motion, visual.saliency, visual.edge_distance]))),
        13: lambda: _plane("cluster", labels()),
        14: lambda: _plane("centroid_distance", centroid_distance(labels())),
        15: lambda: _plane("cluster_size", cluster_size(labels())),
        16: _text_plane(cache),
        17: lambda: _plane("boundary", boundaries(labels())),
        EMBEDDING.start: _embedding_plane(cache),
    }
    # The history is changed in place by the next frame, so this texture keeps a copy of its own.
    history = torch.from_numpy(cache.history.copy()).permute(2, 0, 1)
    planes[CHANNEL_INDEX[HISTORY_CHANNELS[0]]] = Plane(CHANNEL_INDEX[HISTORY_CHANNELS[0]], history)
    return Texture((width, height), planes)


def _plane(name: str, data: FloatArray | IntArray) -> Plane:
    return Plane(CHANNEL_INDEX[name], torch.from_numpy(data)[None])


@lru_cache(maxsize=8)
def _position_planes(texture_wh: tuple[int, int]) -> dict[int, Plane]:
    """Channels 3 to 5: made once a size. A row and a column are enough for x and y."""
    width, height = texture_wh
    x: FloatArray = ((np.arange(width, dtype=np.float32) + 0.5) / width).astype(np.float32)[None]
    y: FloatArray = ((np.arange(height, dtype=np.float32) + 0.5) / height).astype(np.float32)[:, None]
    centre = eccentricity((width // 4, height // 4))
    return {3: _plane("x", x), 4: _plane("y", y), 5: _plane("eccentricity", centre)}


def _carrying_labels(cache: TemporalCache) -> Callable[[], IntArray]:
    """Gives cluster ids on this frame when called; one region before the first keyframe."""
    in_use, shape = cache.clusters, cache.reduced_hw(4)
    if in_use is None:
        return lambda: np.zeros(shape, np.int32)
    return lambda: carry(in_use.value.labels, in_use.flow, nearest=True)


def _once(make: Callable[[], IntArray]) -> Callable[[], IntArray]:
    """The same, made at the first call only."""
    return lru_cache(maxsize=1)(make)


def _text_plane(cache: TemporalCache) -> Plane | LazyPlane:
    in_use = cache.text
    if in_use is None or not in_use.value.mask.any():
        return _plane("text", np.zeros((1, 1), np.float32))
    return lambda: _plane("text", carry(in_use.value.mask, in_use.flow, outside=0.0))


def _embedding_plane(cache: TemporalCache) -> Plane | LazyPlane:
    in_use, channels = cache.embedding, cache.embedding_channels
    if in_use is None or channels is None:
        height, width = cache.grid.rows * 2, cache.grid.columns * 2
        return Plane(EMBEDDING.start, torch.zeros(EMBEDDING.stop - EMBEDDING.start, height, width))

    def carried() -> Plane:
        moved = carry(np.ascontiguousarray(channels.transpose(1, 2, 0)), in_use.flow)
        return Plane(EMBEDDING.start, torch.from_numpy(moved).permute(2, 0, 1))

    return carried


def centroid_distance(labels: IntArray) -> FloatArray:
    """`[h, w]`: distance of each place from its region's centroid, over the diagonal."""
    height, width = labels.shape
    flat = labels.ravel()
    sizes = np.maximum(np.bincount(flat), 1)
    y, x = np.divmod(np.arange(flat.size), width)
    off_x = x - (np.bincount(flat, x) / sizes)[flat]
    off_y = y - (np.bincount(flat, y) / sizes)[flat]
    distance = np.hypot(off_x, off_y) / np.hypot(width, height)
    normalised: FloatArray = distance.reshape(labels.shape).astype(np.float32)
    return normalised


def cluster_size(labels: IntArray) -> FloatArray:
    """`[h, w]`: share of the frame that each place's region covers."""
    sizes: FloatArray = (np.bincount(labels.ravel()) / labels.size).astype(np.float32)
    return sizes[labels]


def boundaries(labels: IntArray) -> FloatArray:
    """`[h, w]`: 1 where a neighbour to the right or below belongs to another region."""
    edge = np.zeros(labels.shape, np.float32)
    edge[:, :-1] = labels[:, :-1] != labels[:, 1:]
    np.maximum(edge[:-1], labels[:-1] != labels[1:], out=edge[:-1])
    return edge
