"""What a model still has of a place that is not sent again: a dropped token stands for itself, from an earlier frame.

Rules that drop what did not change count on this. Judged by the cells of the present frame alone they lose every thing
that holds still; judged as if nothing ever aged they lose nothing at all. So a cell counts as standing while it still
looks as it did when it was last kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import cv2
import numpy as np

from arr_stream.selection.allocation import Allocation
from benchmarks.rivals.base import PIXELS_A_CELL, Clip, Mask


def standing(clip: Clip, chosen: Sequence[Allocation], tolerance: float) -> Iterator[Mask]:
    """Of every frame, `[gh, gw]` cells that were kept on it, or kept earlier and look the same within a tolerance.

    Only fine cells count. Compared are the same places: what a moving camera has carried elsewhere stands no longer.

    Args:
        clip: The frames.
        chosen: The cells of every frame, in order.
        tolerance: Largest mean absolute difference of a cell's RGB, in [0, 1], to when it was last kept.

    Raises:
        ValueError: Not one choice a frame.
    """
    if len(chosen) != len(clip):
        raise ValueError(f"{len(chosen)} choices for {len(clip)} frames")
    rows, columns = clip.grid.rows, clip.grid.columns
    known = np.zeros((rows, columns), bool)
    last = np.zeros_like(clip.rgb[0])
    side = np.ones((PIXELS_A_CELL, PIXELS_A_CELL), np.uint8)
    for picture, cells in zip(clip.rgb, chosen, strict=True):
        kept = np.zeros((rows, columns), np.uint8)
        fine = cells.level == 0
        kept[cells.rows[fine], cells.columns[fine]] = 1
        np.copyto(last, picture, where=np.kron(kept, side)[..., None] > 0)
        known |= kept > 0
        tiles = np.asarray(cv2.absdiff(picture, last)).reshape(rows, PIXELS_A_CELL, columns, -1)
        change = tiles.mean(axis=(1, 3), dtype=np.float64) / 255
        yield known & (change <= tolerance)
