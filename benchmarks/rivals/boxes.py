"""Rules that are given the object's box on the first frame, as ours is: the box held still, and OpenCV's trackers.

KCF: Henriques, Caseiro, Martins and Batista, "High-Speed Tracking with Kernelized Correlation Filters", PAMI 2015.
CSRT: Lukežič, Vojíř, Čehovin Zajc, Matas and Kristan, "Discriminative Correlation Filter Tracker with Channel and
Spatial Reliability", IJCV 2018. Only opencv-contrib has both; they are left out where the installed OpenCV lacks them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import cv2
import numpy as np

from arr_stream.selection.allocation import Allocation
from arr_stream.types import Frame, Grid
from benchmarks.rivals.base import Scores, most_of

Box = tuple[float, float, float, float]
"""x, y, width and height in pixels."""


def held_still(frames: Iterable[Frame], box: Box) -> list[Box]:
    """Return the first box for every frame."""
    return [box for _ in frames]


def tracked(make: Callable[[], cv2.Tracker]) -> Callable[[Iterable[Frame], Box], list[Box]]:
    """Return a follower by one of OpenCV's trackers; while it has lost its object, the last box stands."""

    def follow(frames: Iterable[Frame], box: Box) -> list[Box]:
        tracker, boxes = make(), [box]
        for index, frame in enumerate(frames):
            picture = cv2.cvtColor(frame.rgb, cv2.COLOR_RGB2BGR)
            if index == 0:
                tracker.init(picture, tuple(round(side) for side in box))
                continue
            found, place = tracker.update(picture)
            boxes.append(tuple(place) if found else boxes[-1])
        return boxes

    return follow


FOLLOWERS: dict[str, Callable[[Iterable[Frame], Box], list[Box]]] = {
    "box held still": held_still,
    **{
        name: tracked(make)
        for name in ("KCF", "CSRT")
        if (make := getattr(cv2, f"Tracker{name}_create", None)) is not None
    },
}
"""How a box is followed, by name."""


def nearest_cells(box: Box, grid: Grid, tokens: int) -> Allocation:
    """Return the cells whose middles are nearest to the middle of a box."""
    return most_of(-_distances(box, grid), tokens, grid)


def overlapping_cells(box: Box, grid: Grid, tokens: int) -> Allocation:
    """Return the cells that a box covers most of; among equal ones the nearest to its middle."""
    x, y, width, height = box
    covered = np.outer(
        _covered(y, height, grid.rows, grid.cell_px[1]), _covered(x, width, grid.columns, grid.cell_px[0])
    )
    distances = _distances(box, grid)
    return most_of(covered - 1e-6 * distances / distances.max(), tokens, grid)


RANKINGS: dict[str, Callable[[Box, Grid, int], Allocation]] = {
    "by nearness": nearest_cells,
    "by overlap": overlapping_cells,
}
"""How cells are ranked around a box, by name."""


def _distances(box: Box, grid: Grid) -> Scores:
    x, y, width, height = box
    cell_width, cell_height = grid.cell_px
    across = (np.arange(grid.columns) + 0.5) * cell_width - (x + width / 2)
    down = (np.arange(grid.rows) + 0.5) * cell_height - (y + height / 2)
    return np.asarray(np.hypot(down[:, None], across[None, :]))


def _covered(start: float, length: float, cells: int, side: float) -> Scores:
    """`[cells]`, share of each cell that lies between two places along one axis."""
    edges = np.arange(cells + 1) * side
    inside = np.minimum(edges[1:], start + length) - np.maximum(edges[:-1], start)
    return np.asarray(np.clip(inside, 0, None) / side)
