"""From frames to what rules look at, one frame at a time."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from arr_stream.keyframes.base import resized
from arr_stream.types import Frame, Grid
from benchmarks.rivals.base import PIXELS_A_CELL, Clip
from benchmarks.rivals.features import FeatureMaker


def make_clip(frames: Iterable[Frame], grid: Grid, features: FeatureMaker | None) -> Clip:
    """A clip of frames that are read once, in order, and not kept.

    Args:
        frames: All of the grid's size.
        grid: Their cells.
        features: Describes every cell; None for rules that need no features.

    Raises:
        ValueError: No frames, or one of another size.
    """
    size_wh = grid.columns * PIXELS_A_CELL, grid.rows * PIXELS_A_CELL
    pictures, described = [], []
    for frame in frames:
        if frame.size_wh != grid.size_wh:
            raise ValueError(f"frame {frame.index} is {frame.size_wh}, and the grid is for {grid.size_wh}")
        pictures.append(resized(frame.rgb, size_wh))
        if features is not None:
            described.append(features.features(frame, grid))
    if not pictures:
        raise ValueError("a clip has at least one frame")
    return Clip(grid, np.stack(pictures), np.stack(described) if described else None)
