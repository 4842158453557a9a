"""Resampling of a plane to another resolution by separable linear operators, which are cached by size.

A plane of `n` samples along a side is brought to `size` texture pixels by linear interpolation between sample centres
(edges replicated), and to a mip level by averaging blocks of `2**level` of those pixels. Both steps are linear, so one
small matrix per side combines them, and no full-size picture is needed. Ids are taken from the nearest sample instead.
Torch is loaded only by the functions on tensors.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from arr_stream.types import CELL_PX, FloatArray

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Indices = npt.NDArray[np.int64]


def cell_means(planes: npt.NDArray[np.uint8] | FloatArray, texture_wh: tuple[int, int]) -> FloatArray:
    """Return `[C, gh, gw]`: means over cells of planes `[C, h, w]` of any resolution, interpolated between samples.

    For bytes with a whole number of samples a cell, summing rows replaces the first product, in half the time.
    """
    (_, height, width), (texture_w, texture_h) = planes.shape, texture_wh
    cells = texture_h // CELL_PX
    rows: FloatArray
    if planes.dtype == np.uint8 and texture_h % (2 * height) == 0 and height % cells == 0:
        rows = _row_means(planes.view(np.uint8), cells)
    else:
        rows = _shares(height, texture_h, CELL_PX) @ planes.astype(np.float32, copy=False)
    means: FloatArray = rows @ _shares(width, texture_w, CELL_PX).T
    return means


def _row_means(planes: npt.NDArray[np.uint8], cells: int) -> FloatArray:
    """Return `[C, cells, w]` of `[C, h, w]`, equal to the product with `_shares` if a cell has a whole number of
    samples and each covers an even number of pixels."""
    each = planes.shape[1] // cells
    sums = np.add.reduce(planes.reshape(len(planes), cells, each, -1), axis=2, dtype=np.uint16)
    # Interpolation brings an eighth of a sample across each border between cells.
    across = (planes[:, each::each].astype(np.float32) - planes[:, each - 1 : -1 : each]) / (8 * each)
    means: FloatArray = sums / np.float32(each)
    means[:, 1:] -= across
    means[:, :-1] += across
    return means


@lru_cache(maxsize=64)
def _shares(samples: int, size: int, step: int) -> FloatArray:
    """Return `[size / step, samples]`: the weight of each sample along a side in the mean of each block of pixels."""
    position = np.clip((np.arange(size) + 0.5) * (samples / size) - 0.5, 0, samples - 1)
    left = position.astype(np.int64)
    weight, block = position - left, np.arange(size) // step
    shares = np.zeros((size // step, samples))
    np.add.at(shares, (block, left), (1 - weight) / step)
    np.add.at(shares, (block, np.minimum(left + 1, samples - 1)), weight / step)
    return shares.astype(np.float32)


def nearest_samples(samples: int, size: int, step: int) -> Indices:
    """Return `[size / step]`: the sample nearest to the centre of each block of `step` pixels."""
    pixel = np.arange(size // step) * step + step // 2
    return np.minimum(((pixel + 0.5) * (samples / size)).astype(np.int64), samples - 1)


@cache
def linear_matrix(samples: int, size: int, level: int, device: torch.device) -> Tensor:
    """Return `[size >> level, samples]`: interpolation to `size` pixels, then the mean of each block of `2**level`."""
    import torch

    return torch.from_numpy(_shares(samples, size, 1 << level)).to(device)


@cache
def nearest_index(samples: int, size: int, level: int, device: torch.device) -> Tensor:
    """Return `[size >> level]`: the sample nearest to the centre of each pixel of a mip level."""
    import torch

    return torch.from_numpy(nearest_samples(samples, size, 1 << level)).to(device)


def reduced(data: Tensor, texture_wh: tuple[int, int], level: int) -> Tensor:
    """Reduce `[C, rows, columns]` of any resolution to a mip level, `[C, H >> level, W >> level]` float32."""
    width, height = texture_wh
    rows = linear_matrix(data.shape[1], height, level, data.device) @ data.float()
    return rows @ linear_matrix(data.shape[2], width, level, data.device).T
