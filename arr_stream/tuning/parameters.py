"""The scorers' weights as numbers that can be fitted, each within what its setting allows."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from arr_stream.config import ScoringSettings
from arr_stream.errors import UnknownSetting

DECIMALS = 3
"""Fitted weights are rounded to so many places before they are tried out or written."""

NAMES = tuple(ScoringSettings.model_fields)

_LEAST = 0.05
"""Where a setting must be above 0."""


def bounds(name: str) -> tuple[float, float]:
    """Least and largest value of a weight, as its setting declares them."""
    low, high = 0.0, 1.0
    for rule in ScoringSettings.model_fields[name].metadata:
        low = max(low, float(getattr(rule, "ge", low)))
        low = max(low, _LEAST) if getattr(rule, "gt", None) is not None else low
        high = float(getattr(rule, "le", high))
    return low, high


def check_names(names: Sequence[str]) -> None:
    """Weights that may be fitted.

    Raises:
        UnknownSetting: A name that is none of `NAMES`.
    """
    for name in names:
        if name not in NAMES:
            near = difflib.get_close_matches(name, NAMES, n=1, cutoff=0.0)
            raise UnknownSetting(f"no weight {name!r}", remedy=f"did you mean {near[0]!r}?")


class Parameters:
    """Some weights as one leaf tensor, the others fixed.

    Args:
        start: Where fitting starts, and what it is pulled back to.
        names: Which weights are fitted.

    Attributes:
        values: `[len(names)]` float32, requires a gradient.

    Raises:
        UnknownSetting: A weight that does not exist.
    """

    def __init__(self, start: ScoringSettings, names: Sequence[str] = NAMES) -> None:
        check_names(names)
        self.names = tuple(names)
        self._start = start
        self._bounds = torch.tensor([bounds(name) for name in self.names])
        self.values = torch.tensor([float(getattr(start, name)) for name in self.names], requires_grad=True)
        self._origin = self.values.detach().clone()

    def weights(self) -> ScoringSettings:
        """For the scorers: 0-d tensors where weights are fitted, so that gradients go through the scorers' own code."""
        fitted = dict(zip(self.names, self.values.unbind(), strict=True))
        return ScoringSettings.model_construct(**{**self._start.model_dump(), **fitted})

    def settings(self) -> ScoringSettings:
        """Plain numbers, rounded."""
        fitted = {n: round(v, DECIMALS) for n, v in zip(self.names, self.values.detach().tolist(), strict=True)}
        return ScoringSettings.model_validate({**self._start.model_dump(), **fitted})

    def distance(self) -> Tensor:
        """Mean squared distance from the start, as a share of each range; keeps what the data say nothing of."""
        low, high = self._bounds.unbind(dim=1)
        return (((self.values - self._origin) / (high - low)) ** 2).mean()

    def confine(self) -> None:
        """After a step: back into the ranges."""
        with torch.no_grad():
            low, high = self._bounds.unbind(dim=1)
            self.values.copy_(self.values.clamp(low, high))


def differences(before: ScoringSettings, after: ScoringSettings) -> Mapping[str, tuple[float, float]]:
    """By name, the weights that are not the same."""
    pairs = {name: (float(getattr(before, name)), float(getattr(after, name))) for name in NAMES}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
