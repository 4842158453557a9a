"""Label maps: contiguous ids with their statistics, connected pieces, and which regions touch, and for how long."""

from __future__ import annotations

import heapq

import numpy as np
import numpy.typing as npt

from arr_stream.types import Clusters, FloatArray, IntArray

Labels = npt.NDArray[np.integer]


def clusters_from_labels(labels: Labels, method: str) -> Clusters:
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


def shared_borders(labels: Labels) -> tuple[IntArray, IntArray]:
    """Every pair of regions that touch (4-neighbours), with the length of their border.

    Args:
        labels: `[h, w]`, ids from 0.

    Returns:
        `[m, 2]` int32 pairs of ids, the smaller id first, in ascending order, and `[m]` int32 lengths in places.
    """
    sides = [(labels[:, :-1].ravel(), labels[:, 1:].ravel()), (labels[:-1].ravel(), labels[1:].ravel())]
    first, second = (np.concatenate(side).astype(np.int64) for side in zip(*sides, strict=True))
    differ = first != second
    low, high = np.minimum(first, second)[differ], np.maximum(first, second)[differ]
    ids = int(labels.max()) + 1
    pairs, lengths = np.unique(low * ids + high, return_counts=True)
    return np.stack(np.divmod(pairs, ids), axis=1).astype(np.int32), lengths.astype(np.int32)


def pieces_of(labels: Labels) -> IntArray:
    """`[h, w]` int32 ids from 0, one for every connected piece (4-neighbours) of every region."""
    from skimage.measure import label

    # No id is below the least, so nothing is taken for background.
    pieces = label(labels, background=int(labels.min()) - 1, connectivity=1)  # type: ignore[no-untyped-call]
    return np.asarray(pieces - 1, np.int32)


def absorb_small(labels: Labels, smallest_px: float) -> IntArray:
    """Give every connected piece that is too small to the region it shares the longest border with.

    The smallest goes first, and pieces that have grown by what they took in may stay. A map that is one piece stays
    as it is, however small.

    Args:
        labels: `[h, w]`, any integers.
        smallest_px: Places that a piece must have to stay.

    Returns:
        `[h, w]` int32 with the same ids, except those of which nothing is left.
    """
    pieces = pieces_of(labels)
    sizes = np.bincount(pieces.ravel())
    kept_id = np.empty(len(sizes), np.int32)
    kept_id[pieces.ravel()] = labels.ravel()
    if (sizes >= smallest_px).all():
        return labels.astype(np.int32)
    owner = _owners(sizes.tolist(), shared_borders(pieces), smallest_px)
    return np.asarray(kept_id[owner][pieces], np.int32)


def _owners(sizes: list[int], borders: tuple[IntArray, IntArray], smallest_px: float) -> IntArray:
    """`[n]`: the piece that each piece ends up in."""
    around: list[dict[int, int]] = [{} for _ in sizes]
    for (a, b), length in zip(borders[0].tolist(), borders[1].tolist(), strict=True):
        around[a][b] = around[b][a] = length
    into = list(range(len(sizes)))
    waiting = [(size, piece) for piece, size in enumerate(sizes) if size < smallest_px]
    heapq.heapify(waiting)
    while waiting:
        size, piece = heapq.heappop(waiting)
        # A piece that took in another stands in the heap with its old size; the entry with the new one counts.
        if size != sizes[piece] or into[piece] != piece or not around[piece]:
            continue
        target = max(around[piece], key=lambda other: (around[piece][other], -other))
        into[piece] = target
        sizes[target] += size
        _join(around, piece, target)
        if sizes[target] < smallest_px:
            heapq.heappush(waiting, (sizes[target], target))
    for piece in range(len(into)):
        into[piece] = _root(into, piece)
    return np.array(into, np.int32)


def _join(around: list[dict[int, int]], piece: int, target: int) -> None:
    for other, length in around[piece].items():
        del around[other][piece]
        if other != target:
            around[target][other] = around[other][target] = around[target].get(other, 0) + length
    around[piece] = {}


def _root(into: list[int], piece: int) -> int:
    while into[piece] != piece:
        piece = into[piece]
    return piece
