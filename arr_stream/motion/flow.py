"""Optical flow from the present frame to an earlier one: its type, its search, its confidence, and carrying along it.

Flow is *backward*: it is defined at each place of the present frame and points into the earlier one. Sampling
then warps data of the earlier frame to the present one without holes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import lru_cache, singledispatch
from typing import Protocol

import cv2
import numpy as np

from arr_stream.texture.arrays import (
    Array,
    at_most,
    channels_first,
    channels_last,
    constant,
    namespace,
    to_numpy,
    zeros,
)
from arr_stream.texture.pixels import averaged, blotted, inside, mean_of, remap, resized
from arr_stream.types import ByteArray, FloatArray, Frame

# How a grey difference becomes a residual, in grey levels of 256. Sensor and coding noise stays below `NOISE`; the
# excess is divided by the local contrast, which accounts for subpixel errors, plus `FLOOR`, which dominates in flat
# areas.
NOISE = 4.0
FLOOR = 8.0
CONTRAST_SHARE = 0.25


@dataclass(frozen=True, slots=True, eq=False)
class Flow:
    """Displacement from the present frame to an earlier one, with confidence.

    Values on a device are not checked, since that would wait for it; `to_numpy` checks them.

    Args:
        offset_px: `[h, w, 2]` float32 `(dx, dy)` in pixels of this raster: content at `(x, y)` now was at
            `(x + dx, y + dy)` in the earlier frame.
        confidence: `[h, w]` float32 in [0, 1], trust in `offset_px`; 0 for content from outside the earlier frame.
        residual: `[h, w]` float32 in [0, 1], share of the newest frame that the flow from the frame just before it
            leaves unexplained.

    Raises:
        ValueError: A wrong shape or dtype, a value that is not finite, or a confidence or residual outside [0, 1].
    """

    offset_px: Array
    confidence: Array
    residual: Array
    _kept: dict[Hashable, Array] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        shape = tuple(self.offset_px.shape)
        if len(shape) != 3 or shape[2] != 2 or 0 in shape:
            raise ValueError(f"offset_px must be [h, w, 2] and not empty, got {list(shape)}")
        for name in ("offset_px", "confidence", "residual"):
            plane = getattr(self, name)
            if name != "offset_px" and plane.shape != shape[:2]:
                raise ValueError(f"{name} must be {list(shape[:2])}, got {list(plane.shape)}")
            if plane.dtype != namespace(self.offset_px).float32:
                raise ValueError(f"{name} must be float32, got {plane.dtype}")
        if isinstance(self.offset_px, np.ndarray):
            self._check_values()

    def _check_values(self) -> None:
        for name in ("confidence", "residual"):
            plane = getattr(self, name)
            least, most, _, _ = cv2.minMaxLoc(plane)
            if not (_finite(plane) and least >= 0 and most <= 1):
                raise ValueError(f"{name} must lie in [0, 1], got {plane.min()} to {plane.max()}")
        if not _finite(self.offset_px):
            raise ValueError("offset_px must be finite")

    @classmethod
    def still(cls, hw: tuple[int, int], beside: Array | None = None) -> Flow:
        """Return the identity on a raster of `(h, w)`, with full confidence, on the device of `beside`."""
        like = np.zeros(0) if beside is None else beside
        return cls(zeros(like, (*hw, 2)), zeros(like, hw) + 1, zeros(like, hw))

    @property
    def hw(self) -> tuple[int, int]:
        """Rows and columns of the raster."""
        return self.offset_px.shape[0], self.offset_px.shape[1]

    def once(self, name: Hashable, make: Callable[[], Array]) -> Array:
        """Return the result of `make`, cached under `name` for all readers of this flow."""
        made = self._kept.get(name)
        if made is None:
            made = self._kept[name] = make()
        return made

    def with_map(self, map_px: Array, within: Array) -> Flow:
        """Return the flow itself with precomputed results of `map_px` and `within` on its own raster."""
        self._kept.update({("map", self.hw): map_px, ("within", self.hw): within})
        return self

    def map_px(self, hw: tuple[int, int]) -> Array:
        """Return `source_map` of this flow on a raster of `(h, w)`; read-only."""
        return self.once(("map", hw), lambda: source_map(resize_offsets(self.offset_px, hw)))

    @property
    def trust(self) -> Array:
        """Return the mean confidence: a number, or a tensor without axes."""
        return self.once("trust", lambda: mean_of(self.confidence))

    def within(self, hw: tuple[int, int]) -> Array:
        """Return `[h, w]` bool: True for content from within the earlier frame."""
        return self.once(("within", hw), lambda: inside(self.map_px(hw)))

    def to_numpy(self) -> Flow:
        """Return the flow on the host, checked; itself if it is there."""
        if isinstance(self.offset_px, np.ndarray):
            return self
        planes = self.offset_px, self.confidence, self.residual
        return Flow(*(np.ascontiguousarray(to_numpy(plane)) for plane in planes))

    def resized(self, hw: tuple[int, int]) -> Flow:
        """Return the flow on a raster of `(h, w)`, offsets scaled to its pixels; itself if the raster is the same."""
        if hw == self.hw:
            return self
        clip = namespace(self.offset_px).clip
        planes = (clip(resized(plane, hw), 0.0, 1.0) for plane in (self.confidence, self.residual))
        return Flow(resize_offsets(self.offset_px, hw), *planes)


def _finite(planes: FloatArray) -> bool:
    """Return whether all values are finite, from their sum; OpenCV's double precision does not overflow."""
    return math.isfinite(sum(cv2.sumElems(planes)))


@dataclass(frozen=True, slots=True, eq=False)
class FlowInput:
    """Input of a flow estimator.

    Args:
        grey: `[h, w]` lightness at half of the texture's size, at least 1x1; uint8, or float32 on a device.
        frame: The frame that `grey` was made from.
        smaller: The same picture at smaller sizes that are already available.
    """

    grey: Array
    frame: Frame
    smaller: tuple[Array, ...] = ()
    _kept: dict[tuple[int, int], Array] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if (
            self.grey.ndim != 2
            or 0 in self.grey.shape
            or (isinstance(self.grey, np.ndarray) and self.grey.dtype != np.uint8)
        ):
            raise ValueError(f"grey must be uint8 [h, w] and not empty, got {self.grey.dtype} {list(self.grey.shape)}")

    def reduced(self, hw: tuple[int, int]) -> Array:
        """Return the grey picture averaged down to `(h, w)`; cached, since two successive flows use it."""
        made = self._kept.get(hw)
        if made is None:
            there = [picture for picture in (self.grey, *self.smaller) if picture.shape == hw]
            made = self._kept[hw] = there[0] if there else averaged(self.grey, hw)
        return made


class FlowEstimator(Protocol):
    """Protocol of a flow estimator.

    Attributes:
        reduction: The search runs on the grey pictures' size divided by this; may be changed between frames.
    """

    reduction: int

    def estimate(self, previous: FlowInput, present: FlowInput) -> Flow:
        """Return the backward flow from `present` to `previous`.

        Raises:
            ValueError: The pictures differ in size.
        """
        ...


def raster_hw(previous: FlowInput, present: FlowInput) -> tuple[int, int]:
    """Return rows and columns of the flow's raster, an eighth of the texture's and at least one.

    DIS `ultrafast` searches there; a finer raster would only be interpolated.

    Raises:
        ValueError: The pictures differ in size.
    """
    if previous.grey.shape != present.grey.shape:
        raise ValueError(f"grey pictures differ in size: {previous.grey.shape} and {present.grey.shape}")
    return reduced_hw(present.grey, 4)


def reduced_hw(grey: Array, divisor: int) -> tuple[int, int]:
    """Return rows and columns of a picture reduced by a whole number, at least one."""
    return max(1, grey.shape[0] // divisor), max(1, grey.shape[1] // divisor)


def resize_offsets(offset_px: Array, hw: tuple[int, int]) -> Array:
    """Resize offsets to `[h, w, 2]`, in pixels of the new raster."""
    height, width = offset_px.shape[:2]
    if hw == (height, width):
        return offset_px
    # Flow is searched at a fraction of its raster and smooth between, so averaging would add nothing.
    larger = channels_last(resized(channels_first(offset_px), hw))
    # One factor for the whole array is twenty times as fast as two along its last axis.
    across, down = hw[1] / width, hw[0] / height
    return larger * (across if across == down else constant(offset_px, _growth, across, down))


@lru_cache(maxsize=16)
def _growth(across: float, down: float) -> FloatArray:
    return np.array([across, down], np.float32)


@lru_cache(maxsize=16)
def base_grid(hw: tuple[int, int]) -> FloatArray:
    """Return `[h, w, 2]` `(x, y)` of every pixel of a raster; read-only, shared by all flows of that size."""
    height, width = hw
    grid = np.empty((height, width, 2), np.float32)
    grid[..., 0] = np.arange(width, dtype=np.float32)
    grid[..., 1] = np.arange(height, dtype=np.float32)[:, None]
    grid.flags.writeable = False
    return grid


def source_map(offset_px: Array) -> Array:
    """Return `[h, w, 2]` absolute `(x, y)` that each place is sampled from."""
    return constant(offset_px, base_grid, (offset_px.shape[0], offset_px.shape[1])) + offset_px


@singledispatch
def checked_flow(previous: Array, present: Array, offset_px: Array) -> Flow:
    """Return a flow with photometric confidence.

    The earlier picture is warped to the present. The difference is compared with the local contrast of the present, so
    that a mismatch at an edge counts and noise in a flat area does not. Mismatches between similar places stay
    undetected. Confidence is `1 - residual`, and 0 where the flow points outside the picture.

    Args:
        previous, present: `[h, w]` lightness in [0, 255] on the flow's raster: uint8, or float32 on a device.
        offset_px: `[h, w, 2]` backward flow.
    """
    map_px = source_map(offset_px)
    # Sampling between pixels blurs, most at half a pixel: without a blur of both pictures, a correct flow by part of a
    # pixel would leave a tenth of a fine texture unexplained.
    earlier, now = (
        cv2.GaussianBlur(picture, (3, 3), 0, borderType=cv2.BORDER_REPLICATE) for picture in (previous, present)
    )
    warped = cv2.remap(earlier, map_px, None, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    difference = cv2.blur(cv2.absdiff(warped, now), (3, 3), borderType=cv2.BORDER_REPLICATE)
    contrast = cv2.morphologyEx(present, cv2.MORPH_GRADIENT, _neighbours(), borderType=cv2.BORDER_REPLICATE)
    allowed = cv2.addWeighted(contrast, CONTRAST_SHARE, contrast, 0.0, FLOOR, dtype=cv2.CV_32F)
    excess = cv2.addWeighted(difference, 1.0, difference, 0.0, -NOISE, dtype=cv2.CV_32F)
    residual: FloatArray = cv2.divide(excess, allowed)
    np.clip(residual, 0.0, 1.0, out=residual)
    within = inside(map_px)
    return Flow(offset_px, (1.0 - residual) * within, residual).with_map(map_px, within)


@lru_cache(maxsize=1)
def _neighbours() -> ByteArray:
    return np.ones((3, 3), np.uint8)


_APPROACHES = 5

# Types that cv2.remap moves without changing a bit; it has no kernels for others.
_ID_TYPES = tuple(np.dtype(kind) for kind in (np.bool_, np.uint8, np.int8, np.uint16, np.int16, np.int32))


def carry(planes: Array, flow: Flow, *, nearest: bool = False, outside: float | None = None) -> Array:
    """Warp planes of the earlier frame to the present one.

    Args:
        planes: `[h, w]` or `[C, h, w]`, on any raster; float32, or whole numbers or bool with `nearest`.
        flow: Backward flow from the present frame to the planes'.
        nearest: Take the nearest sample instead of the linear blend of four; needed for ids.
        outside: Value of content from outside the earlier frame; None continues the border.

    Returns:
        A new array of the planes' shape and dtype.

    Raises:
        ValueError: Whole numbers or bool without `nearest` (a blend of two ids is a third id), float other than
            float32, an empty plane, or another number of axes.
    """
    if planes.ndim not in (2, 3) or 0 in planes.shape:
        raise ValueError(f"planes are [h, w] or [C, h, w] and not empty, got {list(planes.shape)}")
    if planes.dtype != namespace(planes).float32:
        if isinstance(planes, np.ndarray) and planes.dtype not in _ID_TYPES:
            raise ValueError(f"planes are float32, or {', '.join(map(str, _ID_TYPES))} for ids; got {planes.dtype}")
        if not nearest:
            raise ValueError(f"planes of {planes.dtype} hold ids and need nearest=True")
    hw = planes.shape[-2], planes.shape[-1]
    moved = remap(planes, flow.map_px(hw), nearest=nearest)
    return moved if outside is None else blotted(moved, flow.within(hw), outside)


def carried_points(points_xy: FloatArray, flow: Flow) -> tuple[FloatArray, FloatArray]:
    """Return the present places of points of the earlier frame.

    The flow is backward, so each place is found by iteration.

    Args:
        points_xy: `[N, 2]`, normalised to [0, 1].
        flow: Backward flow from the present frame to the points', on the host.

    Returns:
        Their places, `[N, 2]`, which may lie outside of the frame, and the trust in each, `[N]` in [0, 1]; 0 for a
        point that nothing on the present frame comes from.
    """
    size = np.array(flow.hw[::-1], np.float32)
    then_px = points_xy * size - 0.5
    now_px = then_px
    for _ in range(_APPROACHES):
        offset_px = remap(channels_first(flow.offset_px), now_px[None])[:, 0].T
        missed_px = np.abs(now_px + offset_px - then_px).max(1, initial=0)
        now_px = then_px - offset_px
    trust = np.where(missed_px < 1, remap(flow.confidence, now_px[None])[0], 0.0)
    return (now_px + 0.5) / size, trust.astype(np.float32)


def compose(older: Flow, newer: Flow) -> Flow:
    """Compose two flows: present -> t-1 by `newer`, then t-1 -> k by `older`.

    Args:
        older: Backward flow from t-1 to k.
        newer: Backward flow from the present t to t-1; its raster is the result's.

    Returns:
        Backward flow from t to k. Confidence is the product of both along the path, and 0 wherever the path has left
        the frame; the residual is the newer flow's.
    """
    older = older.resized(newer.hw)
    first_map = newer.map_px(newer.hw)
    offset_px = channels_last(remap(channels_first(older.offset_px), first_map)) + newer.offset_px
    trust = remap(older.confidence, first_map) * newer.confidence
    map_px = source_map(offset_px)
    within = inside(map_px)
    # A blend of four values can exceed 1 by a rounding.
    believed = at_most(trust * (newer.within(newer.hw) & within), 1.0)
    return Flow(offset_px, believed, newer.residual).with_map(map_px, within)


# The search ends at a quarter of the picture, where a patch of 8x8 covers 32x32 of its pixels. In a small picture, that
# is a whole object; a search on a finer level costs little there.
_FINEST_SCALES = ((14_000, 0), (56_000, 1), (math.inf, 2))
"""Largest number of pixels of a picture, and how often it is halved for the search."""
# OpenCV matches 8x8 patches: on pictures smaller than a few of them it aborts or reads past the picture.
_LEAST_SIDE_PX = 32
# `ultrafast` places its patches of 8x8 every 4 pixels. On pictures that hold many of them every 6 halves the search's
# time, and more rounds, which cost little, make up for most of it: on DAVIS, coverage at 40 tokens 0.817 -> 0.814,
# overlap of carried masks 0.771 -> 0.770. Every 5 on smaller ones, where what covers something is a few patches wide:
# on DAVIS at 640x360, coverage at 24 tokens 0.833 -> 0.831, overlap 0.762 -> 0.764.
_SEARCHES = ((40_000, 4, 12), (80_000, 5, 16), (math.inf, 6, 16))
"""Pixel count below which a search applies, its patch stride, and its iterations."""


class DisFlow:
    """Dense inverse search on the grey pictures (Kroeger, Timofte, Dai and Van Gool, ECCV 2016), by OpenCV.

    Pictures with a side below 32 px are continued by their border for the search, so that flow there is found as far as
    their content allows; without content it is zero.
    """

    def __init__(self) -> None:
        self._search = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_ULTRAFAST)
        # OpenCV gets the reduced pictures that it would compute itself for a search that ends at a smaller size.
        self._search.setFinestScale(0)
        self.reduction = 1

    def estimate(self, previous: FlowInput, present: FlowInput) -> Flow:
        hw, pixels = raster_hw(previous, present), present.grey.size // self.reduction**2
        scale = next(scale for most, scale in _FINEST_SCALES if pixels <= most)
        _, stride_px, rounds = next(search for search in _SEARCHES if pixels < search[0])
        self._search.setPatchStride(stride_px)
        self._search.setGradientDescentIterations(rounds)
        height, width = search_hw = reduced_hw(present.grey, self.reduction << scale)
        pair = [given.reduced(search_hw) for given in (present, previous)]
        below, right = max(0, _LEAST_SIDE_PX - height), max(0, _LEAST_SIDE_PX - width)
        if below or right:
            pair = [cv2.copyMakeBorder(picture, 0, below, 0, right, cv2.BORDER_REPLICATE) for picture in pair]
        offsets: FloatArray = self._search.calc(pair[0], pair[1], None)
        found = np.ascontiguousarray(offsets[:height, :width])
        return checked_flow(previous.reduced(hw), present.reduced(hw), resize_offsets(found, hw))
