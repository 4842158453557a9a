"""Fit of weights to records: Adam on the coverage of an object by a soft choice, stopped early by the hard one's."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from arr_stream.config import ScoringSettings
from arr_stream.relevance.scorers import Change, Sample, balance_tensions
from arr_stream.threads import one_torch_thread
from arr_stream.tuning.recording import FrameTable

NAMES = tuple(ScoringSettings.model_fields)
DECIMALS = 3
"""Decimals to which fitted weights are rounded before they are tested or written."""
STEPS = 300

_LEAST = 0.05
"""Least value of a setting that must be above 0."""
_RATE = 0.02
"""Learning rate of Adam; weights are of the order of 1."""
_FRAMES = 6
"""Frames of each case in one step."""
_TEMPERATURES = 0.5, 0.1
"""Softness of the choice at the first and the last step, in standard deviations of a frame's scores."""
_PULL = 0.05
"""Weight of the distance from the start."""
_EVERY = 10
"""Steps from one validation to the next."""
_PATIENCE = 8
"""Validations without a gain after which fitting stops."""
_HALVINGS = 40

Case = Sequence[FrameTable]
"""Frames of one sequence with one query. Cases have equal weight, regardless of their length."""


class Parameters:
    """The scorers' weights as one leaf tensor, each within the range of its setting.

    Args:
        start: Weights to start from, and to which the penalty pulls.

    Attributes:
        values: `[len(NAMES)]` float32, requires a gradient.
    """

    def __init__(self, start: ScoringSettings) -> None:
        self._low, self._high = torch.tensor([_bounds(name) for name in NAMES]).unbind(dim=1)
        self.values = torch.tensor([float(getattr(start, name)) for name in NAMES], requires_grad=True)
        self._origin = self.values.detach().clone()

    def weights(self) -> ScoringSettings:
        """Return the weights as 0-d tensors, so that gradients flow through the scorers' own code."""
        values: Any = dict(zip(NAMES, self.values.unbind(), strict=True))
        return ScoringSettings.model_construct(**values)

    def settings(self) -> ScoringSettings:
        """Return the weights as plain numbers, rounded."""
        rounded = (round(value, DECIMALS) for value in self.values.detach().tolist())
        return ScoringSettings.model_validate(dict(zip(NAMES, rounded, strict=True)))

    def distance(self) -> Tensor:
        """Return the mean squared distance from the start, in units of each range.

        As a penalty, it keeps weights that the data do not determine.
        """
        return (((self.values - self._origin) / (self._high - self._low)) ** 2).mean()

    def confine(self) -> None:
        """Clamp the values to their ranges after a step."""
        with torch.no_grad():
            self.values.copy_(self.values.clamp(self._low, self._high))


def _bounds(name: str) -> tuple[float, float]:
    """Return least and largest value of a weight, as its setting declares them."""
    low, high = 0.0, 1.0
    for rule in ScoringSettings.model_fields[name].metadata:
        low = max(low, float(getattr(rule, "ge", low)))
        low = max(low, _LEAST) if getattr(rule, "gt", None) is not None else low
        high = float(getattr(rule, "le", high))
    return low, high


@dataclass(frozen=True, slots=True)
class Fit:
    """Result of a fit.

    Args:
        weights: Those of the best validation.
        steps: Steps made.
        best_step: Number of steps before the best validation.
        before, after: Coverage by the hard choice on validation frames, from the records.
    """

    weights: ScoringSettings
    steps: int
    best_step: int
    before: float
    after: float


def fit(
    training: Sequence[Case],
    validation: Sequence[Case],
    start: ScoringSettings,
    *,
    steps: int = STEPS,
    advance: Callable[[int, int, float], None] = lambda step, steps, coverage: None,
) -> Fit:
    """Return weights whose choice covers more of the object on the validation frames; the start's if none does.

    Args:
        training: Frames that gradients are taken from.
        validation: Frames that decide when to stop.
        start: Weights to start from.
        steps: Most steps.
        advance: Called at each validation with the step, the most steps and the best coverage.

    Returns:
        The fit; the same for the same arguments, to the bit.
    """
    parameters = Parameters(start)
    optimizer = torch.optim.Adam([parameters.values], lr=_RATE)
    generator = np.random.default_rng(0)
    with one_torch_thread():
        before = best = hard_coverage(validation, parameters.settings())
        weights, best_step, step = start, 0, 0
        for step in range(1, steps + 1):
            drawn = [table for case in training for table in _draw(case, _FRAMES, generator)]
            optimizer.zero_grad()
            loss = 1 - soft_coverage(drawn, parameters.weights(), _temperature(step, steps))
            (loss + _PULL * parameters.distance()).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            parameters.confine()
            if step % _EVERY:
                continue
            found = hard_coverage(validation, parameters.settings())
            if found > best:
                best, best_step, weights = found, step, parameters.settings()
            advance(step, steps, best)
            if step - best_step >= _EVERY * _PATIENCE:
                break
    return Fit(weights, step, best_step, before, best)


def _draw(case: Case, count: int, generator: np.random.Generator) -> list[FrameTable]:
    """Draw `count` frames of a case, each at most once if the case has as many."""
    drawn = generator.choice(len(case), count, replace=len(case) < count)
    return [case[index] for index in drawn.tolist()]


def _temperature(step: int, steps: int) -> float:
    """Return the temperature of a step, from the first to the last in equal ratios."""
    first, last = _TEMPERATURES
    done = (step - 1) / max(1, steps - 1)
    return math.exp((1 - done) * math.log(first) + done * math.log(last))


def soft_coverage(tables: Sequence[FrameTable], weights: ScoringSettings, temperature: float) -> Tensor:
    """Return the mean share of the object in a soft choice; `temperature` in standard deviations of each frame's
    scores.
    """
    sums = []
    for group in _alike(tables):
        chosen = soft_choice(frame_scores(group, weights), _counts(group), temperature)
        sums.append((chosen * _shares(group)).sum())
    return torch.stack(sums).sum() / len(tables)


def hard_coverage(cases: Sequence[Case], weights: ScoringSettings) -> float:
    """Return the mean over cases of the mean share of the object in the best cells, from the records."""
    means = []
    with torch.no_grad():
        for case in cases:
            found = [
                (hard_topk(frame_scores(group, weights), _counts(group)) * _shares(group)).sum(dim=1)
                for group in _alike(case)
            ]
            means.append(float(torch.cat(found).mean()))
    return float(np.mean(means))


def frame_scores(group: Sequence[FrameTable], weights: ScoringSettings) -> Tensor:
    """Return `[F, cells]` scores of frames with as many cells and the same `answered`, by the scorers of streams."""
    samples = [table.sample for table in group]
    figures = [sample.figure for sample in samples if sample.figure is not None]
    words = [sample.words for sample in samples if sample.words is not None]
    sample = Sample(
        torch.cat([sample.values for sample in samples]),
        torch.cat([sample.relevance for sample in samples]),
        torch.cat(figures) if figures else None,
        torch.cat([torch.as_tensor(sample.moved).expand(len(sample.relevance)) for sample in samples]),
        torch.cat(words) if words else None,
        _changes(samples),
    )
    scores: Tensor = balance_tensions(sample, group[0].answered, weights).score.reshape(len(group), -1)
    return scores


def _changes(samples: Sequence[Sample]) -> Change | None:
    """Return the evidence of change of several frames, one after another."""
    known = [sample.change for sample in samples if sample.change is not None]
    if not known:
        return None
    names = "cells", "certainty", "known"
    parts = ([torch.as_tensor(getattr(each, name)).expand(len(each.cells)) for each in known] for name in names)
    return Change(*(torch.cat(part) for part in parts))


def soft_choice(scores: Tensor, count: Tensor, temperature: float) -> Tensor:
    """Return `soft_topk`, with the temperature in standard deviations of each row's scores."""
    spread = scores.std(dim=1, keepdim=True)
    return soft_topk((scores - scores.mean(dim=1, keepdim=True)) / (spread + 1e-6), count, temperature)


def _alike(tables: Sequence[FrameTable]) -> list[list[FrameTable]]:
    """Group frames that the scorers can process at once."""
    groups: dict[tuple[float, int], list[FrameTable]] = defaultdict(list)
    for table in tables:
        groups[table.answered, len(table.share)].append(table)
    return list(groups.values())


def _counts(group: Sequence[FrameTable]) -> Tensor:
    return torch.tensor([float(table.fine) for table in group])


def _shares(group: Sequence[FrameTable]) -> Tensor:
    return torch.stack([table.share for table in group])


def soft_topk(scores: Tensor, count: Tensor, temperature: float) -> Tensor:
    """Return the share of each place in the best `count`: 1 well above the threshold, 0 well below it.

    The shares p maximise p . scores + temperature * H(p) over 0 <= p <= 1 with sum(p) = count, H being the sum of the
    places' binary entropies: p = sigmoid((scores - t) / temperature), with the one threshold t that spends the budget.
    This is the limited multi-label projection of Amos, Koltun and Kolter, "The Limited Multi-Label Projection Layer"
    (2019). Bisection finds the threshold; one Newton step from there, which does not move it, carries the gradient
    of the
    implicit function.

    Args:
        scores: `[F, n]`.
        count: `[F]`, each above 0 and below n.
        temperature: Above 0, in units of the scores; towards 0 the shares become those of the hard choice.

    Returns:
        `[F, n]` in [0, 1]; each row sums to its count.

    Raises:
        ValueError: A temperature or a count outside its range.
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be above 0, got {temperature}")
    if not bool(((count > 0) & (count < scores.shape[1])).all()):
        raise ValueError(f"counts must lie between 0 and the {scores.shape[1]} places")
    with torch.no_grad():
        threshold = _threshold(scores, count, temperature)
        spread = torch.sigmoid((scores - threshold) / temperature)
        slope = (spread * (1 - spread)).sum(dim=1, keepdim=True).clamp_min(1e-12) / temperature
    over = torch.sigmoid((scores - threshold) / temperature).sum(dim=1, keepdim=True) - count[:, None]
    return torch.sigmoid((scores - threshold - over / slope) / temperature)


def _threshold(scores: Tensor, count: Tensor, temperature: float) -> Tensor:
    """Return the threshold `[F, 1]` at which the shares add up to the count."""
    n = scores.shape[1]
    # A common share of count / n is too little for the best place alone and too much for the worst.
    reach = temperature * torch.log((n - count) / count)[:, None]
    low = scores.min(dim=1, keepdim=True).values + reach
    high = scores.max(dim=1, keepdim=True).values + reach
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        spent = torch.sigmoid((scores - middle) / temperature).sum(dim=1, keepdim=True)
        low, high = torch.where(spent > count[:, None], middle, low), torch.where(spent > count[:, None], high, middle)
    return (low + high) / 2


def hard_topk(scores: Tensor, count: Tensor) -> Tensor:
    """Return `[F, n]` of 0 and 1: the best `count` of each row, the first of equals."""
    order = scores.argsort(dim=1, descending=True, stable=True)
    rank = torch.empty_like(order)
    rank.scatter_(1, order, torch.arange(scores.shape[1], device=scores.device).expand_as(order))
    return (rank < count[:, None]).to(scores.dtype)
