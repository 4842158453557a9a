"""A camera that stands still, pans or shakes: how one looks at a picture, and how the kind is told from footage.

Told from how a few places of the scenery move from frame to frame:

- *still*: in half of the frames or more they move by less than `STILL_SHARE` of the frame's diagonal;
- *panning*: they move, and over `WINDOW_FRAMES` frames at least `STEADY_SHARE` of the way that they go is kept;
- *shaking*: they move to and fro, so that less than that is kept.

Turning and zooming count as panning, since each place goes a way of its own steadily.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, get_args

import cv2
import numpy as np
import numpy.typing as npt

from arr_stream.sources.base import Source, SourceInfo
from arr_stream.types import BoolArray, ByteArray, FloatArray, Frame

Camera = Literal["still", "panning", "shaking"]
CAMERAS: tuple[Camera, ...] = get_args(Camera)

STILL_SHARE = 1 / 4000
"""Of the diagonal, a frame: 0.25 px at 854x480."""

STEADY_SHARE = 0.5

WINDOW_FRAMES = 12

_PLACES = ((0.1, 0.1), (0.9, 0.1), (0.5, 0.5), (0.1, 0.9), (0.9, 0.9))

Homography = npt.NDArray[np.float64]


def camera_homography(offset_px: FloatArray, thing: BoolArray, *, step: int = 8) -> Homography:
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
    """Classify the camera's motion in a clip.

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


FPS = 30.0
PAN_PX = 2.5
"""How far the panning camera goes a frame."""
SHAKE_PX = 7.0
"""How far the shaking camera gets from its place, each way."""
SHAKE_HZ = (2.5, 6.0)
"""A hand shakes at a few cycles a second."""
GRAIN = 2.0
"""Standard deviation of the sensor's noise in grey levels, so that no two frames are the same."""

Path2 = npt.NDArray[np.float64]


def camera_path(camera: Camera, frames: int, room_wh: tuple[float, float], rng: np.random.Generator) -> Path2:
    """Draw the path of the camera's top left corner.

    Args:
        camera: Kind of motion.
        frames: Number of frames.
        room_wh: Largest `x, y` of the corner; pans are slower where there is little room.
        rng: Chooses direction and phases.

    Returns:
        `[frames, 2]`, `x, y` in pixels of the picture.
    """
    middle = np.array(room_wh) / 2
    t = np.arange(frames, dtype=np.float64)
    if camera == "still":
        return np.tile(middle, (frames, 1))
    if camera == "panning":
        heading = _heading(room_wh, rng)
        way = heading * min(PAN_PX * (frames - 1), _longest(heading, room_wh))
        return np.asarray(middle + way * (t[:, None] / max(frames - 1, 1) - 0.5))
    sway = np.zeros((frames, 2))
    for axis in range(2):
        for share in (0.6, 0.4):
            rate = 2 * math.pi * rng.uniform(*SHAKE_HZ) / FPS
            sway[:, axis] += share * np.sin(rate * t + rng.uniform(0, 2 * math.pi))
    return np.asarray(middle + sway * np.minimum(SHAKE_PX, middle))


def _heading(room_wh: tuple[float, float], rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """Mostly along the side with more room, as people pan."""
    slope = rng.uniform(-0.3, 0.3)
    along = np.array([1.0, slope] if room_wh[0] >= room_wh[1] else [slope, 1.0])
    return np.asarray(along / np.linalg.norm(along) * rng.choice([-1.0, 1.0]))


def _longest(heading: npt.NDArray[np.float64], room_wh: tuple[float, float]) -> float:
    return float(min(room / max(abs(part), 1e-9) for part, room in zip(heading, room_wh, strict=True)))


def look(picture: ByteArray, corner_xy: npt.NDArray[np.float64], size_wh: tuple[int, int]) -> ByteArray:
    """`[h, w, 3]`, the part of a picture whose top left corner is at `corner_xy`."""
    shift = np.array([[1, 0, -corner_xy[0]], [0, 1, -corner_xy[1]]], np.float64)
    seen = cv2.warpAffine(picture, shift, size_wh, flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT)
    return np.asarray(seen, np.uint8)


def with_grain(rgb: ByteArray, seed: int) -> ByteArray:
    """The picture with the sensor's noise."""
    grain = np.empty(rgb.shape[:2], np.int16)
    cv2.setRNGSeed(seed + 1)
    cv2.randn(grain, 0, GRAIN)
    noisy = cv2.add(rgb, cv2.merge([grain, grain, grain]), dtype=cv2.CV_8U)
    return np.ascontiguousarray(noisy, np.uint8)


class GeneratedSource(Source):
    """Pictures made one by one as frames.

    Args:
        name: What to call it.
        pictures: Gives `[H, W, 3]` uint8 each, all of one size, at least one.
        count: How many there are.
        fps: How many a second.
    """

    def __init__(self, name: str, pictures: Callable[[], Iterator[ByteArray]], count: int, fps: float = FPS) -> None:
        super().__init__()
        frames = (Frame(index, index / fps, rgb) for index, rgb in enumerate(pictures()))
        self._first, self._made = next(frames), frames
        self.info = SourceInfo(
            name=name,
            kind="test",
            size_wh=self._first.size_wh,
            pixel_aspect=1.0,
            average_fps=fps,
            duration_seconds=count / fps,
            num_frames=count,
            codec="raw",
            path=None,
        )
