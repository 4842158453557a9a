"""Windows of new content between keyframes, and their joining with the embedding in use."""

from __future__ import annotations

from dataclasses import dataclass, replace

import cv2
import numpy as np

from arr_stream.motion.carry import carry
from arr_stream.motion.flow import Flow
from arr_stream.texture.pixels import resized
from arr_stream.types import BoolArray, FloatArray, Frame, Grid

_LEAST_NEW = np.ones((3, 3), np.uint8)
"""Smallest block of new half cells; a smaller one is a lost edge, or a strip uncovered by a panning camera."""
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


def window_around(new: BoolArray, grid: Grid) -> Window | None:
    """Return the window around the largest of the new places `[2*gh, 2*gw]`; None if nothing is new."""
    opened = cv2.morphologyEx(new.astype(np.uint8), cv2.MORPH_OPEN, _LEAST_NEW, borderValue=0)
    count, _, boxes, _ = cv2.connectedComponentsWithStats(opened)
    if count == 1:
        return None
    x, y, w, h, _ = max(boxes[1:].tolist(), key=lambda box: box[cv2.CC_STAT_AREA])
    top, bottom = _side(y, h, grid.rows)
    left, right = _side(x, w, grid.columns)
    return Window(top, left, bottom, right)


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
