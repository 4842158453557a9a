"""Redivision of regions until each can have the same number of tokens.

It works on label maps of cells, so it accepts any clusterer's regions.
"""

from __future__ import annotations

import heapq
from itertools import chain

import numpy as np

from arr_stream.types import FloatArray, IntArray

Cells = list[int]
"""Flat cells of a region, ascending. Regions have a dozen cells, where plain lists are several times faster."""


def divide(cluster_of_cell: IntArray, importance: FloatArray, count: int, each: int) -> IntArray:
    """Divide the cells into exactly `count` regions of at least `each` cells, from any regions.

    - A region of fewer than `each` cells merges into the neighbour of the most similar importance.
    - While there are more than `count`, the one with the least importance times size merges likewise: unimportant
    regions become one large region, important ones stay.
    - While there are fewer, the largest is halved along its longer side.
    - If none is large enough to be halved, a new region takes spare cells from others, near a border cell of the
    largest region. Only this step can leave a region in pieces.

    Args:
        cluster_of_cell: `[gh, gw]` contiguous ids from 0.
        importance: `[n]` of each region, at least 0.
        count: Number of regions; fewer are returned only if the grid has fewer than `count * each` cells.
        each: Least number of cells of a region.

    Returns:
        `[gh, gw]` int32 contiguous ids.
    """
    shape = cluster_of_cell.shape
    count = min(count, max(1, cluster_of_cell.size // each))
    cells = _cells_of_regions(cluster_of_cell)
    if len(cells) > count or min(len(own) for own in cells) < each:
        cells = _merge(cluster_of_cell, cells, importance, count, each)
    split(cells, shape[1], count, each)
    while len(cells) < count:
        _gather(cells, shape[1], each)
    return _as_labels(cells, shape)


def _cells_of_regions(cluster_of_cell: IntArray) -> list[Cells]:
    """Return the cells of each region, by ascending id; ids without cells are skipped."""
    flat = cluster_of_cell.ravel()
    order = np.argsort(flat, kind="stable")
    borders = (np.flatnonzero(np.diff(flat[order])) + 1).tolist()
    cells = order.tolist()
    return [cells[start:end] for start, end in zip([0, *borders], [*borders, len(cells)], strict=True)]


def _as_labels(cells: list[Cells], shape: tuple[int, ...]) -> IntArray:
    labels = np.empty(shape, np.int32)
    labels.ravel()[list(chain.from_iterable(cells))] = np.repeat(np.arange(len(cells)), [len(own) for own in cells])
    return labels


def split(cells: list[Cells], columns: int, count: int, each: int = 1) -> None:
    """Halve the largest region in place, until there are `count`; each keeps at least `each` cells."""
    by_size = [(-len(own), region) for region, own in enumerate(cells)]
    heapq.heapify(by_size)
    while len(cells) < count and -by_size[0][0] >= 2 * each:
        _, region = heapq.heappop(by_size)
        cells[region], other = _halved(cells[region], columns)
        cells.append(other)
        for changed in (region, len(cells) - 1):
            heapq.heappush(by_size, (-len(cells[changed]), changed))


def _halved(cells: Cells, columns: int) -> tuple[Cells, Cells]:
    """Return two halves of a region, cut across its longer side; the second has the odd cell."""
    column = [cell % columns for cell in cells]
    tall = cells[-1] // columns - cells[0] // columns > max(column) - min(column)
    middle = len(cells) // 2
    if tall:
        return cells[:middle], cells[middle:]
    across = sorted(cells, key=lambda cell: cell % columns)
    return sorted(across[:middle]), sorted(across[middle:])


def _merge(cluster_of_cell: IntArray, cells: list[Cells], importance: FloatArray, count: int, each: int) -> list[Cells]:
    """Merge regions until none has fewer than `each` cells and there are at most `count`."""
    beside = _neighbours(cluster_of_cell, len(cells))
    size = [len(own) for own in cells]
    value = [float(v) for v in importance]
    parts: list[list[Cells]] = [[own] for own in cells]
    waiting = [(_turn(size[r], value[r], each), size[r], r) for r in range(len(cells))]
    heapq.heapify(waiting)
    left = len(cells)
    while left > 1 and waiting:
        (fits, _), known_size, region = heapq.heappop(waiting)
        if known_size != size[region]:
            continue
        if fits and left <= count:
            break
        into = min(beside[region], key=lambda other: (abs(value[other] - value[region]), size[other], other))
        total = size[region] + size[into]
        value[into] = (value[into] * size[into] + value[region] * size[region]) / total
        size[into], size[region] = total, 0
        parts[into] += parts[region]
        parts[region] = []
        beside[region].discard(into)
        for other in beside[region]:
            beside[other].discard(region)
            beside[other].add(into)
        beside[into] |= beside[region]
        beside[into].discard(region)
        heapq.heappush(waiting, (_turn(total, value[into], each), total, into))
        left -= 1
    return [sorted(chain.from_iterable(own)) for own in parts if own]


def _turn(size: int, importance: float, each: int) -> tuple[bool, float]:
    """Return the merging order of a region: too small ones first, then by importance times size."""
    return size >= each, importance * size


def _neighbours(cluster_of_cell: IntArray, count: int) -> list[set[int]]:
    """Return, for each region, the others that share a side of a cell with it."""
    labels = np.unique(cluster_of_cell, return_inverse=True)[1].reshape(cluster_of_cell.shape)
    pairs = [
        np.stack([one.ravel(), two.ravel()], axis=1)
        for one, two in ((labels[:, :-1], labels[:, 1:]), (labels[:-1], labels[1:]))
    ]
    beside: list[set[int]] = [set() for _ in range(count)]
    for one, two in np.unique(np.concatenate(pairs), axis=0).tolist():
        if one != two:
            beside[one].add(two)
            beside[two].add(one)
    return beside


def _gather(cells: list[Cells], columns: int, each: int) -> None:
    """Return a new region of `each` cells that others can spare, near to one another."""
    largest = max(range(len(cells)), key=lambda region: (len(cells[region]), -region))
    own = np.stack(np.divmod(cells[largest], columns), axis=1)
    first = cells[largest][int(np.argmax(((own - own.mean(axis=0)) ** 2).sum(axis=1)))]
    owner = {cell: region for region, of_region in enumerate(cells) for cell in of_region}

    def distance(cell: int) -> tuple[int, int]:
        return (cell // columns - first // columns) ** 2 + (cell % columns - first % columns) ** 2, cell

    taken: Cells = []
    for cell in sorted(owner, key=distance):
        if len(taken) < each and len(cells[owner[cell]]) > each:
            cells[owner[cell]].remove(cell)
            taken.append(cell)
    cells.append(sorted(taken))
