"""The scorers' weights as numbers to fit, each within the range of its setting."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from arr_stream.config import ScoringSettings
from arr_stream.errors import UnknownSetting

DECIMALS = 3
"""Decimals to which fitted weights are rounded before they are tested or written."""

NAMES = tuple(ScoringSettings.model_fields)

_LEAST = 0.05
"""Least value of a setting that must be above 0."""


def bounds(name: str) -> tuple[float, float]:
    """Return least and largest value of a weight, as its setting declares them."""
    low, high = 0.0, 1.0
    for rule in ScoringSettings.model_fields[name].metadata:
        low = max(low, float(getattr(rule, "ge", low)))
        low = max(low, _LEAST) if getattr(rule, "gt", None) is not None else low
        high = float(getattr(rule, "le", high))
    return low, high


def check_names(names: Sequence[str]) -> None:
    """Check that weights may be fitted.

    Raises:
        UnknownSetting: A name is not in `NAMES`.
    """
    for name in names:
        if name not in NAMES:
            near = difflib.get_close_matches(name, NAMES, n=1, cutoff=0.0)
            raise UnknownSetting(f"no weight {name!r}", remedy=f"did you mean {near[0]!r}?")


class Parameters:
    """Some weights as one leaf tensor, the others fixed.

    Args:
        start: Weights to start from, and to which the penalty pulls.
        names: Names of the weights to fit.

    Attributes:
        values: `[len(names)]` float32, requires a gradient.

    Raises:
        UnknownSetting: A weight does not exist.
    """

    def __init__(self, start: ScoringSettings, names: Sequence[str] = NAMES) -> None:
        check_names(names)
        self.names = tuple(names)
        self._start = start
        self._bounds = torch.tensor([bounds(name) for name in self.names])
        self.values = torch.tensor([float(getattr(start, name)) for name in self.names], requires_grad=True)
        self._origin = self.values.detach().clone()

    def weights(self) -> ScoringSettings:
        """Return the scorers' weights: 0-d tensors for fitted ones, so that gradients flow through the scorers' own
        code.
        """
        fitted = dict(zip(self.names, self.values.unbind(), strict=True))
        return ScoringSettings.model_construct(**{**self._start.model_dump(), **fitted})

    def settings(self) -> ScoringSettings:
        """Return the weights as plain numbers, rounded."""
        fitted = {n: round(v, DECIMALS) for n, v in zip(self.names, self.values.detach().tolist(), strict=True)}
        return ScoringSettings.model_validate({**self._start.model_dump(), **fitted})

    def distance(self) -> Tensor:
        """Return the mean squared distance from the start, in units of each range.

        As a penalty, it keeps weights that the data do not determine.
        """
        low, high = self._bounds.unbind(dim=1)
        return (((self.values - self._origin) / (high - low)) ** 2).mean()

    def confine(self) -> None:
        """Clamp the values to their ranges after a step."""
        with torch.no_grad():
            low, high = self._bounds.unbind(dim=1)
            self.values.copy_(self.values.clamp(low, high))


def differences(before: ScoringSettings, after: ScoringSettings) -> Mapping[str, tuple[float, float]]:
    """Return the weights that differ, by name."""
    pairs = {name: (float(getattr(before, name)), float(getattr(after, name))) for name in NAMES}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
