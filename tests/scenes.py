"""Small synthetic scenes: a textured background, and a coloured square that moves over it."""

from __future__ import annotations

import numpy as np

from arr_stream.types import ByteArray, Frame

RED = (220, 30, 30)
LONG_REGION = "40,20,24,100"
"""Part of the bar on the first frame of `long_scene`, as `--region` takes it."""


def background(hw: tuple[int, int], seed: int = 0) -> ByteArray:
    """Smooth grey-green texture with detail for the flow to hold on to."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(40, 200, (hw[0] // 8 + 2, hw[1] // 8 + 2), np.uint8)
    grey = np.kron(coarse, np.ones((8, 8), np.uint8))[: hw[0], : hw[1]].astype(np.float32)
    grey = grey * 0.6 + rng.integers(0, 40, hw).astype(np.float32)
    return np.stack([grey * 0.7, grey, grey * 0.8], axis=2).clip(0, 255).astype(np.uint8)


def moving_square(
    count: int = 12,
    hw: tuple[int, int] = (192, 256),
    *,
    start_xy: tuple[int, int] = (40, 60),
    step_xy: tuple[int, int] = (4, 1),
    side: int = 48,
    colour: tuple[int, int, int] = RED,
    seed: int = 0,
) -> list[Frame]:
    """Frames of a square that moves by `step_xy` pixels a frame."""
    frames = []
    scenery = background(hw, seed)
    shading = np.random.default_rng(seed + 1).integers(-25, 25, (side, side, 1))
    for index in range(count):
        rgb = scenery.copy()
        x, y = start_xy[0] + index * step_xy[0], start_xy[1] + index * step_xy[1]
        rgb[y : y + side, x : x + side] = np.clip(np.array(colour) + shading, 0, 255)[: hw[0] - y, : hw[1] - x]
        frames.append(Frame(index, index / 30, rgb))
    return frames


def square_cells(
    frame: Frame, *, start_xy: tuple[int, int] = (40, 60), step_xy: tuple[int, int] = (4, 1), side: int = 48
) -> set[tuple[int, int]]:
    """Cells (row, column) of which the square of `moving_square` covers at least a quarter."""
    x, y = start_xy[0] + frame.index * step_xy[0], start_xy[1] + frame.index * step_xy[1]
    width, height = frame.size_wh
    covered = np.zeros((height, width), np.float32)
    covered[y : y + side, x : x + side] = 1
    share = covered.reshape(height // 32, 32, width // 32, 32).mean(axis=(1, 3))
    return set(zip(*(axis.tolist() for axis in np.nonzero(share >= 0.25)), strict=True))


def long_scene(count: int = 320, hw: tuple[int, int] = (160, 256)) -> list[Frame]:
    """Frames of a red disc that bounces, now and then behind a blue bar, under a panning camera; a cut at 60%.

    Only integers decide the pixels, so that they are equal on every processor.
    """
    (height, width), radius = hw, 18
    sceneries = [background((height + 40, width + 80)), 255 - background((height + 40, width + 80), seed=5)]
    down, across = np.mgrid[:height, :width]
    frames = []
    for index in range(count):
        left, top = _bounce(index, 80), _bounce(index // 3, 40)
        rgb = sceneries[index >= count * 0.6][top : top + height, left : left + width].copy()
        x, y = radius + _bounce(2 * index, width - 2 * radius), radius + _bounce(index, height - 2 * radius)
        rgb[(across - x) ** 2 + (down - y) ** 2 < radius**2] = RED
        bar = _bounce(40 + index // 2, width - 24)
        rgb[:, bar : bar + 24] = (30, 40, 210)
        frames.append(Frame(index, index / 30, rgb))
    return frames


def _bounce(step: int, end: int) -> int:
    """Position after `step` steps of one between 0 and `end`, back and forth."""
    return min(step % (2 * end), -step % (2 * end))
