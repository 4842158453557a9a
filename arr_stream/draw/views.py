"""Views of the pipeline's data about a frame: one function a view, all at the frame's own size."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable
from typing import Any, TypeVar

import cv2
import numpy as np
import numpy.typing as npt

from arr_stream.draw.overlay import draw_patches, stroke_px
from arr_stream.errors import InvalidSetting
from arr_stream.patch_set import PatchSet
from arr_stream.texture.layout import CHANNEL_INDEX, CHANNELS, Channel
from arr_stream.types import ByteArray, FloatArray, Frame, IntArray

Number = TypeVar("Number", bound="np.number[Any]")
View = Callable[[Frame, PatchSet], ByteArray]

CHANNEL_PREFIX = "channel:"
_TEXT_COLOUR = (64, 224, 208)
_LEAST_FULL_SPEED = 0.004
"""Least motion with the full colour, as a share of the frame's width, so that noise stays pale."""


def check_view(view: str) -> str:
    """Return the view's name if there is such a view.

    Raises:
        InvalidSetting: The view does not exist; names the nearest one.
    """
    known = [*VIEWS, *(CHANNEL_PREFIX + name for name in CHANNEL_INDEX)]
    if view not in known:
        near = difflib.get_close_matches(view, known, n=1, cutoff=0.0)[0]
        raise InvalidSetting(
            f"view {view}: there is no such view; did you mean {near}?",
            remedy=f"choose one of {', '.join(VIEWS)} or {CHANNEL_PREFIX}NAME, of the 40 in `arr-stream channels`",
        )
    return view


def render(view: str, frame: Frame, patches: PatchSet) -> ByteArray:
    """Return a view of a frame, `[H, W, 3]` uint8 RGB at the frame's size.

    Args:
        view: Its name.
        frame, patches: The frame and its patch set.

    Raises:
        InvalidSetting: There is no such view.
    """
    check_view(view)
    if view.startswith(CHANNEL_PREFIX):
        return channel_view(frame, patches, CHANNELS[CHANNEL_INDEX[view.removeprefix(CHANNEL_PREFIX)]])
    return VIEWS[view](frame, patches)


def patches_view(frame: Frame, patches: PatchSet) -> ByteArray:
    """Draw the chosen cells bright, the rest dimmed."""
    return draw_patches(frame.rgb, patches)


def relevance_view(frame: Frame, patches: PatchSet) -> ByteArray:
    """Draw the final score of every cell as heat over the grey picture, 0 to 1."""
    return heat_over(frame.rgb, coloured(_enlarged(patches.relevance, frame.size_wh), 0.0, 1.0, "inferno"), 0.62)


def clusters_view(frame: Frame, patches: PatchSet) -> ByteArray:
    """Draw regions with their borders, in colours that stay the same between keyframes."""
    labels = _ids(patches, frame.size_wh)
    picture = heat_over(frame.rgb, id_colours(labels), 0.5)
    border = np.zeros(labels.shape, dtype=bool)
    border[:, 1:] |= labels[:, 1:] != labels[:, :-1]
    border[1:] |= labels[1:] != labels[:-1]
    stroke = stroke_px(frame.size_wh[1])
    if stroke > 1:
        border = cv2.dilate(border.view(np.uint8), np.ones((stroke, stroke), np.uint8)).view(bool)
    picture[border] = (245, 245, 245)
    return picture


def flow_view(frame: Frame, patches: PatchSet) -> ByteArray:
    """Draw optical flow on the usual colour wheel over the grey picture; without flow, no motion."""
    motion = np.zeros((1, 1, 2), np.float32)
    if patches.flow is not None:
        # From backward flow in pixels of its own raster to forward motion in pixels of the frame.
        offset_px = patches.flow.to_numpy().offset_px
        motion = -offset_px * np.divide(frame.size_wh, offset_px.shape[1::-1]).astype(np.float32)
    speed = np.hypot(motion[..., 0], motion[..., 1])
    full_px = max(float(np.percentile(speed, 99)), _LEAST_FULL_SPEED * frame.size_wh[0], 0.5)
    colours = _enlarged(colour_wheel(motion, full_px), frame.size_wh)
    ground = cv2.convertScaleAbs(grey_of(frame.rgb), alpha=0.6, beta=102)
    return np.asarray(cv2.multiply(ground, colours, scale=1 / 255), dtype=np.uint8)


def text_view(frame: Frame, patches: PatchSet) -> ByteArray:
    """Draw text regions: a tint, and a box around each."""
    surely = _enlarged(patches.texture.plane("text"), frame.size_wh)
    share = np.clip(surely, 0.0, 1.0)[..., None].astype(np.float32)
    ground = cv2.convertScaleAbs(frame.rgb, alpha=0.5)
    bright = cv2.addWeighted(frame.rgb, 0.8, np.full_like(frame.rgb, _TEXT_COLOUR), 0.2, 0.0)
    picture: ByteArray = (ground + (bright.astype(np.float32) - ground) * share).astype(np.uint8)
    outlines, _ = cv2.findContours((surely > 0.5).astype(np.uint8), cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
    boxes = [cv2.boxPoints(cv2.minAreaRect(outline)).round().astype(np.int32) for outline in outlines]
    cv2.polylines(picture, boxes, True, _TEXT_COLOUR, stroke_px(frame.size_wh[1]), cv2.LINE_AA)
    return picture


def channel_view(frame: Frame, patches: PatchSet, channel: Channel) -> ByteArray:
    """Draw one of the 40 channels over its whole range: ids in distinct colours, signed values white at zero."""
    if channel.high is None:
        return id_colours(_ids(patches, frame.size_wh))
    smooth = channel.interpolation == "linear"
    plane = patches.texture.plane(channel.name).astype(np.float32, copy=False)
    values = _enlarged(plane, frame.size_wh, smooth=smooth)
    return coloured(values, channel.low, channel.high, "RdBu_r" if channel.low < 0 else "viridis")


def source_view(frame: Frame, patches: PatchSet) -> ByteArray:
    """Return a copy of the picture of the frame."""
    return frame.rgb.copy()


def history_view(frame: Frame, patches: PatchSet) -> ByteArray:
    """Draw the history of queries and gaze (channel 38) as heat over the darkened picture."""
    plane = patches.texture.plane("attention_history").astype(np.float32, copy=False)
    values = _enlarged(plane, frame.size_wh)
    dark = cv2.convertScaleAbs(grey_of(frame.rgb), alpha=0.45)
    return np.asarray(cv2.add(dark, coloured(values, 0.0, 1.0, "inferno")), dtype=np.uint8)


VIEWS: dict[str, View] = {
    "source": source_view,
    "patches": patches_view,
    "relevance": relevance_view,
    "clusters": clusters_view,
    "flow": flow_view,
    "text": text_view,
    "history": history_view,
}


def _ids(patches: PatchSet, size_wh: tuple[int, int]) -> IntArray:
    return _enlarged(patches.texture.plane("cluster").astype(np.int32, copy=False), size_wh, smooth=False)


def _enlarged(values: npt.NDArray[Number], size_wh: tuple[int, int], *, smooth: bool = True) -> npt.NDArray[Number]:
    """Resize a map of any size, one row or column too, to the picture's; ids and masks are not `smooth`."""
    if values.shape[1::-1] == size_wh:
        return values
    method = cv2.INTER_LINEAR if smooth else cv2.INTER_NEAREST
    plane: Any = np.ascontiguousarray(values)
    return np.asarray(cv2.resize(plane, size_wh, interpolation=method), dtype=values.dtype)


def grey_of(rgb: ByteArray) -> ByteArray:
    """Return the picture's lightness, `[H, W, 3]`, as a ground for colours."""
    return np.asarray(cv2.cvtColor(cv2.cvtColor(rgb, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB), dtype=np.uint8)


def heat_over(rgb: ByteArray, colours: ByteArray, strength: float) -> ByteArray:
    """Blend colours over the grey picture."""
    return np.asarray(cv2.addWeighted(grey_of(rgb), 1.0 - strength, colours, strength, 0.0), dtype=np.uint8)


@functools.cache
def colour_table(name: str) -> ByteArray:
    """Return a colour map of matplotlib, `[256, 3]` RGB."""
    import matplotlib

    return np.asarray(matplotlib.colormaps[name](np.arange(256), bytes=True)[:, :3])


def coloured(values: npt.NDArray[np.floating], low: float, high: float, name: str) -> ByteArray:
    """Return `[h, w, 3]` RGB of `[h, w]` values between `low` and `high`, clamped; NaN counts as `low`."""
    scaled = (np.nan_to_num(values, nan=low) - low) * (255.0 / (high - low))
    return np.asarray(colour_table(name)[np.clip(scaled.round(), 0, 255).astype(np.uint8)])


def id_colours(ids: IntArray) -> ByteArray:
    """Return `[..., 3]` RGB of ids, one of 256 colours: the same in every frame, and distant ones for near ids."""
    return np.asarray(_id_table()[ids % 256])


@functools.cache
def _id_table() -> ByteArray:
    # Steps of the golden ratio never come back near a hue that is in use.
    hue = np.arange(256) * 0.61803398875 % 1.0 * 360.0
    hsv = np.stack([hue, np.full(256, 0.7), np.full(256, 0.9)], axis=1).astype(np.float32)[None]
    return np.asarray((cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB)[0] * 255).round(), dtype=np.uint8)


def colour_wheel(motion_px: FloatArray, full_px: float) -> ByteArray:
    """Return `[h, w, 3]` RGB of `[h, w, 2]` motion `(dx, dy)`: hue is direction, red to the right; strength is
    saturation.

    White is no motion; `full_px` and faster has the full colour.
    """
    magnitude, angle = cv2.cartToPolar(
        np.ascontiguousarray(motion_px[..., 0]), np.ascontiguousarray(motion_px[..., 1]), angleInDegrees=True
    )
    saturation = np.minimum(magnitude / np.float32(full_px), 1.0)
    hsv = np.stack([angle, saturation, np.ones_like(angle)], axis=2)
    return np.asarray(cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB) * 255, dtype=np.uint8)
