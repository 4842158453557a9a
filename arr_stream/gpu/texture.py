"""Puts a frame's texture together on a device; `motion/assembly.py` on tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from arr_stream.gpu.mips import dense_into, pyramid
from arr_stream.gpu.pictures import DevicePictures
from arr_stream.gpu.visual import DeviceVisual
from arr_stream.gpu.warp import warp
from arr_stream.texture.array import LazyPlane, Plane, Texture
from arr_stream.texture.layout import CHANNEL_INDEX, EMBEDDING
from arr_stream.texture.visual import eccentricity
from arr_stream.types import Grid

if TYPE_CHECKING:
    from arr_stream.gpu.memory import OnDevice

__all__ = ["Remembered", "assemble", "boundaries", "centroid_distance", "cluster_size", "dense_into", "pyramid"]

_BYTE = 1 / 255


class Remembered(Protocol):
    """What a texture takes from the frames before."""

    @property
    def history(self) -> Tensor:
        """`[6, H/8, W/8]` float32 in [0, 1], channels 34 to 39; never written to in place."""
        ...

    @property
    def on_device(self) -> OnDevice:
        """Parts of keyframes in use, with the ways back to them."""
        ...


def assemble(pictures: DevicePictures, visual: DeviceVisual, motion: Tensor, memory: Remembered) -> Texture:
    """The 40 channels of a frame, every plane on the pictures' device.

    Channels that nothing has asked for yet (clusters and what follows from them, text, embedding) are carried or
    derived when they are first read.

    Args:
        pictures, visual: Of the present frame.
        motion: `[H/8, W/8]` float32 in [0, 1], channel 10.
        memory: History and keyframe parts; only what it holds now is read.
    """
    grid, device, parts = pictures.grid, pictures.device, memory.on_device
    labels = _once(_carrying_labels(parts, grid, device))
    planes: dict[int, Plane | LazyPlane] = {
        0: Plane(0, pictures.full, _BYTE),
        **_position_planes(grid.texture_wh, device),
        6: Plane(6, visual.fine),
        9: Plane(9, torch.stack([visual.low_pass, motion, visual.saliency])),
        12: _plane("edge_distance", visual.edge_distance),
        13: lambda: _plane("cluster", labels()),
        14: lambda: _plane("centroid_distance", centroid_distance(labels())),
        15: lambda: _plane("cluster_size", cluster_size(labels())),
        16: _text_plane(parts, grid, device),
        17: lambda: _plane("boundary", boundaries(labels())),
        EMBEDDING.start: _embedding_plane(parts, grid, device),
        EMBEDDING.stop: Plane(EMBEDDING.stop, memory.history),
    }
    return Texture(grid.texture_wh, planes)


def _plane(name: str, data: Tensor) -> Plane:
    return Plane(CHANNEL_INDEX[name], data[None])


@lru_cache(maxsize=8)
def _position_planes(texture_wh: tuple[int, int], device: torch.device) -> dict[int, Plane]:
    """Channels 3 to 5: made once a size. A row and a column are enough for x and y."""
    width, height = texture_wh
    x = (torch.arange(width, device=device) + 0.5) / width
    y = (torch.arange(height, device=device) + 0.5) / height
    centre = torch.from_numpy(eccentricity((width // 4, height // 4))).to(device)
    return {3: _plane("x", x[None]), 4: _plane("y", y[:, None]), 5: _plane("eccentricity", centre)}


def _reduced_hw(grid: Grid, factor: int) -> tuple[int, int]:
    width, height = grid.texture_wh
    return height // factor, width // factor


def _once(make: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """The same, made at the first call only."""
    return lru_cache(maxsize=1)(make)


def _carrying_labels(parts: OnDevice, grid: Grid, device: torch.device) -> Callable[[], Tensor]:
    """Gives `[h, w]` int32 cluster ids on this frame when called; one region before the first keyframe."""
    labels, trail = parts.labels, parts.clusters_trail
    if labels is None or trail is None:
        return lambda: torch.zeros(_reduced_hw(grid, 4), dtype=torch.int32, device=device)
    return lambda: warp(labels, trail.flow(), nearest=True)


def _text_plane(parts: OnDevice, grid: Grid, device: torch.device) -> Plane | LazyPlane:
    text, trail = parts.text, parts.text_trail
    if text is None or trail is None:
        return _plane("text", torch.zeros(_reduced_hw(grid, 4), device=device))
    return lambda: _plane("text", warp(text, trail.flow(), outside=0.0))


def _embedding_plane(parts: OnDevice, grid: Grid, device: torch.device) -> Plane | LazyPlane:
    channels, trail = parts.embedding, parts.embedding_trail
    if channels is None or trail is None:
        dimensions = EMBEDDING.stop - EMBEDDING.start
        return Plane(EMBEDDING.start, torch.zeros(dimensions, grid.rows * 2, grid.columns * 2, device=device))
    return lambda: Plane(EMBEDDING.start, warp(channels, trail.flow()))


def centroid_distance(labels: Tensor) -> Tensor:
    """`[h, w]`: distance of each place from its region's centroid, over the diagonal.

    Args:
        labels: `[h, w]` int32 ids, each below `h * w`; not necessarily without gaps.
    """
    height, width = labels.shape
    flat, places = labels.reshape(-1).long(), _places((height, width), labels.device)
    sums = places.new_zeros(places.shape).index_add_(1, flat, places)
    mean = sums[:2] / sums[2].clamp(min=1)
    off = places[:2] - mean.index_select(1, flat)
    distance: Tensor = torch.linalg.vector_norm(off, dim=0)
    return (distance / math.hypot(height, width)).view(height, width)


def cluster_size(labels: Tensor) -> Tensor:
    """`[h, w]`: share of the frame that each place's region covers."""
    flat = labels.reshape(-1).long()
    sizes = torch.zeros_like(flat).index_add_(0, flat, torch.ones_like(flat))
    return (sizes[flat].float() / flat.numel()).view(labels.shape)


def boundaries(labels: Tensor) -> Tensor:
    """`[h, w]`: 1 where a neighbour to the right or below belongs to another region."""
    edge = torch.zeros(labels.shape, device=labels.device)
    edge[:, :-1] = labels[:, :-1] != labels[:, 1:]
    edge[:-1] = torch.maximum(edge[:-1], (labels[:-1] != labels[1:]).float())
    return edge


@lru_cache(maxsize=16)
def _places(hw: tuple[int, int], device: torch.device) -> Tensor:
    """`[3, h * w]` int64: column, row and 1. Whole numbers add up to the same in any order."""
    row, column = torch.meshgrid(*(torch.arange(size) for size in hw), indexing="ij")
    return torch.stack([column.reshape(-1), row.reshape(-1), torch.ones_like(row).reshape(-1)]).to(device)
