"""Figures over the last moments of a stream."""

from __future__ import annotations

import statistics
import time
from collections import deque


class Rate:
    """Events a second over the last seconds. `add` from one thread, `value` from any."""

    def __init__(self, window_seconds: float = 2.0) -> None:
        self._window_seconds = window_seconds
        self._times: deque[float] = deque(maxlen=4096)

    def add(self) -> None:
        self._times.append(time.monotonic())

    @property
    def value(self) -> float:
        """0 once nothing has come for a whole window."""
        now = time.monotonic()
        recent = [moment for moment in tuple(self._times) if now - moment <= self._window_seconds]
        if len(recent) < 2:
            return 0.0
        return (len(recent) - 1) / max(now - recent[0], 1e-6)


class Recent:
    """The median of the last values. `add` from one thread, `median` from any."""

    def __init__(self, count: int = 120) -> None:
        self._values: deque[float] = deque(maxlen=count)

    def add(self, value: float) -> None:
        self._values.append(value)

    @property
    def median(self) -> float | None:
        """None without a value."""
        values = tuple(self._values)
        return statistics.median(values) if values else None
