"""Means over cells on the host: what a plane's mip at `CELL_LEVEL` holds, read from a table of its sums.

A mean over a cell of an interpolated plane weighs the samples that the cell covers, those at its rim a little
differently. The weights are even in long stretches, and the sum over a stretch is a difference of two entries of the
integral image (Crow, "Summed-area tables for texture mapping", 1984): few entries tell all means.
"""

from __future__ import annotations

from functools import lru_cache

import cv2
import numpy as np
import numpy.typing as npt

from arr_stream.types import CELL_PX, FloatArray

Doubles = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]


def cell_means(planes: npt.NDArray[np.uint8] | FloatArray, texture_wh: tuple[int, int]) -> Doubles:
    """`[C, gh, gw]`: means over the cells of planes `[C, h, w]` of any resolution, interpolated between samples."""
    (channels, height, width), (texture_w, texture_h) = planes.shape, texture_wh
    rows, down = _reading(height, texture_h)
    columns, across = _reading(width, texture_w)
    # One below the other: what a plane's sums begin with falls out of every difference.
    sums = cv2.integral(planes.reshape(channels * height, width), sdepth=cv2.CV_64F)
    starts = np.arange(channels) * height
    read = sums.take((starts[:, None] + rows).ravel(), 0).take(columns, 1).reshape(channels, len(rows), len(columns))
    means: Doubles = down @ read @ across.T
    return means


@lru_cache(maxsize=64)
def _reading(samples: int, size: int) -> tuple[npt.NDArray[np.intp], Doubles]:
    """Where sums along a side of `samples` are read, `[n]`, and the weights `[size / CELL_PX, n]` that make means."""
    left, right, weight = linear_taps(samples, size)
    cell = np.arange(size) // CELL_PX
    of_samples = np.zeros((size // CELL_PX, samples))
    np.add.at(of_samples, (cell, left), (1 - weight) / CELL_PX)
    np.add.at(of_samples, (cell, right), weight / CELL_PX)
    # Sums by parts: sample j is the difference of the sums up to j + 1 and up to j.
    of_sums = -np.diff(of_samples, axis=1, prepend=0, append=0)
    of_sums[np.abs(of_sums) < 1e-12] = 0
    places = np.flatnonzero(of_sums.any(axis=0))
    return places, np.ascontiguousarray(of_sums[:, places])


def linear_taps(samples: int, size: int) -> tuple[Indices, Indices, Doubles]:
    """For each of `size` pixels: left sample `[size]`, right sample `[size]`, weight of the right one `[size]`."""
    position = np.clip((np.arange(size) + 0.5) * (samples / size) - 0.5, 0, samples - 1)
    left = position.astype(np.int64)
    return left, np.minimum(left + 1, samples - 1), position - left


def nearest_samples(samples: int, size: int, step: int) -> Indices:
    """`[size / step]`: the sample nearest to the centre of each block of `step` pixels."""
    pixel = np.arange(size // step) * step + step // 2
    return np.minimum(((pixel + 0.5) * (samples / size)).astype(np.int64), samples - 1)
