"""Means over cells on the host, equal to a plane's mip at `CELL_LEVEL`.

The mean of an interpolated plane over a cell is a weighted sum of the cell's samples, with other weights at its border.
So the means of all cells are one matrix product from the left and one from the right. For bytes with a whole number of
samples a cell, summing rows replaces the first product, in half the time.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from arr_stream.types import CELL_PX, FloatArray

Doubles = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]


def cell_means(planes: npt.NDArray[np.uint8] | FloatArray, texture_wh: tuple[int, int]) -> FloatArray:
    """Return `[C, gh, gw]`: means over cells of planes `[C, h, w]` of any resolution, interpolated between samples."""
    (_, height, width), (texture_w, texture_h) = planes.shape, texture_wh
    cells = texture_h // CELL_PX
    rows: FloatArray
    if planes.dtype == np.uint8 and texture_h % (2 * height) == 0 and height % cells == 0:
        rows = _row_means(planes.view(np.uint8), cells)
    else:
        rows = _shares(height, texture_h) @ planes.astype(np.float32, copy=False)
    means: FloatArray = rows @ _shares(width, texture_w).T
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
def _shares(samples: int, size: int) -> FloatArray:
    """Return `[size / CELL_PX, samples]`: the weight of each sample along a side in the mean of each cell."""
    left, right, weight = linear_taps(samples, size)
    cell = np.arange(size) // CELL_PX
    shares = np.zeros((size // CELL_PX, samples))
    np.add.at(shares, (cell, left), (1 - weight) / CELL_PX)
    np.add.at(shares, (cell, right), weight / CELL_PX)
    return shares.astype(np.float32)


def linear_taps(samples: int, size: int) -> tuple[Indices, Indices, Doubles]:
    """Return, per pixel of `size`, the left sample, the right sample and the weight of the right one, each `[size]`."""
    position = np.clip((np.arange(size) + 0.5) * (samples / size) - 0.5, 0, samples - 1)
    left = position.astype(np.int64)
    return left, np.minimum(left + 1, samples - 1), position - left


def nearest_samples(samples: int, size: int, step: int) -> Indices:
    """Return `[size / step]`: the sample nearest to the centre of each block of `step` pixels."""
    pixel = np.arange(size // step) * step + step // 2
    return np.minimum(((pixel + 0.5) * (samples / size)).astype(np.int64), samples - 1)
