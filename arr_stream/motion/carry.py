"""Carrying of planes and points from an earlier frame to the present one."""

from __future__ import annotations

import numpy as np

from arr_stream.motion.flow import Flow, source_map
from arr_stream.texture.arrays import Array, at_most, channels_first, channels_last, namespace
from arr_stream.texture.pixels import blotted, inside, remap
from arr_stream.types import FloatArray

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
