"""What is new in the picture between keyframes, and how a look at it joins what is known of the rest."""

from __future__ import annotations

from dataclasses import dataclass, replace

import cv2
import numpy as np
import numpy.typing as npt

from arr_stream.motion.carry import carry
from arr_stream.motion.flow import Flow
from arr_stream.texture.pixels import resized
from arr_stream.types import FloatArray, Frame, Grid

BoolArray = npt.NDArray[np.bool_]

_LEAST_NEW = np.ones((4, 4), np.uint8)
"""Half cells that must be new together: less is an edge that was lost, or the sliver that a turning camera uncovers."""
_LEAST_CELLS = 3
"""Shortest side of a window: on less of a picture a model that was trained on whole ones sees little."""

_PLANES_AT_ONCE = 64
"""OpenCV cannot move hundreds at once."""


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
        """The part as a frame of its own, with its cells."""
        cell_w, cell_h = grid.cell_px
        rows = slice(round(self.top * cell_h), round(self.bottom * cell_h))
        columns = slice(round(self.left * cell_w), round(self.right * cell_w))
        part = replace(frame, rgb=np.ascontiguousarray(frame.rgb[rows, columns]), motion_vectors=None)
        return part, Grid(part.size_wh, self.bottom - self.top, self.right - self.left)

    def on(self, hw: tuple[int, ...], grid: Grid) -> tuple[slice, slice]:
        """Its rows and columns on a raster of the whole frame."""
        down, across = hw[0] / grid.rows, hw[1] / grid.columns
        return (
            slice(round(self.top * down), round(self.bottom * down)),
            slice(round(self.left * across), round(self.right * across)),
        )


def window_around(new: BoolArray, grid: Grid) -> Window | None:
    """The window around the largest place that is new, None where there is none.

    Args:
        new: `[2*gh, 2*gw]`, where the picture cannot be told from the keyframe.
        grid: The cells.
    """
    opened = cv2.morphologyEx(new.astype(np.uint8), cv2.MORPH_OPEN, _LEAST_NEW, borderValue=0)
    count, _, boxes, _ = cv2.connectedComponentsWithStats(opened)
    if count == 1:
        return None
    x, y, w, h, _ = boxes[1 + int(boxes[1:, cv2.CC_STAT_AREA].argmax())]
    top, bottom = _side(int(y), int(h), grid.rows)
    left, right = _side(int(x), int(w), grid.columns)
    return Window(top, left, bottom, right)


def _side(start: int, length: int, cells: int) -> tuple[int, int]:
    """First cell and end, along a side of so many cells, around `length` half cells from `start` on."""
    first, end, least = start // 2, (start + length + 1) // 2, min(cells, _LEAST_CELLS)
    if end - first < least:
        first = min(max(0, round(start / 2 + length / 4 - least / 2)), cells - least)
        end = first + least
    return first, end


def fitted(mask: BoolArray, hw: tuple[int, ...]) -> BoolArray:
    """The mask on a raster of `(h, w)`."""
    return np.asarray(cv2.resize(mask.astype(np.uint8), hw[::-1], interpolation=cv2.INTER_NEAREST) > 0)


def joined(known: FloatArray, way: Flow, found: FloatArray, seen: BoolArray, window: Window, grid: Grid) -> FloatArray:
    """What is known of an earlier frame and what was found in a window of a later one, as one map of the later one.

    Args:
        known: `[D, h, w]` of unit length.
        way: Back from the later frame to the earlier, on the host.
        found: `[D, h', w']` of unit length, in the window alone.
        seen: `[2*gh, 2*gw]`, where that counts; nowhere outside of the window.
        window: Where it is.
        grid: The cells.

    Returns:
        `[D, h, w]` of unit length.
    """
    whole = np.empty_like(known)
    for first in range(0, len(known), _PLANES_AT_ONCE):
        some = slice(first, first + _PLANES_AT_ONCE)
        whole[some] = carry(known[some], way)
    rows, columns = window.on(known.shape[1:], grid)
    part = whole[:, rows, columns]
    if found.shape != part.shape:
        found = np.stack([resized(plane, part.shape[1:]) for plane in found])
    np.copyto(part, found, where=fitted(seen, known.shape[1:])[rows, columns])
    # A blend of two directions is shorter than either.
    whole /= np.maximum(np.sqrt(np.einsum("dhw,dhw->hw", whole, whole)), 1e-6)
    return whole
