"""Bring what was known about an earlier frame to the present one."""

from __future__ import annotations

import numpy as np

from arr_stream.motion.flow import Flow, source_map
from arr_stream.texture.arrays import Array, channels_first, channels_last, namespace
from arr_stream.texture.pixels import blotted, inside, remap

# What cv2.remap moves without changing a bit; it has no kernels for others.
_ID_TYPES = tuple(np.dtype(kind) for kind in (np.bool_, np.uint8, np.int8, np.uint16, np.int16, np.int32))


def carry(planes: Array, flow: Flow, *, nearest: bool = False, outside: float | None = None) -> Array:
    """Sample planes of the earlier frame at where the present frame's content was.

    Args:
        planes: `[h, w]` or `[C, h, w]`, on any raster; float32, or whole numbers or bool with `nearest`.
        flow: Backward flow from the present frame to the planes'.
        nearest: Take the nearest sample instead of the linear blend of four; needed for ids.
        outside: Value of what came from outside the earlier frame; None continues the border.

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


def compose(older: Flow, newer: Flow) -> Flow:
    """One flow over two: present -> t-1 by `newer`, then t-1 -> k by `older`.

    Args:
        older: Backward flow from t-1 to k.
        newer: Backward flow from the present t to t-1; its raster is the result's.

    Returns:
        Backward flow from t to k. Confidence is the product of both along the path, and 0 wherever the path has left
        the frame; the residual is the newer flow's.
    """
    older, xp = older.resized(newer.hw), namespace(newer.offset_px)
    first_map = newer.map_px(newer.hw)
    offset_px = channels_last(remap(channels_first(older.offset_px), first_map)) + newer.offset_px
    trust = remap(older.confidence, first_map) * newer.confidence
    within = newer.within(newer.hw) & inside(source_map(offset_px))
    # A blend of four values can exceed 1 by a rounding.
    return Flow(offset_px, xp.clip(xp.where(within, trust, 0.0), None, 1.0), newer.residual)
