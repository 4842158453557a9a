"""Three ways of knowing what matters, each a pure function of sampled channels.

*Information* asks what is there to see, *perspective* what stands out from here, *participation* what the question
makes of it. All take a `Sample` of N places and give `[N]` values in [0, 1].
"""

from __future__ import annotations

from dataclasses import dataclass

from arr_stream.config import ScoringSettings
from arr_stream.texture.arrays import Array, namespace
from arr_stream.texture.layout import CHANNEL_INDEX

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


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """Channels of N places.

    Args:
        values: `[N, len(CHANNEL_NAMES)]`, NumPy on the host, tensors on a device.
        relevance: `[N]` relevance to the query on this frame, carried or computed; zeros without a query.
        figure: `[N]` how surely each belongs to what moves (`relevance.figure`); None where that is not known.
        moved: The highest figure of any place on the frame, one number or `[N]`.
        words: `[N]`, 1 where the relevance is to words that were read, else 0; None for 0 everywhere.
    """

    values: Array
    relevance: Array
    figure: Array | None = None
    moved: Array | float = 0.0
    words: Array | None = None

    def __getitem__(self, name: str) -> Array:
        return self.values[:, _COLUMN[name]]


def information(sample: Sample, weights: ScoringSettings) -> Array:
    """How much there is to see: fine detail."""
    return sample["high_pass"] * _left_by_motion(sample, weights)


def writing(sample: Sample, weights: ScoringSettings) -> Array:
    """What is written, and what looks as if something were."""
    return sample["text"] * _left_by_motion(sample, weights)


def perspective(sample: Sample, weights: ScoringSettings) -> Array:
    """What stands out from where one looks: saliency and motion, weighted towards the fovea.

    The fovea is the frame's centre, or the gaze where one is given.
    """
    periphery = namespace(sample.values).minimum(sample["eccentricity"], 1 - sample["gaze"])
    outstanding = weights.saliency * sample["saliency"] * _left_by_motion(sample, weights)
    outstanding = outstanding + weights.motion * sample["motion"]
    if sample.figure is not None:
        outstanding = outstanding + weights.figure * sample.figure
    return outstanding * (1 - weights.fovea * periphery)


def _left_by_motion(sample: Sample, weights: ScoringSettings) -> Array | float:
    """What still things keep of their weight: what moves captures attention, as it does a viewer's."""
    return 1 - weights.capture * sample.moved


def participation(sample: Sample, weights: ScoringSettings) -> Array:
    """What the question asks for, raised by what has a claim beside it."""
    return 1 - (1 - sample.relevance) * (1 - claim(sample, weights))


def claim(sample: Sample, weights: ScoringSettings) -> Array:
    """Where the model itself looked, or what earlier questions were about; what is both counts once."""
    looked = weights.attention * sample["attention"]
    return namespace(looked).maximum(looked, weights.history * sample["attention_history"])
