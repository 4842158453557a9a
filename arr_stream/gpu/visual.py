"""Channels 6 to 12 on a device: what is seen on this frame alone; `texture/visual.py` on tensors.

Filters are kornia's where it makes nothing on the host: a kernel that a filter builds on every call is a copy that
waits for the device, so Sobel's is made once a device.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from kornia.filters import box_blur, filter2d, get_spatial_gradient_kernel2d
from torch import Tensor

from arr_stream.gpu.distance import edge_distance
from arr_stream.gpu.pixels import halved
from arr_stream.texture.visual import DETAIL_GAIN, VisualChannels, saliency, seen_channels

_BYTE = 1 / 255


@seen_channels.register(Tensor)
def device_channels(grey: Tensor, quarter_grey: Tensor, eighth_grey: Tensor, eighth: Tensor) -> VisualChannels:
    """As on the host; `fine` is float32 in [0, 1]."""
    edges = polar_edges(quarter_grey)
    halves = grey[None]
    detail = halved((halves - _rounded_blur(halves, 7)).abs_()).mul_(DETAIL_GAIN)
    fine = torch.cat([edges, detail.clamp_(max=255)]).mul_(_BYTE)
    low_pass = _rounded_blur(eighth_grey[None], 5)[0].mul_(_BYTE)
    return VisualChannels(fine, low_pass, saliency(eighth, fine[2]), edge_distance(edges.amax(dim=0)))


def polar_edges(grey: Tensor) -> Tensor:
    """The two polarities of the Sobel response.

    Args:
        grey: `[h, w]` in [0, 255].

    Returns:
        `[2, h, w]` whole numbers in [0, 255]: rising as far as lightness grows to the right or downwards, falling as
        far as it shrinks; a step of half the range gives full strength.
    """
    gradient = filter2d(grey.expand(2, 1, *grey.shape), _sobel(grey.device), "reflect")[:, 0]
    signed = torch.stack([gradient.amax(dim=0), -gradient.amin(dim=0)])
    return signed.mul_(0.5).round_().clamp_(0, 255)


def _rounded_blur(planes: Tensor, window: int) -> Tensor:
    """`[C, h, w]` means of windows, rounded to whole numbers; borders reflected, or continued where too narrow."""
    border = "reflect" if min(planes.shape[1:]) > window // 2 else "replicate"
    return box_blur(planes[None], window, border, separable=False)[0].round_()


@lru_cache(maxsize=4)
def _sobel(device: torch.device) -> Tensor:
    """`[2, 3, 3]`: derivatives to the right and downwards."""
    return get_spatial_gradient_kernel2d("sobel", 1).to(device)
