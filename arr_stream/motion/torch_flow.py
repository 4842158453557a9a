"""Dense flow in plain tensor operations, on a CPU or a GPU, without weights.

From coarse to fine, each level first searches and then refines:

1. *Search.* Every pixel's signs against its four neighbours are compared with those of the previous picture, at all
   whole displacements within a radius of where the coarser level points (the census transform of Zabih and Woodfill,
   "Non-parametric local transforms for computing visual correspondence", ECCV 1994, with a soft sign). The costs are
   averaged over a window, and the displacement is their softmin's mean.
2. *Refinement.* The flow is moved towards its own local mean and the line of constant linearised brightness, by
   repeated closed-form steps (Horn and Schunck, "Determining optical flow", Artificial Intelligence 1981) under a
   robust weight; a median of 3x3 between keeps borders (Sun, Roth and Black, "Secrets of optical flow estimation and
   their principles", CVPR 2010).

Nothing here waits for the device: no value is read back and no shape depends on one, so that a CUDA graph can hold it
all. With `torch.compile` nearly every step between two convolutions or pools becomes one kernel.
"""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

MOST_PIXELS = 70_000
"""Pictures are halved until they have no more than this; the flow is found on that raster."""
RADIUS_PX, COARSE_RADIUS_PX = 1, 4
"""Search radius on a level, and on the coarsest."""
ROUNDS = 4
"""Smoothing steps on a level."""
_LEAST_SIDE_PX = 12  # of the coarsest level
SOFT_SIGN = 5.0  # grey levels of 256
WINDOW_PX = 5
SHARPNESS = 60.0  # of the softmin; a cost of 2 is every sign reversed
DISTANCE_COST = 0.005  # a pixel, so that flow in flat areas stays zero
SMOOTHNESS = 30.0
SMOOTH_WINDOW_PX = 5
ROBUST_SQUARED = 4.0  # grey levels of 256


def flow_px(previous: Tensor, present: Tensor, hw: tuple[int, int] | None = None) -> Tensor:
    """Return the backward flow `[h, w, 2]` from the present picture to the previous one, in pixels of its raster.

    Args:
        previous, present: `[h, w]` float32 lightness in [0, 255], of one size, on one device.
        hw: Raster of the result; None for the pictures' own.
    """
    levels = pyramid(torch.stack([previous, present])[:, None])
    coarsest = levels[-1]
    flow = coarsest.new_zeros((1, 2, *coarsest.shape[2:]))
    for level in reversed(levels):
        flow = resize_flow(flow, _sides(level))
        radius_px = COARSE_RADIUS_PX if level is coarsest else RADIUS_PX
        flow = flow + _searched(level, flow, radius_px)
        flow = median3(_refined(level, flow))
    return resize_flow(flow, hw or (present.shape[0], present.shape[1]))[0].permute(1, 2, 0).contiguous()


def resize_flow(flow: Tensor, hw: tuple[int, int]) -> Tensor:
    """Resize offsets to `[1, 2, h, w]`, in pixels of the new raster."""
    sides = _sides(flow)
    if sides == hw:
        return flow
    return F.interpolate(flow, hw, mode="bilinear", align_corners=False) * _growth(sides, hw, flow.device)


def median3(planes: Tensor) -> Tensor:
    """Filter `[n, C, h, w]` with a 3x3 median, borders continued.

    Columns are sorted first; the median of nine is then that of the largest minimum, the middle median and the
    smallest maximum.
    """
    padded = F.pad(planes, (1, 1, 1, 1), mode="replicate")
    above, middle, below = padded[..., :-2, :], padded[..., 1:-1, :], padded[..., 2:, :]
    low, high = torch.minimum(above, middle), torch.maximum(above, middle)
    least, most = torch.minimum(low, below), torch.maximum(high, below)
    median = torch.minimum(high, torch.maximum(low, below))
    left, centre, right = slice(None, -2), slice(1, -1), slice(2, None)
    least = torch.maximum(torch.maximum(least[..., left], least[..., centre]), least[..., right])
    most = torch.minimum(torch.minimum(most[..., left], most[..., centre]), most[..., right])
    return _median_of(least, _median_of(median[..., left], median[..., centre], median[..., right]), most)


def _median_of(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return torch.maximum(torch.minimum(a, b), torch.minimum(torch.maximum(a, b), c))


def pyramid(pictures: Tensor) -> list[Tensor]:
    """Return pictures `[2, 1, h, w]` from the finest level that is searched to the coarsest."""
    while pictures.shape[2] * pictures.shape[3] > MOST_PIXELS and min(_sides(pictures)) >= 2 * _LEAST_SIDE_PX:
        pictures = _halved(pictures)
    levels = [pictures]
    while min(_sides(levels[-1])) >= 2 * _LEAST_SIDE_PX:
        levels.append(_halved(levels[-1]))
    return levels


def _halved(pictures: Tensor) -> Tensor:
    height, width = _sides(pictures)
    # A side that is no multiple keeps its proportions, so that flow scales with the rasters.
    return area_means(pictures, (height // 2, width // 2))


def area_means(planes: Tensor, hw: tuple[int, int]) -> Tensor:
    """Average `[n, C, h, w]` down to a raster of `(h, w)`."""
    height, width = _sides(planes)
    down, across = height // hw[0], width // hw[1]
    if (hw[0] * down, hw[1] * across) == (height, width):
        # The same means; a GPU finds those of windows of one size several times sooner.
        return F.avg_pool2d(planes, (down, across))
    return F.adaptive_avg_pool2d(planes, hw)


def _searched(level: Tensor, flow: Tensor, radius_px: int) -> Tensor:
    """Return an update `[1, 2, h, w]` of a flow: the softmin of whole displacements within the radius."""
    signs = torch.tanh(F.conv2d(_padded(level, 1), _neighbour_kernels(level.device)))
    there = _padded(_sampled(signs[:1], flow), radius_px)[0]
    height, width = _sides(level)
    windows = there.unfold(1, height, 1).unfold(2, width, 1)
    differences = (windows - signs[1][:, None, None]).abs_().sum(0).flatten(0, 1)
    cost = _mean(differences, WINDOW_PX)
    steps, logits = _displacements(radius_px, level.device)
    likely = torch.softmax(logits - SHARPNESS / signs.shape[1] * cost, dim=0)
    return (steps @ likely.flatten(1)).view(1, 2, height, width)


def _refined(level: Tensor, flow: Tensor) -> Tensor:
    """Refine a flow `[1, 2, h, w]` towards constant brightness and smoothness.

    With m the local mean, g the gradient, w the robust weight and s smoothness, each step minimises
    `s |f - m|^2 + w (g . f - c)^2` pixel by pixel: `f = m - g w (g . m - c) / (s + w |g|^2)`.
    """
    warped, present = _sampled(level[:1], flow), level[1:]
    gradient = F.conv2d(_padded((warped + present) / 2, 1), _gradient_kernels(level.device))
    change = warped - present
    weight = torch.rsqrt(change * change + ROBUST_SQUARED)
    constant = (gradient * flow).sum(1, keepdim=True) - change
    pull = gradient / (-SMOOTHNESS / weight - (gradient * gradient).sum(1, keepdim=True))
    for _ in range(ROUNDS):
        mean = _mean(flow, SMOOTH_WINDOW_PX)
        flow = torch.addcmul(mean, pull, (gradient * mean).sum(1, keepdim=True) - constant)
    return flow


def _sampled(planes: Tensor, flow: Tensor) -> Tensor:
    """Sample planes `[1, C, h, w]` along a flow of the same raster, linearly, borders continued."""
    base, scale = _normalised_grid(_sides(flow), flow.device)
    return F.grid_sample(planes, torch.addcmul(base, flow, scale).permute(0, 2, 3, 1), "bilinear", "border", False)


def _mean(planes: Tensor, side_px: int) -> Tensor:
    """Return the mean of a window; at the border, of the part inside."""
    return F.avg_pool2d(planes, side_px, stride=1, padding=side_px // 2, count_include_pad=False)


def _padded(planes: Tensor, by_px: int) -> Tensor:
    return F.pad(planes, (by_px, by_px, by_px, by_px), mode="replicate")


def _sides(planes: Tensor) -> tuple[int, int]:
    return planes.shape[2], planes.shape[3]


@cache
def _normalised_grid(hw: tuple[int, int], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return pixel positions `[1, 2, h, w]` in the coordinates of `grid_sample`, and the size of a pixel in them."""
    across, down = ((torch.arange(side, device=device) * 2 + 1) / side - 1 for side in (hw[1], hw[0]))
    base = torch.stack(torch.meshgrid(across, down, indexing="xy"))[None]
    return base, torch.tensor([2 / hw[1], 2 / hw[0]], device=device)[:, None, None]


@cache
def _growth(hw: tuple[int, int], to_hw: tuple[int, int], device: torch.device) -> Tensor:
    return torch.tensor([to_hw[1] / hw[1], to_hw[0] / hw[0]], dtype=torch.float32, device=device)[:, None, None]


@cache
def _displacements(radius_px: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return displacements `[2, n]` `(dx, dy)` within a radius, row by row, and their distance logits `[n, 1, 1]`."""
    reach = torch.arange(-radius_px, radius_px + 1, dtype=torch.float32, device=device)
    dy, dx = torch.meshgrid(reach, reach, indexing="ij")
    steps = torch.stack([dx.reshape(-1), dy.reshape(-1)])
    return steps, (-SHARPNESS * DISTANCE_COST * steps.norm(dim=0))[:, None, None]


@cache
def _neighbour_kernels(device: torch.device) -> Tensor:
    """Return `[4, 1, 3, 3]`: neighbours above, left, right and below, minus the middle, in units of the soft sign."""
    kernels = torch.eye(9)[[1, 3, 5, 7]]
    kernels[:, 4] = -1
    return (kernels / SOFT_SIGN).reshape(4, 1, 3, 3).to(device)


@cache
def _gradient_kernels(device: torch.device) -> Tensor:
    """Return `[2, 1, 3, 3]`: central differences across and down."""
    across = torch.zeros(3, 3)
    across[1, 0], across[1, 2] = -0.5, 0.5
    return torch.stack([across, across.T])[:, None].to(device)
