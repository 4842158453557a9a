"""The texture of a frame: 40 channels, each stored at its own resolution.

The frame loop reads means over cells; `sample`, `mip` and `dense` exist for consumers, in torch. All agree to rounding:
`sample(points, level)` equals `mip(level)` read at those points, `dense()` is `mip(0)` and `cells()` is `mip(5)`.

A plane of `n` samples along a side is brought to `size` texture pixels by linear interpolation between sample centres
(edges replicated), and to a mip level by averaging blocks of `2**level` of those pixels. Both steps are linear, so one
small matrix per side combines them, and no full-size picture is needed. Ids are taken from the nearest sample instead.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from arr_stream.texture.arrays import Array, as_float, as_tensor, namespace, to_numpy
from arr_stream.texture.layout import CHANNEL_INDEX, CHANNELS
from arr_stream.types import CELL_PX, FloatArray

if TYPE_CHECKING:
    import torch
    from torch import Tensor

CELL_LEVEL = 5
"""The mip level at which one value covers one cell."""

_PYRAMID_FROM_LEVEL = 3
"""Level from which a whole mip is smaller than the windows around a few hundred points; these mips are cached."""


@dataclass(frozen=True, slots=True, eq=False)
class Plane:
    """Some neighbouring channels at one resolution.

    Args:
        first: Index of the first channel.
        data: `[C, h, w]`; float32 values, uint8 that `scale` brings to the channel's range, or int32 ids. Either side
            may be 1 if the values do not vary along it. NumPy on the host, a tensor on a device.
        scale: Factor from stored to true values.
    """

    first: int
    data: Array
    scale: float = 1.0
    _cells: dict[tuple[object, ...], FloatArray] = field(default_factory=dict, init=False, repr=False)
    _mips: dict[tuple[int, int, int], Tensor] = field(default_factory=dict, init=False, repr=False)

    @property
    def nearest(self) -> bool:
        return CHANNELS[self.first].interpolation == "nearest"

    def values(self, data: Array) -> Array:
        """Return true float32 values of stored ones."""
        data = as_float(data)
        return data if self.scale == 1.0 else data * self.scale

    def cells(self, texture_wh: tuple[int, int], rows: tuple[int, ...]) -> Array:
        """Return `[gh, gw]` float32 each: means over cells (ids: the sample at the middle) of some channels, cached."""
        if not isinstance(self.data, np.ndarray):
            means = self.mip(texture_wh, CELL_LEVEL)
            return tuple([means[row] for row in rows])
        key = (texture_wh, rows)
        made = self._cells.get(key)
        if made is None:
            planes = self.data if rows == tuple(range(len(self.data))) else self.data[list(rows)]
            found = _cell_middles(planes, texture_wh) if self.nearest else _cell_means(planes, texture_wh)
            made = self._cells[key] = self.values(found)
        return made

    def mip(self, texture_wh: tuple[int, int], level: int) -> Tensor:
        """Return `[C, H >> level, W >> level]`; small levels are cached, for planes that serve many frames."""
        key = (*texture_wh, level)
        kept = self._mips.get(key)
        if kept is not None:
            return kept
        values = self._reduce(texture_wh, level)
        if level >= _PYRAMID_FROM_LEVEL:
            self._mips[key] = values
        return values

    def _reduce(self, texture_wh: tuple[int, int], level: int) -> Tensor:
        from torch.nn import functional

        width, height = texture_wh
        data = as_tensor(self.data)
        _, rows, columns = data.shape
        if self.nearest:
            row = _nearest_index(rows, height, level, data.device)
            column = _nearest_index(columns, width, level, data.device)
            ids: Tensor = self.values(data[:, row[:, None], column])
            return ids
        if level == 0:
            source = self.values(data)[None]
            return functional.interpolate(source, size=(height, width), mode="bilinear", align_corners=False)[0]
        by_rows = _linear_matrix(rows, height, level, data.device) @ data.float()
        means = by_rows @ _linear_matrix(columns, width, level, data.device).T
        return means if self.scale == 1.0 else means * self.scale


def _cell_middles(ids: npt.NDArray[np.int32], texture_wh: tuple[int, int]) -> npt.NDArray[np.int32]:
    """Return `[C, gh, gw]` of `[C, h, w]`: the sample nearest to each cell's middle."""
    rows, columns = (
        _nearest_samples(samples, size, CELL_PX) for samples, size in zip(ids.shape[1:], texture_wh[::-1], strict=True)
    )
    middles: npt.NDArray[np.int32] = ids[:, rows[:, None], columns]
    return middles


class LazyPlane(Protocol):
    """Channels that are computed on first access."""

    def made(self) -> Plane: ...


@dataclass(frozen=True, slots=True, eq=False)
class DeferredPlane:
    """Channels from `first` on that `make` computes on first access, `[C, h, w]`; see `Plane`."""

    first: int
    make: Callable[[], Array]
    scale: float = 1.0

    def made(self) -> Plane:
        return Plane(self.first, self.make(), self.scale)


@dataclass(slots=True, eq=False)
class Texture:
    """The 40 channels of one frame.

    Args:
        texture_wh: Size in texture pixels, both sides whole numbers of cells.
        planes: Planes by the index of their first channel, or functions that compute them on first access.
    """

    texture_wh: tuple[int, int]
    planes: dict[int, Plane | LazyPlane]
    _firsts: list[int] = field(init=False)

    def __post_init__(self) -> None:
        width, height = self.texture_wh
        if width % CELL_PX or height % CELL_PX:
            raise ValueError(f"texture size must be whole cells of {CELL_PX} px, got {width}x{height}")
        self._firsts = sorted(self.planes)

    @property
    def _device(self) -> torch.device:
        # Positions are there from the start; other planes may have to be made.
        return as_tensor(self._plane(CHANNEL_INDEX["x"]).data).device

    def sample(self, points_xy: Tensor, level: int = 0, channels: Sequence[int] | None = None) -> Tensor:
        """Sample channels at points.

        Args:
            points_xy: `[N, 2]` in texture pixels; each reads the (mip) pixel that contains it.
            level: Mip level; 5 gives the mean over a cell.
            channels: Which channels, all 40 by default.

        Returns:
            `[N, C]` float32, in the requested order.
        """
        import torch

        cell = (points_xy.to(self._device, torch.float64) / (1 << level)).floor().long()
        width, height = self.texture_wh
        x = cell[:, 0].clamp(0, (width >> level) - 1)
        y = cell[:, 1].clamp(0, (height >> level) - 1)
        return self._stacked(channels, lambda plane: self._sample_plane(plane, x, y, level), dim=1)

    def mip(self, level: int, channels: Sequence[int] | None = None) -> Tensor:
        """Return `[C, H >> level, W >> level]` float32: means over blocks of `2**level` pixels; ids by nearest sample.

        Raises:
            ValueError: The level does not divide a cell (0 to 5 do).
        """
        if not 0 <= level <= CELL_LEVEL:
            raise ValueError(f"mip level must be 0 to {CELL_LEVEL}, got {level}")
        return self._stacked(channels, lambda plane: plane.mip(self.texture_wh, level), dim=0)

    def cells(self, channels: Sequence[int]) -> Array:
        """Return `[C, gh, gw]` float32, equal to `mip(CELL_LEVEL)`; NumPy on the host, a tensor on a device."""
        rows: dict[int, list[int]] = {}
        for channel in channels:
            rows.setdefault(self._plane(channel).first, []).append(channel)
        made: dict[int, Array] = {}
        for first, wanted in rows.items():
            means = self._plane(first).cells(self.texture_wh, tuple([channel - first for channel in wanted]))
            made.update(zip(wanted, means, strict=True))
        return namespace(made[channels[0]]).stack([made[channel] for channel in channels])

    def dense(self) -> Tensor:
        """Return the full `[40, H, W]` float32 tensor: 160 MB at 1024x1024; the frame loop never builds one."""
        return self.mip(0)

    def all_planes(self) -> list[tuple[int, Plane]]:
        """Return every plane with the index of its first channel, in order; computes those not accessed so far."""
        return [(first, self._plane(first)) for first in self._firsts]

    def plane(self, channel: int | str) -> npt.NDArray[np.float32] | npt.NDArray[np.int32]:
        """Return one channel `[h, w]` at its own resolution, as a NumPy array; int32 for ids, float32 otherwise."""
        index = CHANNEL_INDEX[channel] if isinstance(channel, str) else channel
        plane = self._plane(index)
        data: npt.NDArray[np.int32] | npt.NDArray[np.float32] = to_numpy(plane.data[index - plane.first])
        if data.dtype == np.int32:
            return data
        values: npt.NDArray[np.float32] = plane.values(data)
        return values

    def _plane(self, channel: int) -> Plane:
        first = self._firsts[bisect_right(self._firsts, channel) - 1]
        plane = self.planes[first]
        if not isinstance(plane, Plane):
            plane = self.planes[first] = plane.made()
        return plane

    def _stacked(self, channels: Sequence[int] | None, read: Callable[[Plane], Tensor], dim: int) -> Tensor:
        """Return what `read` makes of the planes of some channels (all by default), in their order."""
        import torch

        wanted = range(len(CHANNELS)) if channels is None else channels
        planes = [self._plane(channel) for channel in wanted]
        values = {plane: read(plane) for plane in dict.fromkeys(planes)}
        rows = [values[plane][channel - plane.first] for channel, plane in zip(wanted, planes, strict=True)]
        return torch.stack(rows, dim=dim)

    def _sample_plane(self, plane: Plane, x: Tensor, y: Tensor, level: int) -> Tensor:
        import torch
        from torch.nn import functional

        if level >= _PYRAMID_FROM_LEVEL:
            return plane.mip(self.texture_wh, level)[:, y, x]
        (width, height), data = self.texture_wh, as_tensor(plane.data)
        if plane.nearest:
            row = _nearest_index(data.shape[1], height, level, x.device)[y]
            column = _nearest_index(data.shape[2], width, level, x.device)[x]
            ids: Tensor = plane.values(data[:, row, column])
            return ids
        step = 1 << level
        within = torch.arange(step, device=x.device) + 0.5
        down, across = ((at[:, None] * step + within) * (2 / side) - 1 for at, side in ((y, height), (x, width)))
        shape = len(x), step, step
        places = torch.stack([across[:, None].expand(shape), down[:, :, None].expand(shape)], dim=3).flatten(1, 2)
        values = functional.grid_sample(plane.values(data)[None], places[None], "bilinear", "border", False)
        return values[0].mean(dim=2)


def _cell_means(planes: npt.NDArray[np.uint8] | FloatArray, texture_wh: tuple[int, int]) -> FloatArray:
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


def _nearest_samples(samples: int, size: int, step: int) -> npt.NDArray[np.int64]:
    """Return `[size / step]`: the sample nearest to the centre of each block of `step` pixels."""
    pixel = np.arange(size // step) * step + step // 2
    return np.minimum(((pixel + 0.5) * (samples / size)).astype(np.int64), samples - 1)


@cache
def _linear_matrix(samples: int, size: int, level: int, device: torch.device) -> Tensor:
    """Return `[size >> level, samples]`: interpolation to `size` pixels, then the mean of each block of `2**level`."""
    import torch

    return torch.from_numpy(_shares(samples, size, 1 << level)).to(device)


@cache
def _nearest_index(samples: int, size: int, level: int, device: torch.device) -> Tensor:
    """Return `[size >> level]`: the sample nearest to the centre of each pixel of a mip level."""
    import torch

    return torch.from_numpy(_nearest_samples(samples, size, 1 << level)).to(device)
