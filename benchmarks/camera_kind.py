"""Does the camera stand still, pan, or shake?

Told from how a few places of the scenery move from frame to frame:

- *still*: in half of the frames or more they move by less than `STILL_SHARE` of the frame's diagonal;
- *panning*: they move, and over `WINDOW_FRAMES` frames at least `STEADY_SHARE` of the way that they go is kept;
- *shaking*: they move to and fro, so that less than that is kept.

Turning and zooming count as panning, since each place goes a way of its own steadily.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import cv2
import numpy as np
import numpy.typing as npt

from arr_stream.types import FloatArray

Camera = Literal["still", "panning", "shaking"]
CAMERAS: tuple[Camera, ...] = get_args(Camera)

STILL_SHARE = 1 / 4000
"""Of the diagonal, a frame: 0.25 px at 854x480."""

STEADY_SHARE = 0.5

WINDOW_FRAMES = 12

_PLACES = ((0.1, 0.1), (0.9, 0.1), (0.5, 0.5), (0.1, 0.9), (0.9, 0.9))

Homography = npt.NDArray[np.float64]


def camera_homography(offset_px: FloatArray, thing: npt.NDArray[np.bool_], *, step: int = 8) -> Homography:
    """The camera's motion in a flow: the homography that most places outside of the things follow (RANSAC).

    Args:
        offset_px: `[H, W, 2]` backward flow; NaN where it is not known.
        thing: `[H, W]`, places that may move by themselves. Where they leave too little, they are looked at too.
        step: Every so manyth place each way is looked at.

    Returns:
        3x3, from this frame's pixels to those of the frame before; the identity where nothing is known.
    """
    known = np.isfinite(offset_px[::step, ::step]).all(axis=2)
    outside = known & ~thing[::step, ::step]
    rows, columns = np.nonzero(outside if outside.sum() >= 16 else known)
    if len(rows) < 4:
        return np.eye(3)
    here = np.stack([columns, rows], axis=1).astype(np.float32) * step
    there = here + offset_px[rows * step, columns * step]
    cv2.setRNGSeed(0)
    found, _ = cv2.findHomography(here, there, cv2.RANSAC, 0.5)
    return np.eye(3) if found is None else np.asarray(found, np.float64)


def homography_flow(homography: Homography, size_wh: tuple[int, int]) -> FloatArray:
    """`[H, W, 2]`, the flow that a camera's motion alone gives."""
    width, height = size_wh
    x, y = np.meshgrid(np.arange(width, dtype=np.float64), np.arange(height, dtype=np.float64))
    u, v, w = (row[0] * x + row[1] * y + row[2] for row in homography)
    return np.stack([u / w - x, v / w - y], axis=-1).astype(np.float32)


def camera_kind(homographies: Sequence[Homography], size_wh: tuple[int, int]) -> Camera:
    """What the camera does in a clip.

    Args:
        homographies: One for each frame but the first, as `camera_homography` gives them.
        size_wh: Size of the frames in pixels.
    """
    if not homographies:
        return "still"
    places = np.array(_PLACES) * size_wh
    homogeneous = np.concatenate([places, np.ones((len(places), 1))], axis=1)
    there = np.stack([homogeneous @ homography.T for homography in homographies])
    moved_px = there[..., :2] / there[..., 2:] - places
    ways_px = np.linalg.norm(moved_px, axis=2)
    if np.median(ways_px.mean(axis=1)) < STILL_SHARE * np.hypot(*size_wh):
        return "still"
    return "panning" if steadiness(moved_px) >= STEADY_SHARE else "shaking"


def steadiness(moved_px: npt.NDArray[np.float64]) -> float:
    """Share of its way that a place keeps over a window, in [0, 1]; the median over windows.

    Args:
        moved_px: `[T, n, 2]`, how far each place goes from frame to frame.
    """
    starts = range(0, max(1, len(moved_px) - WINDOW_FRAMES + 1), WINDOW_FRAMES)
    windows = [moved_px[start : start + WINDOW_FRAMES] for start in starts]
    kept = [np.linalg.norm(window.sum(axis=0), axis=1).sum() for window in windows]
    gone = [np.linalg.norm(window, axis=2).sum() for window in windows]
    return float(np.median([share / max(way, 1e-9) for share, way in zip(kept, gone, strict=True)]))
