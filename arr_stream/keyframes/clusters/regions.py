"""Label maps: from any integers to contiguous ids with their statistics."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from arr_stream.types import Clusters, FloatArray, IntArray


def clusters_from_labels(labels: npt.NDArray[np.integer], method: str) -> Clusters:
    """Clusters from a label map with any ids.

    Args:
        labels: `[h, w]`, any integers; ids need not be contiguous.
        method: Name of what made them, as in the records.

    Returns:
        The same regions with ids from 0, the largest first; equally large ones keep the order of their old ids.

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
    """`[n, 2]` normalised centre of the place where each region has its mean, or of the region's place nearest to it.

    Centres of places, and not the means themselves, so that no rounding can move one across its region's border.
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
