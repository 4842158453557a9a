"""The best k of n, made differentiable."""

from __future__ import annotations

import torch
from torch import Tensor

_HALVINGS = 40


def soft_topk(scores: Tensor, count: Tensor, temperature: float) -> Tensor:
    """How far each place is among the best `count`: 1 well above the threshold, 0 well below it.

    The shares p maximise p . scores + temperature * H(p) over 0 <= p <= 1 with sum(p) = count, H being the sum of the
    places' binary entropies: p = sigmoid((scores - t) / temperature), with the one threshold t that spends the budget.
    This is the limited multi-label projection of Amos, Koltun and Kolter, "The Limited Multi-Label Projection Layer"
    (2019). The threshold is found by bisection; one Newton step from there, which does not move it, carries the
    gradient of the implicit function.

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
    """`[F, 1]`: where the shares add up to the count."""
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
    """`[F, n]` of 0 and 1: the best `count` of each row, the first of equals."""
    order = scores.argsort(dim=1, descending=True, stable=True)
    rank = torch.empty_like(order)
    rank.scatter_(1, order, torch.arange(scores.shape[1], device=scores.device).expand_as(order))
    return (rank < count[:, None]).to(scores.dtype)
