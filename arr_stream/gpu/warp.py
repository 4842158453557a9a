"""Bring what was known about an earlier frame to the present one; `motion/carry.py` on a device."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from arr_stream.gpu.flow import DeviceFlow


def warp(values: Tensor, flow: DeviceFlow, *, nearest: bool = False, outside: float | None = None) -> Tensor:
    """Sample planes of the earlier frame at where the present frame's content was.

    Args:
        values: `[C, h, w]` or `[h, w]` on any raster; float32, or any dtype with `nearest`.
        flow: Backward flow from the present frame to the planes'.
        nearest: Take the nearest sample instead of the linear blend of four; needed for ids.
        outside: Value of what came from outside the earlier frame; None continues the border.

    Returns:
        A new tensor of the values' shape and dtype.

    Raises:
        ValueError: Not float32 without `nearest` (a blend of two ids is a third id), or another number of axes.
    """
    if values.dim() not in (2, 3) or values.numel() == 0:
        raise ValueError(f"planes are [h, w] or [C, h, w] and not empty, got {list(values.shape)}")
    if values.dtype != torch.float32 and not nearest:
        raise ValueError(f"planes are float32; {values.dtype} holds ids and needs nearest=True")
    planes = values if values.dim() == 3 else values[None]
    map_px = source_map(resize_offsets(flow.offset_px, (planes.shape[1], planes.shape[2])))
    carried = sample_nearest(planes, map_px) if nearest else sample(planes, map_px)
    if outside is not None:
        left_out = torch.full((), outside, dtype=values.dtype, device=values.device)
        carried = torch.where(inside(map_px), carried, left_out)
    return carried.reshape(values.shape)


def compose(older: DeviceFlow, newer: DeviceFlow) -> DeviceFlow:
    """One flow over two: present -> t-1 by `newer`, then t-1 -> k by `older`; see `motion.carry.compose`."""
    older = older.resized(newer.hw)
    first_map = source_map(newer.offset_px)
    planes = torch.cat([older.offset_px.permute(2, 0, 1), older.confidence[None]])
    brought = sample(planes, first_map)
    offset_px = brought[:2].permute(1, 2, 0) + newer.offset_px
    within = inside(first_map) & inside(source_map(offset_px))
    # A blend of four values can exceed 1 by a rounding.
    confidence = torch.where(within, (brought[2] * newer.confidence).clamp(max=1.0), 0.0)
    span_frames = older.span_frames + newer.span_frames
    return replace(newer, offset_px=offset_px, confidence=confidence, span_frames=span_frames)


def resize_offsets(offset_px: Tensor, hw: tuple[int, int]) -> Tensor:
    """`[h, w, 2]` offsets on a raster of `(h, w)`, in its pixels."""
    height, width = offset_px.shape[:2]
    if hw == (height, width):
        return offset_px
    resized = F.interpolate(offset_px.permute(2, 0, 1)[None], hw, mode="bilinear", align_corners=False)[0]
    return resized.permute(1, 2, 0) * _growth((height, width), hw, offset_px.device)


@lru_cache(maxsize=32)
def base_grid(hw: tuple[int, int], device: torch.device) -> Tensor:
    """`[h, w, 2]` `(x, y)` of every pixel of a raster; shared by all flows of that size, not to be written to."""
    y, x = torch.meshgrid(
        torch.arange(hw[0], dtype=torch.float32, device=device),
        torch.arange(hw[1], dtype=torch.float32, device=device),
        indexing="ij",
    )
    return torch.stack([x, y], dim=2)


def source_map(offset_px: Tensor) -> Tensor:
    """`[h, w, 2]` absolute `(x, y)` that each place is sampled from."""
    return base_grid((offset_px.shape[0], offset_px.shape[1]), offset_px.device) + offset_px


def inside(map_px: Tensor) -> Tensor:
    """`[h, w]` bool: the place comes from within the picture (its outermost pixels to their outer rims)."""
    height, width = map_px.shape[:2]
    x, y = map_px.unbind(2)
    return (x >= -0.5) & (x <= width - 0.5) & (y >= -0.5) & (y <= height - 0.5)


def sample(planes: Tensor, map_px: Tensor) -> Tensor:
    """`[C, h, w]` float32 planes at `[h', w', 2]` positions, linearly, borders continued."""
    return F.grid_sample(planes[None], normalised(map_px, planes.shape[1:])[None], "bilinear", "border", False)[0]


def sample_nearest(planes: Tensor, map_px: Tensor) -> Tensor:
    """`[C, h, w]` planes of any dtype at the pixels nearest to `[h', w', 2]` positions, borders continued."""
    height, width = planes.shape[1:]
    x, y = map_px.round().to(torch.int64).unbind(2)
    index = y.clamp(0, height - 1) * width + x.clamp(0, width - 1)
    return planes.flatten(1)[:, index]


def normalised(map_px: Tensor, hw: tuple[int, ...]) -> Tensor:
    """Pixel positions `(x, y)` as `grid_sample` takes them; exact for a side of one pixel too."""
    scale, shift = _normaliser((hw[0], hw[1]), map_px.device)
    return torch.addcmul(shift, map_px, scale)


@lru_cache(maxsize=32)
def _normaliser(hw: tuple[int, int], device: torch.device) -> tuple[Tensor, Tensor]:
    size_wh = torch.tensor([hw[1], hw[0]], dtype=torch.float32, device=device)
    return 2 / size_wh, 1 / size_wh - 1


@lru_cache(maxsize=32)
def _growth(hw: tuple[int, int], to_hw: tuple[int, int], device: torch.device) -> Tensor:
    return torch.tensor([to_hw[1] / hw[1], to_hw[0] / hw[0]], dtype=torch.float32, device=device)
