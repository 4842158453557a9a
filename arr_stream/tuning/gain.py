"""Gain on held-out data, and its comparison with its noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEAST_HELD_OUT = 3
"""Least number of sequences for a meaningful spread of their gains."""


@dataclass(frozen=True, slots=True)
class Gain:
    """Mean of paired differences, its standard error (None with fewer than two), their number and their unit."""

    mean: float
    standard_error: float | None
    count: int
    unit: str

    @classmethod
    def of(cls, differences: Sequence[float], unit: str) -> Gain:
        """Summarise after minus before of each held-out sequence or question."""
        count = len(differences)
        error = float(np.std(differences, ddof=1) / np.sqrt(count)) if count > 1 else None
        return cls(float(np.mean(differences)), error, count, unit)

    @property
    def reliable(self) -> bool:
        """True if there are at least `LEAST_HELD_OUT` pairs and the mean exceeds twice its standard error."""
        return self.count >= LEAST_HELD_OUT and self.mean > 2 * (self.standard_error or 0)

    def __str__(self) -> str:
        held_out = f"{self.count} held-out {self.unit}"
        if self.count < LEAST_HELD_OUT:
            return f"{self.mean:+.3f} over {held_out}, too few to judge: at least {LEAST_HELD_OUT} are needed"
        verdict = "beyond its noise" if self.reliable else "not beyond its noise"
        return f"{self.mean:+.3f} (standard error {self.standard_error:.3f}, {held_out}), {verdict}"
