"""Channels 6 to 12 on a device: what is seen on this frame alone; `texture/visual.py` on tensors.

Filters are kornia's where it makes nothing on the host: a kernel that a filter builds on every call is a copy that
waits for the device, so Sobel's is made once a device, and so is the colour matrix.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from kornia.color import rgb_to_linear_rgb
from kornia.filters import box_blur, filter2d, get_spatial_gradient_kernel2d
from torch import Tensor

from arr_stream.gpu.distance import edge_distance
from arr_stream.gpu.pixels import halved
from arr_stream.texture.visual import DETAIL_GAIN, SALIENCY_SCALE, VisualChannels, seen_channels

_TO_XYZ = ((0.412453, 0.357580, 0.180423), (0.212671, 0.715160, 0.072169), (0.019334, 0.119193, 0.950227))
_WHITE = (0.950456, 1.0, 1.088754)
_TO_LAB = ((0.0, 116.0, 0.0), (500.0, -500.0, 0.0), (0.0, 200.0, -200.0))
_LINEAR_BELOW = 0.008856

_BYTE = 1 / 255


@seen_channels.register(Tensor)
def device_channels(grey: Tensor, quarter_grey: Tensor, eighth_grey: Tensor, eighth: Tensor) -> VisualChannels:
    """As on the host; `fine` is float32 in [0, 1]."""
    edges = polar_edges(quarter_grey)
    halves = grey[None]
    detail = halved((halves - _rounded_blur(halves, 7)).abs_()).mul_(DETAIL_GAIN)
    fine = torch.cat([edges, detail.clamp_(max=255)]).mul_(_BYTE)
    low_pass = _rounded_blur(eighth_grey[None], 5)[0].mul_(_BYTE)
    return VisualChannels(fine, low_pass, saliency(lab_bytes(eighth)), edge_distance(edges.amax(dim=0)))


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


def lab_bytes(rgb: Tensor) -> Tensor:
    """CIE Lab as OpenCV puts it into 8 bits.

    Args:
        rgb: `[3, h, w]` in [0, 255].

    Returns:
        `[3, h, w]` whole numbers in [0, 255]: L times 2.55, a and b plus 128.
    """
    scale, shift = _byte_scale(rgb.device)
    return torch.addcmul(shift, lab(rgb), scale).round_().clamp_(0, 255)


def lab(rgb: Tensor) -> Tensor:
    """CIE Lab (D65) of sRGB: `[3, h, w]` in [0, 255] to `[3, h, w]`, L in [0, 100]."""
    to_xyz, to_lab = _lab_matrices(rgb.device)
    xyz = _mixed(to_xyz, rgb_to_linear_rgb(rgb * _BYTE))
    bent = torch.where(xyz > _LINEAR_BELOW, xyz.clamp(min=_LINEAR_BELOW).pow(1 / 3), xyz * 7.787 + 16 / 116)
    mixed = _mixed(to_lab, bent)
    mixed[0] -= 16
    return mixed


def saliency(lab: Tensor) -> Tensor:
    """Difference of each place from its surroundings in lightness and colour; see `texture.visual.saliency`.

    Args:
        lab: `[3, h, w]` in [0, 255].

    Returns:
        `[h, w]` in [0, 1].
    """
    _, height, width = lab.shape
    down, across = _box_matrix(height, height // 2 | 1, lab.device), _box_matrix(width, width // 2 | 1, lab.device)
    around = (down @ lab @ across.T).round_()
    difference: Tensor = torch.linalg.vector_norm(_rounded_blur(lab, 3) - around, dim=0)
    return difference.mul_(SALIENCY_SCALE).clamp_(max=1)


def _rounded_blur(planes: Tensor, window: int) -> Tensor:
    """`[C, h, w]` means of windows, rounded to whole numbers; borders reflected, or continued where too narrow."""
    border = "reflect" if min(planes.shape[1:]) > window // 2 else "replicate"
    return box_blur(planes[None], window, border, separable=False)[0].round_()


def _mixed(matrix: Tensor, planes: Tensor) -> Tensor:
    """`[3, h, w]`: every pixel times a 3x3 matrix, in float32 whatever matrix products are allowed to round to."""
    return (matrix[:, :, None, None] * planes).sum(dim=1)


@lru_cache(maxsize=4)
def _sobel(device: torch.device) -> Tensor:
    """`[2, 3, 3]`: derivatives to the right and downwards."""
    return get_spatial_gradient_kernel2d("sobel", 1).to(device)


@lru_cache(maxsize=4)
def _lab_matrices(device: torch.device) -> tuple[Tensor, Tensor]:
    to_xyz = torch.tensor(_TO_XYZ) / torch.tensor(_WHITE)[:, None]
    return to_xyz.to(device), torch.tensor(_TO_LAB).to(device)


@lru_cache(maxsize=4)
def _byte_scale(device: torch.device) -> tuple[Tensor, Tensor]:
    """Factor and shift from Lab to 8 bits, `[3, 1, 1]` each."""
    scale, shift = torch.tensor([2.55, 1.0, 1.0]), torch.tensor([0.0, 128.0, 128.0])
    return scale.view(3, 1, 1).to(device), shift.view(3, 1, 1).to(device)


@lru_cache(maxsize=32)
def _box_matrix(size: int, window: int, device: torch.device) -> Tensor:
    """`[size, size]`: row i averages the `window` places around i, borders continued."""
    places = torch.arange(size)[:, None] + torch.arange(window) - window // 2
    matrix = torch.zeros(size, size).scatter_add_(1, places.clamp(0, size - 1), torch.ones(size, window))
    return (matrix / window).to(device)
