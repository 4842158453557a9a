"""How a plane of one resolution is read at another: separable linear operators, made once a size and kept.

A plane of `n` samples along a side is brought to `size` texture pixels by linear interpolation between sample
centres (edges replicated), and to a mip level by averaging blocks of `2**level` of those pixels. Both steps are
linear, so one small matrix per side does the two at once, and no full-size picture is ever needed. Ids are taken
from the nearest sample instead.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor


@lru_cache(maxsize=256)
def linear_taps(samples: int, size: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """For each of `size` pixels: left sample `[size]`, right sample `[size]`, weight of the right one `[size]`."""
    position = (torch.arange(size, dtype=torch.float64) + 0.5) * (samples / size) - 0.5
    position = position.clamp(0, samples - 1)
    left = position.floor().long()
    right = (left + 1).clamp(max=samples - 1)
    weight = (position - left).float()
    return left.to(device), right.to(device), weight.to(device)


@lru_cache(maxsize=256)
def linear_matrix(samples: int, size: int, level: int, device: torch.device) -> Tensor:
    """`[size >> level, samples]`: interpolation to `size` pixels, then the mean of each block of `2**level`."""
    left, right, weight = linear_taps(samples, size, torch.device("cpu"))
    dense = torch.zeros(size, samples)
    rows = torch.arange(size)
    dense[rows, left] += 1 - weight
    dense[rows, right] += weight
    return dense.view(size >> level, 1 << level, samples).mean(dim=1).to(device)


@lru_cache(maxsize=256)
def nearest_index(samples: int, size: int, level: int, device: torch.device) -> Tensor:
    """`[size >> level]`: the sample nearest to the centre of each pixel of a mip level."""
    step = 1 << level
    pixel = torch.arange(size >> level, dtype=torch.float64) * step + step // 2
    return ((pixel + 0.5) * (samples / size)).floor().long().clamp(max=samples - 1).to(device)
