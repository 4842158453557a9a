"""Lower bounds on a stage's time: the bytes that it must move, at the speed of the machine's memory."""

from __future__ import annotations

import time

import numpy as np

from arr_stream.relevance.figure import FEATURES
from arr_stream.types import Grid

_COPIED_BYTES = 64 << 20
_COPIES = 5


def copy_bytes_per_ms() -> float:
    """Measure the bytes that one thread reads and writes in a millisecond of a large copy: the best of several."""
    source = np.ones(_COPIED_BYTES, np.uint8)
    target = np.empty_like(source)
    seconds = []
    for _ in range(_COPIES):
        started = time.perf_counter()
        np.copyto(target, source)
        seconds.append(time.perf_counter() - started)
    return 2 * _COPIED_BYTES / min(seconds) / 1e3


def touched_bytes(grid: Grid, queries: int) -> dict[str, float]:
    """Return the least bytes that each stage reads and writes; `keyframe` moves none, since the loop does not wait for
    it.

    Pixels are counted at the texture's size: a quarter has a sixteenth of them.
    """
    width, height = grid.texture_wh
    full = width * height
    half, quarter, eighth = full / 4, full / 16, full / 64
    pictures = 3 * half + half + 3 * quarter + quarter + 3 * eighth + eighth
    visual = 3 * quarter + 3 * 4 * eighth
    flow = (2 + 1 + 1) * 4 * eighth
    history = 4 * eighth
    return {
        "visual": 3 * full + pictures + visual,
        "flow": 2 * half + flow,
        # Fixation and the flow to one keyframe are read and written; the motion channel is written.
        "carry": flow + 2 * history + 2 * 3 * 4 * eighth + 4 * eighth,
        # Each query reads the quarter picture and gives a map of float32.
        "relevance": queries * (3 * quarter + 4 * quarter),
        # The motion channel and its history, the picture and its detail; a row of features a cell.
        "figure": 3 * 4 * eighth + 3 * eighth + quarter + 4 * (FEATURES + 2) * grid.cells,
        # Fixation is copied; three planes are combined.
        "texture": 2 * history + 2 * 3 * 4 * eighth,
        # Scored channels are read once: three of bytes at a quarter, seven of float32 at an eighth, eccentricity.
        "selection": 3 * quarter + 7 * 4 * eighth + 4 * quarter + 2 * eighth + 44 * grid.cells,
    }
