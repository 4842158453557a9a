"""How a frame goes through a vision tower: at once or in windows, at its own aspect or the model's.

| pass | what the model sees |
|---|---|
| `coarse` | the whole frame squeezed to the model's own size |
| `native` | the frame at its own aspect, one forward with resized positions |
| `windows` | overlapping windows of the model's own size, averaged where they overlap |

`native` and `windows` look at the frame at the texture's scale, 32 px a cell, or as near to it as whole places allow
without more than two a cell: patches of 16 px give exactly two, patches of 32 px one.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from arr_stream.keyframes.base import resized
from arr_stream.keyframes.embeddings.dense import Tower
from arr_stream.types import CELL_PX, ByteArray, Grid

SAMPLES_A_CELL = 2


class Normalisation:
    """Bytes to what a model takes.

    Args:
        mean, std: Of red, green and blue, in [0, 1].
        device: Where the model runs.
    """

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...], device: torch.device) -> None:
        self.device = device
        self._mean = torch.tensor(mean, device=device).view(1, 3, 1, 1)
        self._std = torch.tensor(std, device=device).view(1, 3, 1, 1)

    def pixels(self, rgb: ByteArray, size_wh: tuple[int, int]) -> Tensor:
        """`[1, 3, h, w]` float32 of the picture brought to a size."""
        bytes_hwc = torch.from_numpy(resized(rgb, size_wh)).to(self.device)
        return (bytes_hwc.permute(2, 0, 1)[None].float() / 255.0 - self._mean) / self._std


def places_hw(grid: Grid, stride_px: int, *, most: int | None = None) -> tuple[int, int]:
    """How many places a model of that stride has on a frame, at most two a cell and at most `most` in all."""
    by_scale = CELL_PX / stride_px
    a_cell = min(SAMPLES_A_CELL, math.floor(by_scale) if by_scale >= 1 else by_scale)
    rows, columns = max(1, round(grid.rows * a_cell)), max(1, round(grid.columns * a_cell))
    if most is not None and rows * columns > most:
        shrink = math.sqrt(most / (rows * columns))
        # Rounded down, so that the limit holds; a strip so long that it still would not fit is cut to it.
        rows, columns = max(1, math.floor(rows * shrink)), max(1, math.floor(columns * shrink))
        return min(rows, most), min(columns, most // min(rows, most))
    return rows, columns


def frame_features(
    tower: Tower,
    rgb: ByteArray,
    grid: Grid,
    *,
    method: str,
    passes: str,
    places: int,
    batch: int,
    normal: Normalisation,
) -> Tensor:
    """Every place of a frame in the joint space.

    Args:
        tower: The model.
        rgb: `[H, W, 3]` uint8.
        grid: The frame's grid.
        method: One of the tower's methods.
        passes: `coarse`, `native` or `windows`.
        places: Most of them in one native forward; attention grows with the square.
        batch: Windows in one forward.
        normal: What the model takes off and divides by, and where it runs.

    Returns:
        `[D, h, w]` float32 of unit length, at most two samples a cell.
    """
    if passes == "windows":
        features = _in_windows(tower, rgb, grid, method, batch, normal)
    else:
        size_hw = tower.own_hw if passes == "coarse" else places_hw(grid, tower.stride_px, most=places)
        features = tower.features(normal.pixels(rgb, _pixels_wh(size_hw, tower.stride_px)), method)[0]
    return at_most(features, (SAMPLES_A_CELL * grid.rows, SAMPLES_A_CELL * grid.columns))


def window_starts(length: int, window: int) -> list[int]:
    """Where windows start along a side, half a window apart; the last one ends with the side."""
    last = max(0, length - window)
    return [*range(0, last, max(1, window // 2)), last]


def at_most(features: Tensor, most_hw: tuple[int, int]) -> Tensor:
    """`[D, h, w]` of unit length, averaged over areas along every side that is finer than `most_hw`."""
    height, width = features.shape[1:]
    size_hw = min(height, most_hw[0]), min(width, most_hw[1])
    if size_hw == (height, width):
        return features
    return F.normalize(F.adaptive_avg_pool2d(features[None], size_hw)[0], dim=0)


def _in_windows(tower: Tower, rgb: ByteArray, grid: Grid, method: str, batch: int, normal: Normalisation) -> Tensor:
    """Windows no larger than the picture: one that is smaller than a window is one window with resized positions."""
    stride = tower.stride_px
    rows, columns = places_hw(grid, stride)
    height, width = min(rows, tower.own_hw[0]), min(columns, tower.own_hw[1])
    pixels = normal.pixels(rgb, _pixels_wh((rows, columns), stride))
    corners = [(top, left) for top in window_starts(rows, height) for left in window_starts(columns, width)]
    total: Tensor | None = None
    for start in range(0, len(corners), batch):
        some = corners[start : start + batch]
        views = [
            pixels[0, :, top * stride : (top + height) * stride, left * stride : (left + width) * stride]
            for top, left in some
        ]
        for (top, left), features in zip(some, tower.features(torch.stack(views), method), strict=True):
            if total is None:
                total = features.new_zeros(features.shape[0], rows, columns)
            total[:, top : top + height, left : left + width] += features
    assert total is not None
    return F.normalize(total, dim=0)


def _pixels_wh(size_hw: tuple[int, int], stride_px: int) -> tuple[int, int]:
    return size_hw[1] * stride_px, size_hw[0] * stride_px
