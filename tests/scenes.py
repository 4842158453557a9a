"""Small synthetic scenes: a textured background, and a coloured square that moves over it."""

from __future__ import annotations

import numpy as np

from arr_stream.types import ByteArray, Frame

RED = (220, 30, 30)


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
