"""A camera that looks at a part of a still picture: it stands, pans or shakes, by fractions of a pixel."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import cv2
import numpy as np
import numpy.typing as npt

from arr_stream.sources.base import OnePass, SourceInfo
from arr_stream.types import ByteArray, Frame
from benchmarks.camera_kind import Camera

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
    """Where the camera's top left corner is on every frame.

    Args:
        camera: What it does.
        frames: How many.
        room_wh: How far the corner may go; it stays within, and pans more slowly where there is little room.
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


class GeneratedSource(OnePass):
    """Pictures made one by one as frames.

    Args:
        name: What to call it.
        pictures: Gives `[H, W, 3]` uint8 each, all of one size, at least one.
        count: How many there are.
    """

    def __init__(self, name: str, pictures: Callable[[], Iterator[ByteArray]], count: int) -> None:
        super().__init__()
        frames = (Frame(index, index / FPS, rgb) for index, rgb in enumerate(pictures()))
        self._first, self._made = next(frames), frames
        self.info = SourceInfo(
            name=name,
            kind="test",
            size_wh=self._first.size_wh,
            pixel_aspect=1.0,
            average_fps=FPS,
            duration_seconds=count / FPS,
            num_frames=count,
            codec="raw",
            has_audio=False,
            rotation_degrees=0,
            video_streams=1,
            path=None,
        )
