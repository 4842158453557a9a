"""Pictures of what the pipeline knows about a frame: one function a view, all at the frame's own size."""

from __future__ import annotations

import difflib
from collections.abc import Callable

import cv2
import numpy as np
import numpy.typing as npt

from arr_stream.config import Settings
from arr_stream.draw import palette, typeface
from arr_stream.draw.overlay import draw_patches, enlarged, grey_of, heat_over, stroke_px
from arr_stream.draw.strip import font_px
from arr_stream.errors import InvalidSetting
from arr_stream.patch_set import PatchSet
from arr_stream.texture.layout import CHANNEL_INDEX, CHANNELS, Channel
from arr_stream.types import ByteArray, FloatArray, Frame, IntArray

View = Callable[[Frame, PatchSet], ByteArray]

CHANNEL_PREFIX = "channel:"
_TEXT_COLOUR = (64, 224, 208)
_LEAST_FULL_SPEED = 0.004
"""Motion of this share of the frame's width has the full colour at least, so that noise stays pale."""


def check_view(view: str) -> str:
    """The view's name, if there is such a view.

    Raises:
        InvalidSetting: Names the nearest one.
    """
    if view.startswith(CHANNEL_PREFIX):
        name = view.removeprefix(CHANNEL_PREFIX)
        if name not in CHANNEL_INDEX:
            near = difflib.get_close_matches(name, CHANNEL_INDEX, n=1, cutoff=0.0)[0]
            raise InvalidSetting(
                f"view {view}: there is no channel {name!r}; did you mean {CHANNEL_PREFIX}{near}?",
                remedy="`arr-stream channels` lists all 40",
            )
    elif view not in VIEWS:
        known = [*VIEWS, *(CHANNEL_PREFIX + name for name in CHANNEL_INDEX)]
        near = difflib.get_close_matches(view, known, n=1, cutoff=0.0)[0]
        raise InvalidSetting(
            f"view {view}: there is no such view; did you mean {near}?",
            remedy=f"choose one of {', '.join(VIEWS)} or {CHANNEL_PREFIX}NAME",
        )
    return view


def render(view: str, frame: Frame, patches: PatchSet) -> ByteArray:
    """A view of a frame, `[H, W, 3]` uint8 RGB at the frame's size.

    Raises:
        InvalidSetting: There is no such view.
    """
    check_view(view)
    if view.startswith(CHANNEL_PREFIX):
        return channel_view(frame, patches, CHANNELS[CHANNEL_INDEX[view.removeprefix(CHANNEL_PREFIX)]])
    return VIEWS[view](frame, patches)


def patches_view(frame: Frame, patches: PatchSet) -> ByteArray:
    """The chosen cells bright, the rest dimmed."""
    return draw_patches(frame.rgb, patches, Settings().video.dim)


def relevance_view(frame: Frame, patches: PatchSet) -> ByteArray:
    """The final score of every cell as heat over the grey picture, 0 to 1."""
    colours = palette.coloured(_resized(patches.relevance, frame.size_wh), 0.0, 1.0, "heat")
    picture = heat_over(frame.rgb, colours, 0.62)
    _legend(picture, "relevance", "0", "1", palette.table("heat"))
    return picture


def clusters_view(frame: Frame, patches: PatchSet) -> ByteArray:
    """Regions in colours that stay theirs between keyframes, with their borders."""
    labels = _ids(patches, frame.size_wh)
    picture = heat_over(frame.rgb, palette.id_colours(labels), 0.5)
    border = np.zeros(labels.shape, dtype=bool)
    border[:, 1:] |= labels[:, 1:] != labels[:, :-1]
    border[1:] |= labels[1:] != labels[:-1]
    stroke = stroke_px(frame.size_wh[1])
    if stroke > 1:
        border = cv2.dilate(border.view(np.uint8), np.ones((stroke, stroke), np.uint8)).view(bool)
    picture[border] = (245, 245, 245)
    return picture


def flow_view(frame: Frame, patches: PatchSet) -> ByteArray:
    """Which way things move, on the usual wheel of colours, over the grey picture; without flow all stands still."""
    flow = getattr(patches, "flow", None)
    picture = grey_of(frame.rgb)
    motion = np.zeros((1, 1, 2), np.float32) if flow is None else _motion_px(flow.to_numpy().offset_px, frame.size_wh)
    speed = np.hypot(motion[..., 0], motion[..., 1])
    full_px = max(float(np.percentile(speed, 99)), _LEAST_FULL_SPEED * frame.size_wh[0], 0.5)
    colours = enlarged(palette.wheel(motion, full_px), frame.size_wh, smooth=True)
    picture = np.asarray(cv2.multiply(cv2.convertScaleAbs(picture, alpha=0.6, beta=102), colours, scale=1 / 255))
    _wheel_legend(picture, f"{full_px:.1f} px a frame")
    return picture


def text_view(frame: Frame, patches: PatchSet) -> ByteArray:
    """Where something is written: a tint, and a box around every place."""
    surely = _resized(_plane(patches, "text"), frame.size_wh)
    share = np.clip(surely, 0.0, 1.0)[..., None].astype(np.float32)
    ground = cv2.convertScaleAbs(frame.rgb, alpha=0.5)
    bright = cv2.addWeighted(frame.rgb, 0.8, np.full_like(frame.rgb, _TEXT_COLOUR), 0.2, 0.0)
    picture: ByteArray = (ground + (bright.astype(np.float32) - ground) * share).astype(np.uint8)
    outlines, _ = cv2.findContours((surely > 0.5).astype(np.uint8), cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
    boxes = [cv2.boxPoints(cv2.minAreaRect(outline)).round().astype(np.int32) for outline in outlines]
    cv2.polylines(picture, boxes, True, _TEXT_COLOUR, stroke_px(frame.size_wh[1]), cv2.LINE_AA)
    return picture


def channel_view(frame: Frame, patches: PatchSet, channel: Channel) -> ByteArray:
    """One of the 40 channels over its whole range: ids in distinct colours, signed values white at zero."""
    if channel.high is None:
        return palette.id_colours(_ids(patches, frame.size_wh))
    name = "signed" if channel.low < 0 else "value"
    smooth = channel.interpolation == "linear"
    values = _resized(_plane(patches, channel.name), frame.size_wh, smooth=smooth)
    picture = palette.coloured(values, channel.low, channel.high, name)
    _legend(picture, channel.name.replace("_", " "), f"{channel.low:g}", f"{channel.high:g}", palette.table(name))
    return picture


def source_view(frame: Frame, patches: PatchSet) -> ByteArray:
    """The frame as it came."""
    return frame.rgb.copy()


VIEWS: dict[str, View] = {
    "source": source_view,
    "patches": patches_view,
    "relevance": relevance_view,
    "clusters": clusters_view,
    "flow": flow_view,
    "text": text_view,
}


def _plane(patches: PatchSet, name: str) -> npt.NDArray[np.float32] | npt.NDArray[np.int32]:
    return patches.texture.plane(name)


def _ids(patches: PatchSet, size_wh: tuple[int, int]) -> IntArray:
    labels = enlarged(np.ascontiguousarray(_plane(patches, "cluster")), size_wh, smooth=False)
    return labels.astype(np.int32, copy=False)


def _resized(values: npt.NDArray[np.generic], size_wh: tuple[int, int], *, smooth: bool = True) -> FloatArray:
    """A map of any size, one row or column too, brought to the picture's."""
    plane: FloatArray = np.ascontiguousarray(values, dtype=np.float32)
    return np.asarray(enlarged(plane, size_wh, smooth=smooth), dtype=np.float32)


def _motion_px(offset_px: FloatArray, size_wh: tuple[int, int]) -> FloatArray:
    """Forward motion in pixels of the frame: an offset says where things came from, in pixels of its own raster."""
    height, width = offset_px.shape[:2]
    scale = np.array([size_wh[0] / width, size_wh[1] / height], dtype=np.float32)
    return np.asarray(-offset_px * scale, dtype=np.float32)


def _legend(picture: ByteArray, title: str, low: str, high: str, colours: ByteArray) -> None:
    """Name and range of a map in the upper left corner, where the picture has room for it."""
    size = font_px(*picture.shape[1::-1])
    if not size:
        return
    pad, bar_w, bar_h = round(size * 0.5), size * 6, max(4, round(size * 0.5))
    line = typeface.mask(title, size)
    texts = [(title, typeface.WHITE), (low, typeface.GREY)]
    text_w = sum(typeface.width_px(text, size) + pad for text, _ in texts)
    box_w = min(picture.shape[1], pad * 3 + text_w + bar_w + typeface.width_px(high, size))
    panel = picture[pad : pad * 2 + line.shape[0], pad : pad + box_w]
    panel[...] = cv2.convertScaleAbs(panel, alpha=0.2, beta=5)
    x, y = pad, (panel.shape[0] - line.shape[0]) // 2
    for text, colour in texts:
        x = typeface.draw(panel, text, (x, y), size, colour) + pad
    ramp = colours[np.linspace(0, 255, bar_w).round().astype(int)]
    top = (panel.shape[0] - bar_h) // 2
    room = panel[top : top + bar_h, x : x + bar_w]
    room[...] = ramp[: room.shape[1]]
    typeface.draw(panel, high, (x + bar_w + pad, y), size, typeface.GREY)


def _wheel_legend(picture: ByteArray, label: str) -> None:
    size = font_px(*picture.shape[1::-1])
    if not size:
        return
    radius, pad = round(size * 1.6), round(size * 0.5)
    y, x = np.mgrid[-radius : radius + 1, -radius : radius + 1].astype(np.float32)
    disc = palette.wheel(np.stack([x, y], axis=2), float(radius))
    corner = picture[pad : pad + 2 * radius + 1, pad : pad + 2 * radius + 1]
    inside = np.hypot(x, y) <= radius
    corner[inside] = disc[inside]
    line = typeface.mask(label, size)
    panel = picture[pad + radius - line.shape[0] // 2 :, 2 * pad + 2 * radius :][: line.shape[0], : line.shape[1] + pad]
    panel[...] = cv2.convertScaleAbs(panel, alpha=0.2, beta=5)
    typeface.draw(panel, label, (pad // 2, 0), size, typeface.WHITE)
