"""Visual channels of a frame on a device: `texture/visual.py` on tensors.

Sobel's kernel is made once a device: a kernel that a filter builds on every call is a copy that waits for the device.
"""

from __future__ import annotations

import math
from functools import cache

import torch
from kornia.filters import filter2d, get_spatial_gradient_kernel2d
from torch import Tensor
from torch.nn import functional

from arr_stream.gpu.pixels import halved, rounded_means
from arr_stream.texture import visual
from arr_stream.texture.visual import DETAIL_GAIN, EDGE_THRESHOLD

_NOWHERE = 1e6
"""Coordinate of a missing edge; farther than any diagonal, and its square is still exact enough."""
_TRIALS = 1 << 24
"""Distances computed at a time: 64 MiB of temporary memory."""


@visual.high_pass.register(Tensor)
def high_pass(grey: Tensor) -> Tensor:
    halves = grey[None]
    detail = halved((halves - rounded_means(halves, 7)).abs_())[0]
    return detail.mul_(DETAIL_GAIN).clamp_(max=255)


@visual.polar_edges.register(Tensor)
def polar_edges(grey: Tensor) -> Tensor:
    gradient = filter2d(grey.expand(2, 1, *grey.shape), _sobel(grey.device), "reflect")[:, 0]
    signed = torch.stack([gradient.amax(dim=0), -gradient.amin(dim=0)])
    return signed.mul_(0.5).round_().clamp_(0, 255)


@visual.low_pass.register(Tensor)
def low_pass(grey: Tensor) -> Tensor:
    return rounded_means(grey[None], 5)[0]


@visual.edge_distance.register(Tensor)
def edge_distance(edges: Tensor) -> Tensor:
    """Return the Euclidean distance; the CPU's 3x3 chamfer distance differs by up to 5%."""
    spread = functional.max_pool2d(edges.amax(dim=0)[None], 3, stride=2, padding=1)[0]
    distance = nearest_distance(spread > EDGE_THRESHOLD)
    return distance.mul_(255 / math.hypot(*distance.shape)).clamp_(max=255)


def nearest_distance(edges: Tensor) -> Tensor:
    """Return the Euclidean distance from the centre of each place to that of the nearest edge.

    In two passes (columns, then rows; Felzenszwalb and Huttenlocher, "Distance transforms of sampled functions", 2012)
    that try every place of a line.

    Args:
        edges: `[h, w]` bool.

    Returns:
        `[h, w]` float32 in pixels, 0 on edges; beyond any diagonal where there are none.
    """
    squared = torch.where(edges, 0.0, _NOWHERE**2)
    return _nearest_along(_nearest_along(squared.T).T).sqrt_()


def _nearest_along(squared: Tensor) -> Tensor:
    """Extend squared distances `[lines, n]` to edges at the same place to edges at any place of the line."""
    length = squared.shape[1]
    place = torch.arange(length, device=squared.device, dtype=torch.float32)
    ways = (place[:, None] - place) ** 2
    some = max(1, _TRIALS // (length * length))
    return torch.cat([(part[:, None] + ways).amin(dim=2) for part in torch.split(squared, some)])


@cache
def _sobel(device: torch.device) -> Tensor:
    """Return `[2, 3, 3]`: derivatives to the right and downwards."""
    return get_spatial_gradient_kernel2d("sobel", 1).to(device)
