"""Where someone looks right now, from a pointer or an eye tracker."""

from __future__ import annotations

import math
import threading
from collections import deque

import numpy as np

from arr_stream.errors import InvalidSetting
from arr_stream.types import FloatArray

_MOST_POINTS = 256


class LiveGaze:
    """A `GazeSource` that is told points as they come; each falls to the next frame. Any thread may tell."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, float]] = deque(maxlen=_MOST_POINTS)
        self._lock = threading.Lock()

    def look(self, x: float, y: float) -> None:
        """Someone looks here, normalised to [0, 1].

        Raises:
            InvalidSetting: Outside [0, 1].
        """
        if not (math.isfinite(x) and math.isfinite(y) and 0 <= x <= 1 and 0 <= y <= 1):
            raise InvalidSetting(f"gaze ({x:g}, {y:g}) is outside the frame", remedy="give x and y in [0, 1]")
        with self._lock:
            self._points.append((x, y))

    def between(self, after_seconds: float, until_seconds: float) -> FloatArray:
        """`[N, 2]`: every point since the frame before, whatever its time."""
        with self._lock:
            points = np.array(self._points, np.float32).reshape(-1, 2)
            self._points.clear()
        return points
