"""Weighs three tensions that every choice of places must settle.

- *compress / particularise*: few coarse looks at much, or many fine looks at little. Settled last, where scores
  become levels of detail (`attending`).
- *exploit / explore*: stay where one looked before, or go where something better has turned up. Staying has a small
  bonus, without which near-ties flicker from frame to frame, most so with a bonus for places not looked at lately.
  What the model has already seen is left to `selection.novelty`.
- *focus / diversify*: what the question and the eye agree on, or whatever carries information.
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

    - focus = participation * (1 - s * (1 - standing)): the question leads, and of what answers it equally well, what
      moves as a thing comes first; standing is perspective without change. s is w.settling, and 1 where anything surely
      moves, since most questions are about things (words are where they were read: nothing is settled for them);
    - diversify = w.information * information + w.text * writing + w.perspective * perspective + w.stay * fixation;
    - c = w.commitment * answered ** w.commitment_power: commitment grows with the best answer to the question on this
      frame, or with the best other claim (`scorers.claim`), so that a query without a match falls back to exploring.

    The source of these terms let commitment fall as participation rises, which gives the most relevant place the least
    weight on focus; the sign here is the other one.

    Args:
        sample: Channels of the places.
        answered: How well the question is answered anywhere on this frame, in [0, 1]; 0 without a query and any other
            claim. On a device a tensor; this function does not wait for it.
        weights: How much each part counts.
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
