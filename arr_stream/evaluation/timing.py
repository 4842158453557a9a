"""Summaries of many timings."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Timing:
    """Milliseconds of many runs of one operation.

    Args:
        count: Runs.
        median, p95, p99, mean: Milliseconds.
    """

    count: int
    median: float
    p95: float
    p99: float
    mean: float

    @classmethod
    def of(cls, milliseconds: Sequence[float]) -> Timing:
        """Summarise; zeros for no runs."""
        if not milliseconds:
            return cls(0, 0.0, 0.0, 0.0, 0.0)
        median, p95, p99 = np.percentile(milliseconds, [50, 95, 99]).tolist()
        return cls(len(milliseconds), median, p95, p99, float(np.mean(milliseconds)))


@contextmanager
def timed(into: list[float], scale: float = 1.0, clock: Callable[[], float] = time.perf_counter) -> Iterator[None]:
    """Append the milliseconds that a block takes, times `scale`, to a list."""
    started = clock()
    yield
    into.append((clock() - started) * 1e3 * scale)
