"""Scores of cells: three scorers, each a pure function of sampled channels, and their balance.

*Information* measures visible detail, *perspective* saliency from the viewpoint, *participation* relevance to the
question. All take a `Sample` of N places and return `[N]` values in [0, 1].

The balance resolves three tensions in every choice of places:

- *compress / particularise*: few coarse cells of a large area, or many fine cells of a small one. Decided last, when
scores become levels of detail (`selection.allocation`).
- *exploit / explore*: stay at the places chosen before, or move to better ones. Staying has a small bonus, since
near-ties flicker from frame to frame otherwise.
- *focus / diversify*: places that are both relevant and salient, or any place with information.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from arr_stream.config import ScoringSettings
from arr_stream.texture.array import LazyPlane, Plane, Texture
from arr_stream.texture.arrays import Array, as_float, at_least, at_most, namespace
from arr_stream.texture.layout import CHANNEL_INDEX
from arr_stream.texture.pixels import averaged, middle_of
from arr_stream.types import IntArray

if TYPE_CHECKING:
    from arr_stream.relevance.query_scorers import QueryRelevance

CHANNEL_NAMES = (
    "high_pass",
    "saliency",
    "motion",
    "eccentricity",
    "fixation",
    "attention",
    "attention_history",
    "gaze",
    "text",
)
"""The channels that the three scorers read."""

SCORED_CHANNELS = tuple(CHANNEL_INDEX[name] for name in CHANNEL_NAMES)
_COLUMN = {name: column for column, name in enumerate(CHANNEL_NAMES)}

_OTHERS = 0.85
"""Share of its score that a cell loses where the detector finds another object with full certainty."""

SURE_CHANGE = 0.3
"""Change of a cell's best quarter, above twice the median cell's, that proves a change."""
WRITTEN_POWER = 1.5
"""Added to the exponent of channel 16 where change before a still camera leads, so that only confident text counts."""


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """Evidence of change on one frame (`motion.background`), and its reliability.

    Args:
        cells: `[N]` in [0, 1].
        certainty: In [0, 1], confidence that anything changed, one number or `[N]`: a wrong model finds change
            everywhere, a moving object only in some cells.
        known: In [0, 1], confidence that the camera is still and the background known, one number or `[N]`.
    """

    cells: Array
    certainty: Array | float
    known: Array | float

    @classmethod
    def of(cls, plane: Array, cells_hw: tuple[int, int], known: Array | float) -> Change:
        """Return the change of the cells of a frame.

        Args:
            plane: `[h, w]` evidence of change, at least two values a cell each way.
            cells_hw: Rows and columns of cells.
            known: As above.
        """
        # An object smaller than a cell changes a small part of it, but changes that part clearly.
        quarters = averaged(plane, (2 * cells_hw[0], 2 * cells_hw[1]))
        excess = namespace(plane).amax(quarters) - 2 * middle_of(quarters.reshape(-1))
        cells = averaged(quarters, cells_hw).reshape(-1)
        return cls(cells, at_most(at_least(excess / SURE_CHANGE, 0.0), 1.0), known)

    def lead(self, weights: ScoringSettings) -> Array | float:
        """Share of the score that change takes, in [0, 1]."""
        still = self.known
        share: Array | float = (weights.change * still + weights.change_moving * (1 - still)) * self.certainty
        return share


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """Channels of N places.

    Args:
        values: `[N, len(CHANNEL_NAMES)]`, NumPy on the host, tensors on a device.
        relevance: `[N]` relevance to the query on this frame, carried or computed; zeros without a query.
        figure: `[N]` confidence that each belongs to a moving object (`relevance.figure`); None if unknown.
        moved: The highest figure of any place on the frame, one number or `[N]`.
        words: `[N]`, 1 where the relevance is to words that were read, else 0; None for 0 everywhere.
        change: Evidence of change, or None.
    """

    values: Array
    relevance: Array
    figure: Array | None = None
    moved: Array | float = 0.0
    words: Array | None = None
    change: Change | None = None

    def __getitem__(self, name: str) -> Array:
        return self.values[:, _COLUMN[name]]

    def at(self, places: IntArray) -> Sample:
        """Return some of the places."""
        return replace(
            self,
            values=self.values[places],
            relevance=self.relevance[places],
            figure=None if self.figure is None else self.figure[places],
            words=None if self.words is None else self.words[places],
            change=None if self.change is None else replace(self.change, cells=self.change.cells[places]),
        )


def information(sample: Sample, weights: ScoringSettings) -> Array:
    """Score fine detail."""
    return sample["high_pass"] * _left_by_motion(sample, weights) * (1 - _lead(sample, weights))


def writing(sample: Sample, weights: ScoringSettings) -> Array:
    """Score text that was read, and places that look like text."""
    return sample["text"] ** (1 + WRITTEN_POWER * _lead_before_background(sample, weights)) * _left_by_motion(
        sample, weights
    )


def perspective(sample: Sample, weights: ScoringSettings) -> tuple[Array, Array]:
    """Score saliency, motion and change. Return the score with change, and the score without it."""
    standing = _outstanding(sample, weights)
    if sample.change is None:
        return standing, standing
    return standing + _lead(sample, weights) * (sample.change.cells - standing), standing


def _outstanding(sample: Sample, weights: ScoringSettings) -> Array:
    """Score saliency and motion, weighted towards the fovea as far as change does not lead.

    The fovea is the frame's centre, or the gaze where one is given. It is a prior for frames without better evidence:
    before a still camera's background, change counts anywhere in the frame.
    """
    periphery = namespace(sample.values).minimum(sample["eccentricity"], 1 - sample["gaze"])
    seen = weights.saliency * sample["saliency"] * _left_by_motion(sample, weights)
    seen = seen + weights.motion * sample["motion"]
    if sample.figure is not None:
        seen = seen + weights.figure * sample.figure
    return seen * (1 - weights.fovea * (1 - _lead_before_background(sample, weights)) * periphery)


def _lead(sample: Sample, weights: ScoringSettings) -> Array | float:
    return 0.0 if sample.change is None else sample.change.lead(weights)


def _lead_before_background(sample: Sample, weights: ScoringSettings) -> Array | float:
    """Return the weight of change: the confidence that the camera is still and the background known."""
    return 0.0 if sample.change is None else sample.change.lead(weights) * sample.change.known


def _left_by_motion(sample: Sample, weights: ScoringSettings) -> Array | float:
    """Return the share of their weight that still places keep, since motion captures attention."""
    return 1 - weights.capture * sample.moved


def participation(sample: Sample, weights: ScoringSettings) -> Array:
    """Score relevance to the question, raised by other claims."""
    return 1 - (1 - sample.relevance) * (1 - claim(sample, weights))


def claim(sample: Sample, weights: ScoringSettings) -> Array:
    """Score places by the model's attention and the relevance to earlier questions; overlaps count once."""
    looked = weights.attention * sample["attention"]
    return namespace(looked).maximum(looked, weights.history * sample["attention_history"])


def balance_tensions(sample: Sample, answered: float | Array, weights: ScoringSettings) -> tuple[Array, Array]:
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

    Returns:
        `[N]` scores in [0, 1], and `[3, N]` the contribution of information, perspective and participation to them, in
        this order.
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
    return by_scorer.sum(0).clip(0, 1), by_scorer


@dataclass(frozen=True, slots=True, eq=False)
class CellScores:
    """Scores of a frame's cells.

    Args:
        score: `[cells]` in [0, 1]; a cell that the cascade skipped has half of its region's.
        scorer: `[cells]` int, index into `SCORERS`: the scorer that contributes most.
        saliency, gaze: `[cells]` in [0, 1].
    """

    score: Array
    scorer: Array
    saliency: Array
    gaze: Array


def cell_table(texture: Texture) -> Array:
    """Return `[cells, len(SCORED_CHANNELS)]`: the channels that scorers read, averaged over each cell."""
    return texture.cells(SCORED_CHANNELS).reshape(len(SCORED_CHANNELS), -1).T


def cell_sample(
    table: Array, relevance: QueryRelevance, figure: Array, change: Change | None, weights: ScoringSettings
) -> tuple[Sample, Array | float]:
    """Return all cells as scorers take them, and the best answer of any, to the question or to another claim.

    Args:
        table: As `cell_table` returns it.
        relevance: To the queries.
        figure: `[gh, gw]` in [0, 1], confidence that each cell belongs to a moving object.
        change: Evidence of change in the cells, or None.
        weights: Of the scorers.
    """
    asked, moving = relevance.followed(figure, change).reshape(-1), figure.reshape(-1)
    words = None if relevance.word_cells is None else as_float(relevance.word_cells).reshape(-1)
    answered, moved = namespace(asked).maximum(asked, claim(Sample(table, asked), weights)).max(), moving.max()
    if isinstance(asked, np.ndarray):
        answered, moved = float(answered), float(moved)
    return Sample(table, asked, moving, moved, words, change), answered


def score_cells(
    planes: Mapping[int, Plane | LazyPlane],
    texture_wh: tuple[int, int],
    relevance: QueryRelevance,
    figure: Array,
    change: Change | None,
    weights: ScoringSettings,
) -> CellScores:
    """Score every cell; see `cell_sample`. `planes` include `SCORED_CHANNELS`."""
    table = cell_table(Texture(texture_wh, dict(planes)))
    sample, answered = cell_sample(table, relevance, figure, change, weights)
    score, by_scorer = balance_tensions(sample, answered, weights)
    scorer = namespace(table).argmax(by_scorer, 0)
    return CellScores(without_others(score, relevance), scorer, sample["saliency"], sample["gaze"])


def without_others(score: Array, relevance: QueryRelevance) -> Array:
    """Return scores `[cells]`, lowered where objects were detected that no query names."""
    return score if relevance.others is None else score * (1 - _OTHERS * relevance.others.reshape(-1))
