"""Balance of three tensions in every choice of places.

- *compress / particularise*: few coarse cells of a large area, or many fine cells of a small one. Decided last, when
scores become levels of detail (`attending`).
- *exploit / explore*: stay at the places chosen before, or move to better ones. Staying has a small bonus, since
near-ties flicker from frame to frame otherwise, most of all with a bonus for places not chosen lately.
`selection.novelty` handles cells that the model already has.
- *focus / diversify*: places that are both relevant and salient, or any place with information.
"""

from __future__ import annotations

from dataclasses import dataclass

from arr_stream.config import ScoringSettings
from arr_stream.relevance.scorers import Sample, information, participation, perspective, writing
from arr_stream.texture.arrays import Array, namespace


@dataclass(frozen=True, slots=True, eq=False)
class Balance:
    """Scores of N places and their parts.

    Args:
        score: `[N]` in [0, 1].
        by_scorer: `[3, N]` contribution of information, perspective and participation to the score, in this order.
    """

    score: Array
    by_scorer: Array


def balance_tensions(sample: Sample, answered: float | Array, weights: ScoringSettings) -> Balance:
    """Score places from the three scorers.

    score = c * focus + (1 - c) * diversify, where w are the weights

    - focus = participation * (1 - s * (1 - standing)): relevance leads, and of equally relevant places, moving objects
    come first; standing is perspective without change. s is w.settling, and 1 if anything moves with full confidence,
    since most questions are about objects (for words, whose places are known, s is 0);
    - diversify = w.information * information + w.text * writing + w.perspective * perspective + w.stay * fixation;
    - c = w.commitment * answered ** w.commitment_power: commitment grows with the highest relevance on this frame, or
    with the highest other claim (`scorers.claim`), so that a query without a match falls back to exploring.

    The source of these terms lowers commitment as participation rises, so the most relevant place has the least weight
    on focus; here the sign is reversed.

    Args:
        sample: Channels of the places.
        answered: Highest relevance on this frame, in [0, 1]; 0 without a query or another claim. On a device, it is a
            tensor; this function does not wait for it.
        weights: Weights of the parts.
    """
    commitment = weights.commitment * answered**weights.commitment_power
    known, (seen, standing) = information(sample, weights), perspective(sample, weights)
    settling = weights.settling + (1 - weights.settling) * sample.moved
    if sample.words is not None:
        settling = settling * (1 - sample.words)
    focus = participation(sample, weights) * (1 - settling + settling * standing)
    by_scorer = namespace(seen).stack(
        [
            (1 - commitment) * (weights.information * known + weights.text * writing(sample, weights)),
            (1 - commitment) * (weights.perspective * seen + weights.stay * sample["fixation"]),
            commitment * focus,
        ]
    )
    return Balance(by_scorer.sum(0).clip(0, 1), by_scorer)
