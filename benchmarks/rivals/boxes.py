"""Rules that are given the object's box on the first frame, as ours is: the box held still, and OpenCV's trackers.

KCF: Henriques, Caseiro, Martins and Batista, "High-Speed Tracking with Kernelized Correlation Filters", PAMI 2015.
CSRT: Lukežič, Vojíř, Čehovin Zajc, Matas and Kristan, "Discriminative Correlation Filter Tracker with Channel and
Spatial Reliability", IJCV 2018. Only opencv-contrib has both; they are left out where the installed OpenCV lacks them.
"""

from __future__ import annotations

from collections.abc import Callable

import cv2
import numpy as np

from arr_stream.relevance.kinds.region import overlap
from arr_stream.selection.allocation import Allocation
from arr_stream.types import ByteArray, Frame, Grid
from benchmarks.rivals.base import Scores, most_of

Box = tuple[float, float, float, float]
"""x, y, width and height in pixels."""
Follower = Callable[[Frame, Box], Callable[[Frame], Box]]
"""Takes the first frame and the box on it; returns what finds the box on each later frame, in order."""


def held_still(first: Frame, box: Box) -> Callable[[Frame], Box]:
    """Keep the first box."""
    return lambda frame: box


def tracked(make: Callable[[], cv2.Tracker]) -> Follower:
    """Return a follower by one of OpenCV's trackers, which keeps the last box while it has lost the object."""

    def start(first: Frame, box: Box) -> Callable[[Frame], Box]:
        tracker, last = make(), box
        tracker.init(_bgr(first), tuple(round(side) for side in box))

        def follow(frame: Frame) -> Box:
            nonlocal last
            found, place = tracker.update(_bgr(frame))
            last = tuple(place) if found else last
            return last

        return follow

    return start


def _bgr(frame: Frame) -> ByteArray:
    return np.asarray(cv2.cvtColor(frame.rgb, cv2.COLOR_RGB2BGR), np.uint8)


FOLLOWERS: dict[str, Follower] = {
    "box held still": held_still,
    **{
        name: tracked(make)
        for name in ("KCF", "CSRT")
        if (make := getattr(cv2, f"Tracker{name}_create", None)) is not None
    },
}
"""Followers of a box by name."""


def nearest_cells(box: Box, grid: Grid, tokens: int) -> Allocation:
    """Return the cells whose middles are nearest to the middle of a box."""
    return most_of(-_distances(box, grid), tokens, grid)


def overlapping_cells(box: Box, grid: Grid, tokens: int) -> Allocation:
    """Return the cells that a box covers most of; among equal ones the nearest to its middle."""
    x, y, width, height = box
    frame_width, frame_height = grid.size_wh
    across = overlap(grid.columns, frame_width, x, x + width)
    covered = np.outer(overlap(grid.rows, frame_height, y, y + height), across)
    distances = _distances(box, grid)
    return most_of(covered - 1e-6 * distances / distances.max(), tokens, grid)


RANKINGS: dict[str, Callable[[Box, Grid, int], Allocation]] = {
    "by nearness": nearest_cells,
    "by overlap": overlapping_cells,
}
"""Rankings of cells around a box by name."""


def _distances(box: Box, grid: Grid) -> Scores:
    x, y, width, height = box
    cell_width, cell_height = grid.cell_px
    across = (np.arange(grid.columns) + 0.5) * cell_width - (x + width / 2)
    down = (np.arange(grid.rows) + 0.5) * cell_height - (y + height / 2)
    return np.asarray(np.hypot(down[:, None], across[None, :]))
