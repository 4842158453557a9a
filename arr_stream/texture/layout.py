"""The 40 channels: their order, names, ranges and how each is brought to another resolution.

The order is part of the public contract (`arr_stream.texture.CHANNELS`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Interpolation = Literal["linear", "nearest"]


@dataclass(frozen=True, slots=True)
class Channel:
    """One row of the table.

    Args:
        index: Position in the texture, 0 to 39.
        name: Unique name, as in `--set video.view=channel:NAME`.
        low, high: Range of values; `high` is None for ids.
        renewed: Occasion on which its values are recomputed.
        interpolation: Ids and boundaries are taken from the nearest sample, everything else linearly.
        meaning: One line.
    """

    index: int
    name: str
    low: float
    high: float | None
    renewed: str
    interpolation: Interpolation
    meaning: str


def _table() -> tuple[Channel, ...]:
    every, size, keyframe, derived = "every frame", "once a size", "keyframe, propagated", "from 13"
    rows: list[tuple[str, float, float | None, str, Interpolation, str]] = [
        ("red", 0, 1, every, "linear", "the picture's red"),
        ("green", 0, 1, every, "linear", "the picture's green"),
        ("blue", 0, 1, every, "linear", "the picture's blue"),
        ("x", 0, 1, size, "linear", "column, left 0 to right 1"),
        ("y", 0, 1, size, "linear", "row, top 0 to bottom 1"),
        ("eccentricity", 0, 1, size, "linear", "distance from the centre, corner = 1"),
        ("edge_rising", 0, 1, every, "linear", "edges from dark to light, left to right or top to bottom"),
        ("edge_falling", 0, 1, every, "linear", "edges from light to dark"),
        ("high_pass", 0, 1, every, "linear", "fine detail"),
        ("low_pass", 0, 1, every, "linear", "coarse structure: blurred lightness"),
        ("motion", 0, 1, every, "linear", "motion against the camera, and residual of the flow"),
        (
            "saliency",
            0,
            1,
            every,
            "linear",
            "contrast to the rest of the frame: colour, detail and, with CLIP, meaning",
        ),
        ("edge_distance", 0, 1, every, "linear", "distance to the nearest edge, over the diagonal"),
        ("cluster", 0, None, keyframe, "nearest", "id of the region, largest first"),
        ("centroid_distance", 0, 1, derived, "linear", "distance from the region's centroid, over the diagonal"),
        ("cluster_size", 0, 1, derived, "nearest", "share of the frame that the region covers"),
        ("text", 0, 1, keyframe, "linear", "confidence of text"),
        ("boundary", 0, 1, derived, "nearest", "1 on the border of a region"),
        *((f"embedding_{i}", -1, 1, keyframe, "linear", f"embedding, dimension {i} of 16") for i in range(16)),
        ("previous_relevance", 0, 1, every, "linear", "query relevance of the frame before, propagated"),
        ("previous_saliency", 0, 1, every, "linear", "saliency of the frame before, propagated"),
        ("fixation", 0, 1, every, "linear", "decayed sum of selections, propagated"),
        ("attention", 0, 1, "when the model ran", "linear", "attention of the consumer's model, propagated"),
        ("attention_history", 0, 1, every, "linear", "decayed sum of earlier queries and attention, propagated"),
        ("gaze", 0, 1, "when given", "linear", "gaze points, decayed and propagated"),
    ]
    return tuple(Channel(index, *row) for index, row in enumerate(rows))


CHANNELS: tuple[Channel, ...] = _table()
CHANNEL_INDEX: dict[str, int] = {channel.name: channel.index for channel in CHANNELS}
EMBEDDING = slice(18, 34)
"""The 16 embedding channels."""
