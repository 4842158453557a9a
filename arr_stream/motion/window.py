"""Windows of new content between keyframes, and their joining with the embedding in use."""

from __future__ import annotations

from dataclasses import dataclass, replace

import cv2
import numpy as np

from arr_stream.motion.carry import carry
from arr_stream.motion.flow import Flow
from arr_stream.texture.pixels import resized
from arr_stream.types import BoolArray, FloatArray, Frame, Grid, IntArray

_LEAST_NEW = np.ones((3, 3), np.uint8)
"""Smallest block of new half cells; a smaller one is a lost edge, or a strip uncovered by a panning camera."""
_LEAST_STRANGE = 3
"""Fewest half cells of new colours that make a place stand out."""
_SHADES = 16
"""Levels of red, green and blue each, half as many as in packed colours."""
_RARE = 0.003
"""Share of a keyframe below which a colour counts as new."""
_LEAST_CELLS = 3
"""Shortest side of a window, in cells: a model trained on whole pictures fails on smaller parts."""

_PLANES_AT_ONCE = 64
"""Planes per warp, since OpenCV cannot warp hundreds at once."""


@dataclass(frozen=True, slots=True)
class Window:
    """A part of a frame in cells: rows `top` to `bottom` and columns `left` to `right`, the latter excluded."""

    top: int
    left: int
    bottom: int
    right: int

    @property
    def cells(self) -> int:
        return (self.bottom - self.top) * (self.right - self.left)

    def cut(self, frame: Frame, grid: Grid) -> tuple[Frame, Grid]:
        """Return the part as a separate frame, with its grid."""
        cell_w, cell_h = grid.cell_px
        rows = slice(round(self.top * cell_h), round(self.bottom * cell_h))
        columns = slice(round(self.left * cell_w), round(self.right * cell_w))
        part = replace(frame, rgb=np.ascontiguousarray(frame.rgb[rows, columns]))
        return part, Grid(part.size_wh, self.bottom - self.top, self.right - self.left)

    def on(self, hw: tuple[int, ...], grid: Grid) -> tuple[slice, slice]:
        """Return its rows and columns on a raster of the whole frame."""
        down, across = hw[0] / grid.rows, hw[1] / grid.columns
        return (
            slice(round(self.top * down), round(self.bottom * down)),
            slice(round(self.left * across), round(self.right * across)),
        )


class ShownColours:
    """Colours that a model has seen: those of a keyframe, and of windows since.

    New content is an object that came in, or uncovered ground. Ground mostly has colours that were visible before.

    Args:
        packed: `[h, w]`, the keyframe, as `packed_colours` with 5 bits of green packs it.
    """

    def __init__(self, packed: IntArray) -> None:
        self._counts = np.zeros((2 * _SHADES) ** 3)
        self._least = _RARE * packed.size
        self.add(packed)

    def add(self, packed: IntArray) -> None:
        """Add the colours of a part of a frame."""
        self._counts += np.bincount(packed.ravel(), minlength=len(self._counts))

    def lacking(self, packed: IntArray) -> FloatArray:
        """Return `[h, w]`: 1 where a colour and its neighbours are new, 0 elsewhere."""
        near = np.pad(self._counts.reshape((_SHADES, 2) * 3).sum((1, 3, 5)), 1)
        for axis in range(3):
            near = np.add.reduce([near.take(range(first, first + _SHADES), axis) for first in range(3)])
        rare = (near < self._least).repeat(2, 0).repeat(2, 1).repeat(2, 2)
        lacking: FloatArray = rare.ravel().take(packed).astype(np.float32)
        return lacking


def window_around(new: BoolArray, strange: FloatArray, grid: Grid) -> tuple[Window, bool] | None:
    """Return the next window, and whether it has new colours; None if nothing is new.

    Args:
        new: `[2*gh, 2*gw]`, places that the keyframe does not cover.
        strange: `[2*gh, 2*gw]` in [0, 1], share of colours that the model has not seen.
        grid: The cells.
    """
    opened = cv2.morphologyEx(new.astype(np.uint8), cv2.MORPH_OPEN, _LEAST_NEW, borderValue=0)
    count, labels, boxes, _ = cv2.connectedComponentsWithStats(opened)
    if count == 1:
        return None
    strangeness = np.bincount(labels.ravel(), strange.ravel(), count)[1:]
    place = 1 + int(strangeness.argmax())
    if known := strangeness.max() < _LEAST_STRANGE:
        place = 1 + int(boxes[1:, cv2.CC_STAT_AREA].argmax())
    x, y, w, h = cv2.boundingRect(((labels == place) & (known | (strange > 0))).astype(np.uint8))
    top, bottom = _side(y, h, grid.rows)
    left, right = _side(x, w, grid.columns)
    return Window(top, left, bottom, right), not known


def inner_places(new: BoolArray) -> BoolArray:
    """Return the new places `[h, w]` that do not reach the edge of the picture."""
    outside = np.ones((new.shape[0] + 2, new.shape[1] + 2), np.uint8)
    outside[1:-1, 1:-1] = new
    cv2.floodFill(outside, None, (0, 0), 2)
    return np.asarray(outside[1:-1, 1:-1] == 1)


def _side(start: int, length: int, cells: int) -> tuple[int, int]:
    """Return the first cell and the end, along a side of `cells`, around `length` half cells from `start`."""
    first, end, least = start // 2, (start + length + 1) // 2, min(cells, _LEAST_CELLS)
    if end - first < least:
        first = min(max(0, round(start / 2 + length / 4 - least / 2)), cells - least)
        end = first + least
    return first, end


def joined(known: FloatArray, flow: Flow, found: FloatArray, window: Window, grid: Grid) -> FloatArray:
    """Join the embedding of an earlier frame with that of a window of a later one, on the later frame.

    Args:
        known: `[D, h, w]` of unit length.
        flow: Backward flow from the later frame to the earlier, on the host.
        found: `[D, h', w']` of unit length, in the window alone.
        window: The window.
        grid: The cells.

    Returns:
        `[D, h, w]` of unit length.
    """
    whole = np.empty_like(known)
    for first in range(0, len(known), _PLANES_AT_ONCE):
        some = slice(first, first + _PLANES_AT_ONCE)
        whole[some] = carry(known[some], flow)
    rows, columns = window.on(known.shape[1:], grid)
    part = whole[:, rows, columns]
    if found.shape != part.shape:
        found = np.stack([resized(plane, part.shape[1:]) for plane in found])
    part[:] = found
    # A blend of two directions is shorter than either.
    whole /= np.maximum(np.sqrt(np.einsum("dhw,dhw->hw", whole, whole)), 1e-6)
    return whole
