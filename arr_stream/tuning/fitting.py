"""Fit of weights to records: Adam on the coverage of an object by a soft choice, stopped early by the hard one's."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from arr_stream.config import ScoringSettings
from arr_stream.relevance.balance import balance_tensions
from arr_stream.relevance.scorers import Change, Sample
from arr_stream.threads import one_torch_thread
from arr_stream.tuning.parameters import NAMES, Parameters
from arr_stream.tuning.recording import FrameTable

_HALVINGS = 40

Case = Sequence[FrameTable]
"""Frames of one sequence with one query. Cases have equal weight, regardless of their length."""


@dataclass(frozen=True, slots=True)
class FitOptions:
    """Options of a fit.

    Args:
        steps: Most steps.
        rate: Learning rate of Adam; weights are of the order of 1.
        frames: Frames of each case in one step.
        temperatures: Softness of the choice at the first and the last step, in standard deviations of a frame's scores.
        pull: Weight of the distance from the start.
        every: Steps from one validation to the next.
        patience: Validations without a gain after which fitting stops.
        seed: Seed of the random draws.
    """

    steps: int = 300
    rate: float = 0.02
    frames: int = 6
    temperatures: tuple[float, float] = (0.5, 0.1)
    pull: float = 0.05
    every: int = 10
    patience: int = 8
    seed: int = 0


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
    options: FitOptions | None = None,
    *,
    names: Sequence[str] = NAMES,
    advance: Callable[[int, int, float], bool] = lambda step, steps, coverage: True,
) -> Fit:
    """Return weights whose choice covers more of the object on the validation frames; the start's if none does.

    Args:
        training: Frames that gradients are taken from.
        validation: Frames that decide when to stop.
        start: Weights to start from.
        options: Options of the fit.
        names: Names of the weights to fit.
        advance: Called at each validation with the step, the most steps and the coverage; False ends the fit.

    Returns:
        The fit; the same for the same arguments, to the bit.
    """
    chosen = options or FitOptions()
    parameters = Parameters(start, names)
    optimizer = torch.optim.Adam([parameters.values], lr=chosen.rate)
    generator = np.random.default_rng(chosen.seed)
    with one_torch_thread():
        before = best = hard_coverage(validation, parameters.settings())
        weights, best_step, step = start, 0, 0
        for step in range(1, chosen.steps + 1):
            drawn = [table for case in training for table in _draw(case, chosen.frames, generator)]
            optimizer.zero_grad()
            loss = 1 - soft_coverage(drawn, parameters.weights(), _temperature(chosen, step))
            (loss + chosen.pull * parameters.distance()).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            parameters.confine()
            if step % chosen.every:
                continue
            found = hard_coverage(validation, parameters.settings())
            if found > best:
                best, best_step, weights = found, step, parameters.settings()
            if not advance(step, chosen.steps, best) or step - best_step >= chosen.every * chosen.patience:
                break
    return Fit(weights, step, best_step, before, best)


def _draw(case: Case, count: int, generator: np.random.Generator) -> list[FrameTable]:
    """Draw `count` frames of a case, each at most once if the case has as many."""
    drawn = generator.choice(len(case), count, replace=len(case) < count)
    return [case[index] for index in drawn.tolist()]


def _temperature(options: FitOptions, step: int) -> float:
    """Return the temperature of a step, from the first to the last in equal ratios."""
    first, last = options.temperatures
    done = (step - 1) / max(1, options.steps - 1)
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
