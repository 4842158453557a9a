"""Fit of weights to records: Adam on the coverage of an object by a soft choice, stopped early by the hard one's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from arr_stream.config import ScoringSettings
from arr_stream.relevance.scorers import Change, Sample, balance_tensions
from arr_stream.threads import one_torch_thread

Progress = Callable[[str, int, int], None]
"""Callback for progress: description, amount done, total amount."""
NAMES = tuple(ScoringSettings.model_fields)
DECIMALS = 3
"""Decimals to which fitted weights are rounded before they are tested or written."""
STEPS = 300

_LIMITS = torch.tensor([(0.05, 4.0) if name == "commitment_power" else (0.0, 1.0) for name in NAMES])
"""Least and largest value of each weight."""
_RATE = 0.02
"""Learning rate of Adam; weights are of the order of 1."""
_FRAMES = 6
"""Frames of each case in one step."""
_TEMPERATURES = 0.5, 0.1
"""Softness of the choice at the first and the last step, in standard deviations of a frame's scores."""
_PULL = 0.05
"""Weight of the mean squared distance from the start, in units of each range."""
_EVERY = 10
"""Steps from one validation to the next."""
_PATIENCE = 8
"""Validations without a gain after which fitting stops."""
_HALVINGS = 40


@dataclass(frozen=True, slots=True, eq=False)
class FrameTable:
    """Inputs of the scorers on one frame, and the cells that they should have found.

    Args:
        sample: Channels and relevance of all cells, with a figure, words and change; every number as `[cells]`.
        share: `[cells]`, share of the object's pixels in each cell; sums to 1.
        fine: Number of fine cells that were chosen within the budget.
    """

    sample: Sample
    share: Tensor
    fine: int


Case = Sequence[FrameTable]
"""Frames of one sequence with one query. Cases have equal weight, regardless of their length."""


def leaf(weights: ScoringSettings) -> Tensor:
    """Return the weights as one tensor `[len(NAMES)]` that requires a gradient."""
    return torch.tensor([float(getattr(weights, name)) for name in NAMES], requires_grad=True)


def as_weights(values: Tensor) -> ScoringSettings:
    """Return `leaf` as weights that are 0-d tensors, so that gradients flow through the scorers' own code."""
    weights: Any = dict(zip(NAMES, values.unbind(), strict=True))
    return ScoringSettings.model_construct(**weights)


def rounded(values: Tensor) -> ScoringSettings:
    """Return `leaf` as weights that are plain numbers."""
    numbers = (round(value, DECIMALS) for value in values.detach().tolist())
    return ScoringSettings.model_validate(dict(zip(NAMES, numbers, strict=True)))


def fit(
    training: Sequence[Case],
    validation: Sequence[Case],
    start: ScoringSettings,
    *,
    steps: int = STEPS,
    progress: Progress = lambda what, done, of: None,
) -> ScoringSettings:
    """Return weights whose choice covers more of the object on the validation frames; the start if none does.

    Args:
        training: Frames that gradients are taken from.
        validation: Frames that decide when to stop.
        start: Weights to start from.
        steps: Most steps.
        progress: Called at each validation.

    Returns:
        The weights of the best validation; the same for the same arguments, to the bit.
    """
    values = leaf(start)
    origin, (low, high) = values.detach().clone(), _LIMITS.unbind(dim=1)
    optimizer = torch.optim.Adam([values], lr=_RATE)
    generator = np.random.default_rng(0)
    with one_torch_thread():
        best, best_step, weights = hard_coverage(validation, rounded(values)), 0, start
        for step, temperature in enumerate(np.geomspace(*_TEMPERATURES, steps).tolist(), start=1):
            drawn = [
                case[index]
                for case in training
                for index in generator.choice(len(case), _FRAMES, replace=len(case) < _FRAMES).tolist()
            ]
            optimizer.zero_grad()
            # The pull to the start keeps weights that the data do not determine.
            distance = (((values - origin) / (high - low)) ** 2).mean()
            loss = 1 - soft_coverage(drawn, as_weights(values), temperature) + _PULL * distance
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            with torch.no_grad():
                values.clamp_(low, high)
            if step % _EVERY:
                continue
            found = hard_coverage(validation, rounded(values))
            if found > best:
                best, best_step, weights = found, step, rounded(values)
            progress(f"fit: coverage {best:.3f}", step, steps)
            if step - best_step >= _EVERY * _PATIENCE:
                break
    return weights


def soft_coverage(tables: Sequence[FrameTable], weights: ScoringSettings, temperature: float) -> Tensor:
    """Return the mean share of the object in a soft choice; `temperature` in standard deviations of each frame's
    scores."""
    sums = []
    for cells in dict.fromkeys(len(table.share) for table in tables):
        group = [table for table in tables if len(table.share) == cells]
        scores = frame_scores(group, weights)
        scores = (scores - scores.mean(dim=1, keepdim=True)) / (scores.std(dim=1, keepdim=True) + 1e-6)
        sums.append((soft_topk(scores, _counts(group), temperature) * _shares(group)).sum())
    return torch.stack(sums).sum() / len(tables)


@torch.no_grad()
def hard_coverage(cases: Sequence[Case], weights: ScoringSettings) -> float:
    """Return the mean over cases of the mean share of the object in the best cells, from the records."""
    means = []
    for case in cases:
        chosen = hard_topk(frame_scores(case, weights), _counts(case))
        means.append(float((chosen * _shares(case)).sum(dim=1).mean()))
    return float(np.mean(means))


def frame_scores(group: Case, weights: ScoringSettings) -> Tensor:
    """Return `[F, cells]` scores of frames with as many cells, by the scorers of streams."""
    samples = [table.sample for table in group]
    changes = [sample.change for sample in samples if sample.change is not None]

    def joined(of: Sequence[Any], name: str) -> Tensor:
        return torch.cat([getattr(each, name) for each in of])

    change = Change(*(joined(changes, name) for name in ("cells", "certainty", "known")))
    values = {name: joined(samples, name) for name in ("values", "relevance", "figure", "moved", "words")}
    sample = Sample(**values, change=change)
    answered = torch.cat([each.relevance.max().expand(len(each.relevance)) for each in samples])
    scores: Tensor = balance_tensions(sample, answered, weights)[0]
    return scores.reshape(len(group), -1)


def _counts(group: Case) -> Tensor:
    return torch.tensor([float(table.fine) for table in group])


def _shares(group: Case) -> Tensor:
    return torch.stack([table.share for table in group])


def soft_topk(scores: Tensor, count: Tensor, temperature: float) -> Tensor:
    """Return the share of each place in the best `count`: 1 well above the threshold, 0 well below it.

    The shares p maximise p . scores + temperature * H(p) over 0 <= p <= 1 with sum(p) = count, H being the sum of the
    places' binary entropies: p = sigmoid((scores - t) / temperature), with the one threshold t that spends the budget.
    This is the limited multi-label projection of Amos, Koltun and Kolter, "The Limited Multi-Label Projection Layer"
    (2019). Bisection finds the threshold; one Newton step from there, which does not move it, carries the gradient of
    the implicit function.

    Args:
        scores: `[F, n]`.
        count: `[F]`, each above 0 and below n.
        temperature: Above 0, in units of the scores; towards 0 the shares become those of the hard choice.

    Returns:
        `[F, n]` in [0, 1]; each row sums to its count.
    """
    count = count[:, None]

    def excess(threshold: Tensor) -> Tensor:
        return torch.sigmoid((scores - threshold) / temperature).sum(dim=1, keepdim=True) - count

    with torch.no_grad():
        # A common share of count / n is too little for the best place alone and too much for the worst.
        reach = temperature * torch.log((scores.shape[1] - count) / count)
        low, high = scores.amin(dim=1, keepdim=True) + reach, scores.amax(dim=1, keepdim=True) + reach
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            above = excess(middle) > 0
            low, high = torch.where(above, middle, low), torch.where(above, high, middle)
        threshold = (low + high) / 2
        spread = torch.sigmoid((scores - threshold) / temperature)
        slope = (spread * (1 - spread)).sum(dim=1, keepdim=True).clamp_min(1e-12) / temperature
    return torch.sigmoid((scores - threshold - excess(threshold) / slope) / temperature)


def hard_topk(scores: Tensor, count: Tensor) -> Tensor:
    """Return `[F, n]` of 0 and 1: the best `count` of each row, the first of equals."""
    rank = scores.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
    return (rank < count[:, None]).to(scores.dtype)
