"""Small summaries of many timings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Timing:
    """Milliseconds of many runs of one thing.

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

    def as_json(self) -> dict[str, float]:
        return {name: round(value, 4) for name, value in asdict(self).items()}
