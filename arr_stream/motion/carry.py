"""Bring what was known about an earlier frame to the present one."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from arr_stream.motion.flow import Flow, inside, source_map
from arr_stream.types import FloatArray

# What cv2.remap moves without changing a bit; it has no kernels for others.
_ID_TYPES = tuple(np.dtype(kind) for kind in (np.bool_, np.uint8, np.int8, np.uint16, np.int16, np.int32))


def carry(
    plane: npt.NDArray[Any], flow: Flow, *, nearest: bool = False, outside: float | None = None
) -> npt.NDArray[Any]:
    """Sample a plane of the earlier frame at where the present frame's content was.

    Args:
        plane: `[h, w]` or channels last `[h, w, C]`, on any raster; float32, or whole numbers or bool with `nearest`.
        flow: Backward flow from the present frame to the plane's. To carry several planes of one size that is not
            the flow's, resize the flow once.
        nearest: Take the nearest sample instead of the linear blend of four; needed for ids.
        outside: Value of what came from outside the earlier frame; None continues the border.

    Returns:
        A new array of the plane's shape and dtype.

    Raises:
        ValueError: Whole numbers or bool without `nearest` (a blend of two ids is a third id), float other than
            float32, an empty plane, or another number of axes.
    """
    _check_plane(plane, nearest=nearest)
    map_px = flow.map_px((plane.shape[0], plane.shape[1]))
    carried = _remap(plane, map_px, cv2.INTER_NEAREST if nearest else cv2.INTER_LINEAR)
    if outside is not None:
        left_out = inside(map_px) == 0
        if left_out.any():
            carried[left_out] = outside
    return carried


def compose(older: Flow, newer: Flow) -> Flow:
    """One flow over two: present -> t-1 by `newer`, then t-1 -> k by `older`.

    Args:
        older: Backward flow from t-1 to k.
        newer: Backward flow from the present t to t-1; its raster is the result's.

    Returns:
        Backward flow from t to k. Confidence is the product of both along the path, and 0 wherever the path has left
        the frame; spans add up; the residual is the newer flow's.
    """
    older = older.resized(newer.hw)
    first_map = newer.map_px(newer.hw)
    offset_px = cv2.add(_remap(older.offset_px, first_map, cv2.INTER_LINEAR), newer.offset_px)
    trust = cv2.multiply(_remap(older.confidence, first_map, cv2.INTER_LINEAR), newer.confidence)
    within = cv2.bitwise_and(inside(first_map), inside(source_map(offset_px)))
    # A blend of four values can exceed 1 by a rounding.
    confidence: FloatArray = np.minimum(cv2.bitwise_and(trust, trust, mask=within), np.float32(1.0))
    return Flow(offset_px, confidence, newer.residual, older.span_frames + newer.span_frames)


def _check_plane(plane: npt.NDArray[Any], *, nearest: bool) -> None:
    if plane.ndim not in (2, 3) or plane.size == 0:
        raise ValueError(f"a plane is [h, w] or [h, w, C] and not empty, got {list(plane.shape)}")
    if plane.dtype == np.float32:
        return
    if plane.dtype not in _ID_TYPES:
        raise ValueError(f"a plane is float32, or {', '.join(map(str, _ID_TYPES))} for ids; got {plane.dtype}")
    if not nearest:
        raise ValueError(f"a plane of {plane.dtype} holds ids and needs nearest=True")


def _remap(plane: npt.NDArray[Any], map_px: FloatArray, interpolation: int) -> npt.NDArray[Any]:
    """`cv2.remap` with the border continued; exact to rounding with 1, 3 or 4 channels, to 1/32 px with others."""
    held = plane.view(np.uint8) if plane.dtype == np.bool_ else plane
    carried = cv2.remap(held, map_px, None, interpolation, borderMode=cv2.BORDER_REPLICATE)
    return np.asarray(carried).reshape(plane.shape).view(plane.dtype)
