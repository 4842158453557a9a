"""The few reduced pictures of a frame, made on the device; `texture/pictures.py` on tensors.

A frame goes to the device once, as it was decoded. Every reduced picture holds whole numbers from 0 to 255, rounded as
OpenCV rounds 8-bit pictures, so that what a threshold decides further on (edges) falls out the same on both paths.
"""

from __future__ import annotations

import math
from functools import cached_property, lru_cache

import torch
from torch import Tensor
from torch.nn import functional

from arr_stream.types import Grid

LUMA = (9798 / 32768, 19235 / 32768, 3735 / 32768)
"""BT.601 weights in the fixed point of OpenCV; products with 8-bit values are exact in float32."""


class DevicePictures:
    """A frame at full, half, quarter and an eighth of the texture's size, each made once, when first needed.

    Args:
        rgb: `[H, W, 3]` uint8 on the device, upright, at the source's size.
        grid: Its grid; `grid.texture_wh` fixes the sizes.

    Raises:
        ValueError: `rgb` has another shape or dtype.
    """

    def __init__(self, rgb: Tensor, grid: Grid) -> None:
        if rgb.dim() != 3 or rgb.shape[2] != 3 or rgb.dtype != torch.uint8:
            raise ValueError(f"rgb must be uint8 [H, W, 3], got {rgb.dtype} {list(rgb.shape)}")
        self.rgb = rgb
        self.grid = grid

    @property
    def device(self) -> torch.device:
        return self.rgb.device

    @cached_property
    def full(self) -> Tensor:
        """`[3, H, W]` uint8: a view of the frame itself, or brought to the texture's size where that is smaller."""
        width, height = self.grid.texture_wh
        source_h, source_w = self.rgb.shape[:2]
        planes = self.rgb.permute(2, 0, 1)
        if source_w > width * 1.05 and source_h > height * 1.05:
            return resized(planes, (width, height)).to(torch.uint8)
        return planes

    @cached_property
    def half(self) -> Tensor:
        """`[3, H/2, W/2]` float32 RGB, whole numbers in [0, 255]."""
        return resized(self.full, self.reduced_wh(2))

    @cached_property
    def grey(self) -> Tensor:
        """`[H/2, W/2]` float32 lightness (BT.601 luma), whole numbers in [0, 255]."""
        red, green, blue = self.half
        mixed: Tensor = red * LUMA[0]
        return mixed.add_(green, alpha=LUMA[1]).add_(blue, alpha=LUMA[2]).add_(0.5).floor_()

    @cached_property
    def quarter(self) -> Tensor:
        """`[3, H/4, W/4]` float32 RGB, whole numbers in [0, 255]."""
        return halved(self.half)

    @cached_property
    def quarter_grey(self) -> Tensor:
        """`[H/4, W/4]` lightness."""
        return halved(self.grey[None])[0]

    @cached_property
    def eighth(self) -> Tensor:
        """`[3, H/8, W/8]` RGB."""
        return halved(self.quarter)

    @cached_property
    def eighth_grey(self) -> Tensor:
        """`[H/8, W/8]` lightness."""
        return halved(self.quarter_grey[None])[0]

    def reduced_wh(self, factor: int) -> tuple[int, int]:
        """Size of the texture divided by `factor`."""
        width, height = self.grid.texture_wh
        return width // factor, height // factor


def halved(planes: Tensor) -> Tensor:
    """`[C, h, w]` to `[C, h / 2, w / 2]`: means of 2x2, rounded half up; both sides are even."""
    return functional.avg_pool2d(planes, 2).add_(0.5).floor_()


def resized(planes: Tensor, size_wh: tuple[int, int]) -> Tensor:
    """Planes of another size, rounded to whole numbers, by the rule of the CPU path.

    Area means where a side shrinks by exactly two or by large factors, linear interpolation otherwise.

    Args:
        planes: `[C, h, w]` of numbers in [0, 255], any dtype and strides.
        size_wh: Width and height wanted.

    Returns:
        `[C, H, W]` contiguous float32, whole numbers in [0, 255].
    """
    height, width = planes.shape[1:]
    across, down = width / size_wh[0], height / size_wh[1]
    values = planes.to(torch.float32, memory_format=torch.contiguous_format)
    if across == down == 1.0:
        return values
    if across == down == 2.0:
        return halved(values)
    if max(across, down) > 2.2:
        return _area(values, size_wh).round_()
    linear = functional.interpolate(values[None], (size_wh[1], size_wh[0]), mode="bilinear", align_corners=False)[0]
    return linear.add_(0.5).floor_()


def _area(planes: Tensor, size_wh: tuple[int, int]) -> Tensor:
    """Mean of exactly what each pixel covers, parts of pixels by their share."""
    return _along(_along(planes, 2, size_wh[0]), 1, size_wh[1])


def _along(planes: Tensor, axis: int, size: int) -> Tensor:
    index, weight = _area_taps(planes.shape[axis], size, planes.device)
    shape = (-1, 1) if axis == 1 else (-1,)
    total = planes.index_select(axis, index[0]).mul_(weight[0].view(shape))
    for tap in range(1, len(index)):
        total.addcmul_(planes.index_select(axis, index[tap]), weight[tap].view(shape))
    return total


@lru_cache(maxsize=64)
def _area_taps(samples: int, size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """For each of `size` pixels the samples that it covers, `[taps, size]`, and the share of each, summing to 1."""
    scale = samples / size
    start = torch.arange(size, dtype=torch.float64) * scale
    first = start.floor()
    taps = torch.arange(math.ceil(scale) + 1, dtype=torch.float64)[:, None] + first
    covered = (torch.minimum(taps + 1, start + scale) - torch.maximum(taps, start)).clamp(min=0)
    covered[taps >= samples] = 0
    weight = (covered / covered.sum(dim=0)).float()
    return taps.long().clamp(max=samples - 1).to(device), weight.to(device)
