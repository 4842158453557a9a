"""Distance to the nearest edge on a device.

Large rasters by jump flooding: Rong and Tan, "Jump flooding in GPU with applications to Voronoi diagram and distance
transform", 2006. Every place knows of one edge, at first only of itself where it is one; in rounds it looks at eight
places a step away each way, takes the nearest edge that any of them knows of, and the step halves. One round at step 1
goes before ("1+JFA"), which mends most of what jumping misses.

Small rasters exactly, in two passes (columns, then rows; Felzenszwalb and Huttenlocher, "Distance transforms of sampled
functions", 2012) that try every place of a line: more arithmetic than flooding, and a fifth of its kernels, which is
what counts where a kernel is done before the next can be started.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional

from arr_stream.texture.visual import EDGE_THRESHOLD

_NOWHERE = 1e6
"""Coordinate of an edge that is not there; farther than any diagonal, and its square is still exact enough."""


_EXACT_UP_TO = 1 << 24
"""Trials a pass (places times the longer side) up to which distances are exact: 64 MiB held for a moment."""


def edge_distance(strength: Tensor) -> Tensor:
    """Distance to the nearest edge, over the diagonal; 1 everywhere when there is none.

    Args:
        strength: `[h, w]` edge strength in [0, 255]; both sides are even.

    Returns:
        `[h / 2, w / 2]` float32 in [0, 1]. An edge in any of the pixels around a place makes an edge. The CPU path's
        3x3 chamfer distance is up to a twentieth longer or shorter.
    """
    spread = functional.max_pool2d(strength[None], 3, stride=2, padding=1)[0]
    height, width = spread.shape
    small = height * width * max(height, width) <= _EXACT_UP_TO
    distance = (exact_distance if small else jump_flooding)(spread > EDGE_THRESHOLD)
    return distance.mul_(1 / math.hypot(height, width)).clamp_(max=1)


def exact_distance(edges: Tensor) -> Tensor:
    """Like `jump_flooding`, without its rare errors; `h * w * max(h, w)` trials."""
    height, width = edges.shape
    squared = torch.where(edges, 0.0, _NOWHERE**2)
    squared = (_squared_steps(height, edges.device)[:, :, None] + squared).amin(dim=1)
    return (squared[:, None] + _squared_steps(width, edges.device)).amin(dim=2).sqrt_()


def jump_flooding(edges: Tensor) -> Tensor:
    """Euclidean distance from the centre of each place to that of the nearest edge.

    Args:
        edges: `[h, w]` bool.

    Returns:
        `[h, w]` float32 in pixels, 0 on edges; beyond any diagonal where there are none.
    """
    height, width = edges.shape
    places = _places((height, width), edges.device)
    nearest = torch.where(edges.reshape(-1), places, _NOWHERE)
    for step in _steps(height, width):
        around = _around((height, width), step, edges.device)
        known = nearest.index_select(1, around.reshape(-1)).view(2, 9, -1)
        best = torch.linalg.vector_norm(known - places[:, None], dim=0).argmin(dim=0, keepdim=True)
        nearest = nearest.index_select(1, around.gather(0, best)[0])
    distance: Tensor = torch.linalg.vector_norm(nearest - places, dim=0)
    return distance.view(height, width)


def _steps(height: int, width: int) -> list[int]:
    """1, then powers of two from the smallest that reaches half of the longer side down to 1."""
    longest = max(height, width)
    return [1, *(1 << power for power in reversed(range(math.ceil(math.log2(max(2, longest))))))]


@lru_cache(maxsize=32)
def _squared_steps(size: int, device: torch.device) -> Tensor:
    """`[size, size]` squared distance between two places of a line."""
    place = torch.arange(size, dtype=torch.float32)
    return (place[:, None] - place).square_().to(device)


@lru_cache(maxsize=16)
def _places(hw: tuple[int, int], device: torch.device) -> Tensor:
    """`[2, h * w]` row and column of each place."""
    row, column = torch.meshgrid(*(torch.arange(size, dtype=torch.float32) for size in hw), indexing="ij")
    return torch.stack([row.reshape(-1), column.reshape(-1)]).to(device)


@lru_cache(maxsize=128)
def _around(hw: tuple[int, int], step: int, device: torch.device) -> Tensor:
    """`[9, h * w]` indices of each place and of those a step away; what would lie outside is the border's place."""
    height, width = hw
    offsets = torch.tensor([-step, 0, step])
    row = (torch.arange(height) + offsets[:, None]).clamp(0, height - 1)
    column = (torch.arange(width) + offsets[:, None]).clamp(0, width - 1)
    return (row[:, None, :, None] * width + column[None, :, None, :]).reshape(9, -1).to(device)
