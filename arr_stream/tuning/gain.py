"""Paired gain on held-out data, and whether it exceeds its noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEAST_HELD_OUT = 3
"""With fewer sequences or questions the spread of their gains says nothing."""


@dataclass(frozen=True, slots=True)
class Gain:
    """Mean difference of paired figures before and after.

    Args:
        mean: After minus before.
        standard_error: Of the mean; None with fewer than two pairs.
        count: Pairs: held-out sequences or questions.
        unit: Name of a pair, in the plural.
    """

    mean: float
    standard_error: float | None
    count: int
    unit: str

    @classmethod
    def paired(cls, before: Sequence[float], after: Sequence[float], unit: str) -> Gain:
        """Compare figures of the same sequences or questions, in the same order."""
        found = np.subtract(after, before, dtype=np.float64)
        count = len(found)
        error = float(found.std(ddof=1) / np.sqrt(count)) if count > 1 else None
        return cls(float(found.mean()), error, count, unit)

    @property
    def reliable(self) -> bool:
        """Whether there are at least `LEAST_HELD_OUT` pairs and the mean exceeds twice its standard error."""
        if self.standard_error is None or self.count < LEAST_HELD_OUT:
            return False
        return self.mean > 2 * self.standard_error

    def __str__(self) -> str:
        held_out = f"{self.count} held-out {self.unit}"
        if self.count < LEAST_HELD_OUT:
            return f"{self.mean:+.3f} over {held_out}, too few to judge: at least {LEAST_HELD_OUT} are needed"
        verdict = "beyond its noise" if self.reliable else "not beyond its noise"
        return f"{self.mean:+.3f} (standard error {self.standard_error:.3f}, {held_out}), {verdict}"
