"""SLIC superpixels on a device.

Achanta et al., "SLIC Superpixels Compared to State-of-the-art Superpixel Methods", 2012: k-means in colour and place,
each centre looking about itself only. Here each place looks at the nine centres of its own and the neighbouring tiles
of the seeds' lattice (as in Ren and Reid, "gSLIC", 2011), so that shapes never depend on values. Pieces that do not
hang together become regions of their own, and small ones join the neighbour most like them in colour.

Sums are made of whole numbers, so that the order in which a device adds cannot change a label.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from arr_stream.gpu.visual import lab
from arr_stream.keyframes.base import KeyframeInput
from arr_stream.keyframes.clusters.regions import clusters_from_labels
from arr_stream.keyframes.clusters.slic import ITERATIONS, SKIMAGE_COMPACTNESS, SMALLEST_REGION_PX, SMALLEST_SHARE
from arr_stream.types import Clusters

METHOD = "slic-torch"
"""Name of these regions in the records."""

_PARTS = 64
"""Steps to one unit of colour or place in sums."""

_PIECE_ROUNDS = 16
"""Rounds of hooking and shortening; every piece of footage and noise tried was whole after a dozen."""

_JOIN_ROUNDS = 4
"""How often small pieces join a neighbour; the last rounds find none left."""


class TorchSlic:
    """SLIC by torch, as any other way to divide a frame; on a GPU it takes none of the processor's time.

    Args:
        count: About how many regions.
        device: Where it runs.
    """

    def __init__(self, count: int, device: torch.device | str = "cpu") -> None:
        self.count = count
        self.device = torch.device(device)

    def cluster(self, picture: KeyframeInput) -> Clusters:
        """Regions at a quarter of the texture's size."""
        rgb = torch.from_numpy(picture.quarter_rgb).to(self.device)
        return to_clusters(slic(rgb.permute(2, 0, 1), self.count))


def slic(rgb_quarter: Tensor, count: int, compactness: float = SKIMAGE_COMPACTNESS, rounds: int = ITERATIONS) -> Tensor:
    """Regions of about equal size that follow colour.

    Args:
        rgb_quarter: `[3, h, w]` in [0, 255].
        count: About how many regions; fewer where there are too few pixels for as many.
        compactness: Weight of nearness against likeness of colour; higher is squarer.
        rounds: Rounds of k-means.

    Returns:
        `[h, w]` int32 ids from 0 without gaps, the largest region first; every region hangs together (4-neighbours).
    """
    colours = lab(rgb_quarter.to(torch.float32))
    height, width = colours.shape[1:]
    tiles = lattice(height, width, max(1, min(count, height * width // SMALLEST_REGION_PX)))
    labels = _k_means(colours, tiles, compactness, rounds)
    pieces = pieces_of(labels.view(height, width))
    smallest = SMALLEST_SHARE * height * width / (tiles[0] * tiles[1])
    return ranked(join_small(pieces, colours, smallest)).view(height, width)


def to_clusters(labels: Tensor) -> Clusters:
    """The regions on the host with their statistics; waits for the device and copies `[h, w]` ids once."""
    return clusters_from_labels(labels.cpu().numpy(), METHOD)


def lattice(height: int, width: int, count: int) -> tuple[int, int]:
    """Rows and columns of about `count` nearly square tiles."""
    rows = min(height, max(1, round(math.sqrt(count * height / width))))
    return rows, min(width, max(1, round(count / rows)))


def _k_means(colours: Tensor, tiles: tuple[int, int], compactness: float, rounds: int) -> Tensor:
    """`[h * w]` index of each place's centre."""
    height, width = colours.shape[1:]
    step = math.sqrt(height * width / (tiles[0] * tiles[1]))
    places = _scaled_places((height, width), compactness / step, colours.device)
    points = torch.cat([colours.reshape(3, -1), places])
    own, around = _tiles_around((height, width), tiles, colours.device)
    whole = (points * _PARTS).round_().long()
    ones = torch.ones_like(whole[:1])
    summed = torch.cat([whole, ones])
    empty = summed.new_zeros(6, tiles[0] * tiles[1])
    labels, centres = own, _means(empty.index_add(1, own, summed))
    for _ in range(rounds):
        candidates = centres.index_select(1, around.reshape(-1)).view(5, 9, -1)
        nearest = (candidates - points[:, None]).square_().sum(dim=0).argmin(dim=0, keepdim=True)
        labels = around.gather(0, nearest)[0]
        centres = _means(empty.index_add(1, labels, summed), centres)
    return labels


def _means(sums: Tensor, before: Tensor | None = None) -> Tensor:
    """`[5, n]` centres from `[6, n]` sums and counts; an empty one stays where it was."""
    means = (sums[:5].double() / (sums[5].clamp(min=1) * _PARTS)).float()
    return means if before is None else torch.where(sums[5] > 0, means, before)


def pieces_of(labels: Tensor, rounds: int = _PIECE_ROUNDS) -> Tensor:
    """`[h * w]`: for each place one place of its connected piece (4-neighbours), the same for the whole piece.

    Shiloach and Vishkin, "An O(log n) parallel connectivity algorithm", 1982: each root hooks itself to the least root
    beside its piece, then paths are shortened. A piece too winding for the rounds stays in several, each connected.

    Args:
        labels: `[h, w]`, any integers.
        rounds: Rounds of hooking.
    """
    height, width = labels.shape
    flat = labels.reshape(-1)
    root = torch.arange(flat.numel(), device=labels.device)
    beside = _beside((height, width), labels.device)
    same = flat[beside] == flat
    for _ in range(rounds):
        least = torch.where(same, root[beside], root).amin(dim=0)
        root = root.scatter_reduce(0, root, least, "amin")
        root = root[root]
        root = root[root]
    return root[root]


def join_small(pieces: Tensor, colours: Tensor, smallest_px: float, rounds: int = _JOIN_ROUNDS) -> Tensor:
    """Gives every piece that is too small to the larger neighbour whose mean colour is most like its own.

    Neighbours that are themselves small count as long as they are larger (of equal ones, the one of higher index), so
    that no two join each other.

    Args:
        pieces: `[h * w]`, for each place one place of its piece.
        colours: `[3, h, w]`.
        smallest_px: Places that a piece must have to stay.
        rounds: A piece may have grown and still be too small; then it joins another in the next round.

    Returns:
        `[h * w]` like `pieces`.
    """
    beside = _beside((colours.shape[1], colours.shape[2]), colours.device)
    count = pieces.numel()
    whole = (colours.reshape(3, -1) * _PARTS).round_().long()
    summed = torch.cat([whole, torch.ones_like(whole[:1])])
    itself = torch.arange(count, device=pieces.device)
    for _ in range(rounds):
        sums = torch.zeros_like(summed).index_add(1, pieces, summed)
        area = sums[3]
        mean = sums[:3].double() / (area.clamp(min=1) * _PARTS)
        other = pieces[beside]
        larger = (area[other] * count + other) > (area[pieces] * count + pieces)
        unlike = (mean[:, other] - mean[:, pieces][:, None]).square_().sum(dim=0).mul_(_PARTS).long()
        allowed = larger & (area[pieces] < smallest_px)
        key = torch.where(allowed, unlike * count + other, torch.iinfo(torch.int64).max)
        best = torch.full_like(pieces, torch.iinfo(torch.int64).max)
        best = best.scatter_reduce(0, pieces, key.amin(dim=0), "amin")
        into = torch.where(best == torch.iinfo(torch.int64).max, itself, best % count)
        for _ in range(count.bit_length()):
            into = into[into]
        pieces = into[pieces]
    return pieces


def ranked(pieces: Tensor) -> Tensor:
    """`[n]` int32 ids from 0 without gaps, the largest piece first; `pieces` has values from 0 to n - 1."""
    area = torch.zeros_like(pieces).index_add(0, pieces, torch.ones_like(pieces))
    order = area.argsort(descending=True, stable=True)
    rank = torch.empty_like(order).scatter_(0, order, torch.arange(pieces.numel(), device=pieces.device))
    return rank[pieces].to(torch.int32)


@lru_cache(maxsize=16)
def _scaled_places(hw: tuple[int, int], scale: float, device: torch.device) -> Tensor:
    """`[2, h * w]` column and row of each place, times `scale`."""
    row, column = torch.meshgrid(*(torch.arange(size, dtype=torch.float32) for size in hw), indexing="ij")
    return (torch.stack([column.reshape(-1), row.reshape(-1)]) * scale).to(device)


@lru_cache(maxsize=16)
def _tiles_around(hw: tuple[int, int], tiles: tuple[int, int], device: torch.device) -> tuple[Tensor, Tensor]:
    """`[h * w]` tile of each place, and `[9, h * w]` that tile and its neighbours, the border's tile where none is."""
    (height, width), (rows, columns) = hw, tiles
    row = torch.arange(height) * rows // height
    column = torch.arange(width) * columns // width
    steps = torch.tensor([-1, 0, 1])
    around_row = (row + steps[:, None]).clamp(0, rows - 1)
    around_column = (column + steps[:, None]).clamp(0, columns - 1)
    own = (row[:, None] * columns + column).reshape(-1)
    around = around_row[:, None, :, None] * columns + around_column[None, :, None, :]
    return own.to(device), around.reshape(9, -1).to(device)


@lru_cache(maxsize=16)
def _beside(hw: tuple[int, int], device: torch.device) -> Tensor:
    """`[4, h * w]` indices of the places left, right, above and below; a border place is beside itself."""
    height, width = hw
    index = torch.arange(height * width).view(height, width)
    row, column = torch.arange(height), torch.arange(width)
    beside = [
        index[:, (column - 1).clamp(min=0)],
        index[:, (column + 1).clamp(max=width - 1)],
        index[(row - 1).clamp(min=0)],
        index[(row + 1).clamp(max=height - 1)],
    ]
    return torch.stack(beside).reshape(4, -1).to(device)
