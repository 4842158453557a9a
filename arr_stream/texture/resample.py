"""Resampling of a plane to another resolution by separable linear operators, which are cached by size.

A plane of `n` samples along a side is brought to `size` texture pixels by linear interpolation between sample centres
(edges replicated), and to a mip level by averaging blocks of `2**level` of those pixels. Both steps are linear, so one
small matrix per side combines them, and no full-size picture is needed. Ids are taken from the nearest sample instead.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from arr_stream.texture import cells


@lru_cache(maxsize=256)
def linear_taps(samples: int, size: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Return, per pixel of `size`, the left sample, the right sample and the weight of the right one, each `[size]`."""
    left, right, weight = (torch.from_numpy(each).to(device) for each in cells.linear_taps(samples, size))
    return left, right, weight.float()


@lru_cache(maxsize=256)
def linear_matrix(samples: int, size: int, level: int, device: torch.device) -> Tensor:
    """Return `[size >> level, samples]`: interpolation to `size` pixels, then the mean of each block of `2**level`."""
    left, right, weight = linear_taps(samples, size, torch.device("cpu"))
    dense = torch.zeros(size, samples)
    rows = torch.arange(size)
    dense[rows, left] += 1 - weight
    dense[rows, right] += weight
    return dense.view(size >> level, 1 << level, samples).mean(dim=1).to(device)


@lru_cache(maxsize=256)
def nearest_index(samples: int, size: int, level: int, device: torch.device) -> Tensor:
    """Return `[size >> level]`: the sample nearest to the centre of each pixel of a mip level."""
    return torch.from_numpy(cells.nearest_samples(samples, size, 1 << level)).to(device)


def reduced(data: Tensor, texture_wh: tuple[int, int], level: int) -> Tensor:
    """Reduce `[C, rows, columns]` of any resolution to a mip level, `[C, H >> level, W >> level]` float32."""
    width, height = texture_wh
    # Sums of bytes are exact in any order; sums of other values would depend on their memory layout.
    rows = _block_means(data, height, level) if data.dtype == torch.uint8 else None
    if rows is None:
        rows = linear_matrix(data.shape[1], height, level, data.device) @ data.to(torch.float32)
    return rows @ linear_matrix(data.shape[2], width, level, data.device).T


def _block_means(data: Tensor, height: int, level: int) -> Tensor | None:
    """Apply `linear_matrix` to the rows of `[C, rows, columns]` bytes, several times as fast on large planes.

    Interpolated pixels lie between sample centres. So the mean of a block of whole samples is the mean of those, except
    that the outermost two are mixed with their neighbours in the next blocks.

    Returns:
        The block means; None if blocks are not made of whole samples, or samples not of whole pixels.
    """
    channels, samples, columns = data.shape
    blocks = height >> level
    each = samples // blocks
    if height % samples or samples % blocks or each < 2 or blocks < 2:
        return None
    parts = data.reshape(channels, blocks, each, columns)
    # Bytes are summed directly: converting them to float first would take longer than the sums.
    means = parts.sum(dim=2, dtype=torch.int32).mul(1 / each)
    first, last = (parts[:, :, place].to(torch.float32) for place in (0, each - 1))
    drawn = (last[:, :-1] - first[:, 1:]).mul_(_drawn_weight(samples, height, level))
    means[:, 1:] += drawn
    means[:, :-1] -= drawn
    return means


@lru_cache(maxsize=256)
def _drawn_weight(samples: int, size: int, level: int) -> float:
    """Return the weight, in the mean of the first block, of the nearest sample of the second."""
    return float(linear_matrix(samples, size, level, torch.device("cpu"))[0, samples // (size >> level)])
