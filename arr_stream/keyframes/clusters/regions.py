"""Label maps: contiguous ids with their statistics, connected components, and shared borders."""

from __future__ import annotations

import math
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from arr_stream.types import Clusters, FloatArray, IntArray

Labels = npt.NDArray[np.integer]
DoubleArray = npt.NDArray[np.float64]
Number = TypeVar("Number", bound="np.number[Any]")


def clusters_from_labels(labels: Labels, method: str) -> Clusters:
    """Return the regions of a label map `[h, w]` of any integers, with ids from 0, the largest first.

    Equally large ones keep the order of their old ids. `method` names the clusterer, as in the records.

    Raises:
        ValueError: The map is empty or not two-dimensional.
    """
    if labels.ndim != 2 or labels.size == 0:
        raise ValueError(f"labels must be [h, w] with at least one place, got {list(labels.shape)}")
    _, inverse, counts = np.unique(labels, return_inverse=True, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    rank = np.empty(len(order), np.int32)
    rank[order] = np.arange(len(order), dtype=np.int32)
    ids: IntArray = rank[inverse].reshape(labels.shape)
    areas = (counts[order] / labels.size).astype(np.float32)
    return Clusters(ids, areas, _centroids(ids, counts[order]), method)


def _centroids(ids: IntArray, counts: npt.NDArray[np.integer]) -> FloatArray:
    """Return `[n, 2]`: normalised centre of the pixel at each region's mean, or of its own pixel nearest to that.

    Pixel centres are used instead of the means, so that rounding cannot move one across its region's border.
    """
    height, width = ids.shape
    flat = ids.ravel()
    rows, columns = np.divmod(np.arange(flat.size), width)
    mean_x = np.bincount(flat, weights=columns) / counts
    mean_y = np.bincount(flat, weights=rows) / counts
    x, y = np.rint(mean_x).astype(np.int64), np.rint(mean_y).astype(np.int64)
    for region in np.flatnonzero(ids[y, x] != np.arange(len(counts))):
        inside_y, inside_x = np.nonzero(ids == region)
        nearest = np.argmin((inside_x - mean_x[region]) ** 2 + (inside_y - mean_y[region]) ** 2)
        x[region], y[region] = inside_x[nearest], inside_y[nearest]
    return np.stack([(x + 0.5) / width, (y + 0.5) / height], axis=1).astype(np.float32)


def shared_borders(labels: Labels, strength: FloatArray | None = None) -> tuple[IntArray, IntArray, DoubleArray]:
    """Return every pair of touching regions (4-neighbours), with the length and the strength of their border.

    Args:
        labels: `[h, w]`, ids from 0.
        strength: `[h, w]`, of each place; of the two places at a border, the stronger counts.

    Returns:
        `[m, 2]` int32 pairs of ids, the smaller id first, in ascending order, `[m]` int32 lengths in places, and `[m]`
        float64 strengths, summed along each border; 0 where none are given.
    """
    first, second = (np.concatenate(side).astype(np.int64) for side in _sides(labels))
    differ = first != second
    low, high = np.minimum(first, second)[differ], np.maximum(first, second)[differ]
    ids = int(labels.max()) + 1
    keys, inverse, lengths = np.unique(low * ids + high, return_inverse=True, return_counts=True)
    along = np.zeros(len(keys))
    if strength is not None:
        stronger = np.maximum(*(np.concatenate(side) for side in _sides(strength)))
        along = np.bincount(inverse, stronger[differ], len(keys)).astype(np.float64)
    return np.stack(np.divmod(keys, ids), axis=1).astype(np.int32), lengths.astype(np.int32), along


def _sides(places: npt.NDArray[Number]) -> tuple[list[npt.NDArray[Number]], list[npt.NDArray[Number]]]:
    """Return the places before and after every step to the right, and every step down."""
    left, right, above, below = places[:, :-1], places[:, 1:], places[:-1], places[1:]
    return [left.ravel(), above.ravel()], [right.ravel(), below.ravel()]


def pieces_of(labels: Labels) -> IntArray:
    """Return `[h, w]` int32 ids from 0, one for every connected piece (4-neighbours) of every region."""
    from skimage.measure import label

    # No id is below the least, so none counts as background.
    pieces = label(labels, background=int(labels.min()) - 1, connectivity=1)  # type: ignore[no-untyped-call]
    return np.asarray(pieces - 1, np.int32)


def absorb_small(labels: Labels, smallest_px: float) -> IntArray:
    """Give every connected piece of less than `smallest_px` places to the piece it shares the longest border with.

    In each round, pieces merge into larger ones, until none is small. A map of one piece is returned unchanged, however
    small. The result is `[h, w]` int32 with the same ids, without those that lost all pixels.
    """
    ids: IntArray = labels.astype(np.int32)
    while True:
        pieces = pieces_of(ids)
        sizes = np.bincount(pieces.ravel())
        pairs, lengths, _ = shared_borders(pieces)
        if not len(pairs) or sizes.min() >= smallest_px:
            return ids
        here, there = np.concatenate([pairs, pairs[:, ::-1]]).T
        # Written in this order, the last neighbour of a piece has the longest border, of equal ones the least id.
        order = np.lexsort((-there, np.tile(lengths, 2)))
        target = np.arange(len(sizes))
        target[here[order]] = there[order]
        larger = (sizes[target] > sizes) | (sizes[target] == sizes) & (target < np.arange(len(sizes)))
        id_of = np.zeros(len(sizes), np.int32)
        id_of[pieces] = ids
        ids = np.where((sizes < smallest_px) & larger, id_of[target], id_of)[pieces]


def lattice_hw(count: int, height: int, width: int) -> tuple[int, int]:
    """Return rows and columns of about `count` nearly square parts of a raster, none smaller than one place."""
    rows = min(height, max(1, round(math.sqrt(count * height / width))))
    return rows, min(width, max(1, round(count / rows)))
