"""Colours for maps: tables of 256 colours, colours of ids, and the colour wheel of motion."""

from __future__ import annotations

import functools

import cv2
import numpy as np
import numpy.typing as npt

from arr_stream.types import ByteArray, FloatArray, IntArray

_DIVERGING = (
    (33, 102, 172),
    (103, 169, 207),
    (209, 229, 240),
    (247, 247, 247),
    (253, 219, 199),
    (239, 138, 98),
    (178, 24, 43),
)
"""ColorBrewer's RdBu, blue below zero and red above."""


@functools.cache
def table(name: str) -> ByteArray:
    """`[256, 3]` RGB; `heat` (inferno) and `value` (viridis) are perceptually even, `signed` is white at its middle."""
    if name == "signed":
        anchors = np.array(_DIVERGING, dtype=np.float64)
        places = np.linspace(0, len(anchors) - 1, 256)
        columns = [np.interp(places, np.arange(len(anchors)), anchors[:, i]) for i in range(3)]
        return np.stack(columns, axis=1).round().astype(np.uint8)
    ramp = np.arange(256, dtype=np.uint8)[:, None]
    maps = {"heat": cv2.COLORMAP_INFERNO, "value": cv2.COLORMAP_VIRIDIS}
    return np.ascontiguousarray(cv2.applyColorMap(ramp, maps[name])[:, 0, ::-1])


def coloured(values: npt.NDArray[np.floating], low: float, high: float, name: str) -> ByteArray:
    """`[h, w, 3]` RGB of `[h, w]` values, `low` and below to `high` and above; what is not a number counts as `low`."""
    scaled = (np.nan_to_num(values, nan=low) - low) * (255.0 / (high - low))
    return np.asarray(table(name)[np.clip(scaled.round(), 0, 255).astype(np.uint8)])


def id_colours(ids: IntArray) -> ByteArray:
    """`[..., 3]` RGB of ids: the same id has the same colour in every frame, near ids have distant ones."""
    count = max(256, int(ids.max(initial=0)) + 1)
    return np.asarray(_id_table(1 << (count - 1).bit_length())[np.maximum(ids, 0)])


@functools.lru_cache(maxsize=8)
def _id_table(count: int) -> ByteArray:
    ids = np.arange(count)
    # Steps of the golden ratio never come back near a hue that is in use.
    hue = (ids * 0.61803398875 + 0.08) % 1.0
    saturation = np.choose(ids % 3, (0.62, 0.82, 0.48))
    value = np.choose(ids // 3 % 3, (0.95, 0.78, 0.88))
    hsv = np.stack([hue * 360.0, saturation, value], axis=1).astype(np.float32)[None]
    return np.asarray((cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB)[0] * 255).round(), dtype=np.uint8)


def wheel(motion_px: FloatArray, full_px: float) -> ByteArray:
    """`[h, w, 3]` RGB of `[h, w, 2]` motion `(dx, dy)`: hue is direction, red to the right; strength is saturation.

    White stands still; `full_px` and faster has the full colour.
    """
    magnitude, angle = cv2.cartToPolar(
        np.ascontiguousarray(motion_px[..., 0]), np.ascontiguousarray(motion_px[..., 1]), angleInDegrees=True
    )
    saturation = np.minimum(magnitude / np.float32(full_px), 1.0)
    hsv = np.stack([angle, saturation, np.ones_like(angle)], axis=2)
    return np.asarray(cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB) * 255, dtype=np.uint8)
