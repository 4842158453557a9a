"""A keyframe's embedding brought to the texture's channels and scored against what a model was asked about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import cv2
import numpy as np

from arr_stream.motion.carry import carry
from arr_stream.motion.flow import Flow
from arr_stream.motion.memory import TemporalCache
from arr_stream.texture.arrays import Array, at_most, namespace
from arr_stream.texture.pixels import averaged, resized
from arr_stream.texture.visual import unlikeness
from arr_stream.types import FloatArray, Grid

if TYPE_CHECKING:
    from arr_stream.relevance.semantic import SemanticSpace

_LEAST_VARIANCE = 1e-6
"""Of a number in [-1, 1]: less is rounding."""


@dataclass(frozen=True, slots=True, eq=False)
class Meanings:
    """How well the places of one embedding fit the phrases that are asked.

    Args:
        version: Of the semantic space that they were scored in; None before there was an embedding.
        maps: By phrase, `[h, w]` in [0, 1].
        unlike: `[h, w]` in [0, 1], how unlike the rest of the frame places are in meaning; None where no model of
            meaning has looked.
    """

    version: int | None = None
    maps: Mapping[str, Array] = field(default_factory=dict)
    unlike: Array | None = None


def renew_meanings(
    cache: TemporalCache, space: SemanticSpace | None, phrases: Sequence[str], known: Meanings
) -> Meanings:
    """Bring a new embedding, or an old one under new queries, to channels 18 to 33 and to meanings.

    Raises:
        ValueError: An embedding in a joint space, and no space to compare it in.
    """
    embedding = cache.embedding
    if embedding is None:
        return Meanings()
    if not embedding.joint:
        if not cache.has_embedding_channels:
            cache.set_embedding_channels(_to_half_cells(embedding.values, cache.grid))
        return known
    if space is None:
        raise ValueError(f"embeddings of {embedding.space!r} are in a joint space: give the pipeline its text encoder")
    if not cache.has_embedding_channels:
        # What was looked at because it was new is no sample of the stream.
        if not cache.embedding_joined:
            space.learn(embedding)
    elif known.version == space.version:
        return known
    channels = _to_half_cells(space.project(embedding), cache.grid)
    cache.set_embedding_channels(channels)
    maps = (cache.put(scores) for scores in space.relevance(channels))
    unlike = unlikeness(channels.reshape(len(channels), -1), _LEAST_VARIANCE).reshape(channels.shape[1:])
    return Meanings(space.version, dict(zip(phrases, maps, strict=True)), cache.put(unlike))


def outstanding(saliency: Array, unlike: Array, way: Flow) -> Array:
    """Saliency `[h, w]` of the present frame, raised to how unlike the rest of an earlier one places were in meaning.

    Args:
        saliency: In [0, 1].
        unlike: `[h', w']` in [0, 1] of the earlier frame.
        way: Back to it; what it does not know of has the saliency that it has.
    """
    carried = still_meant(unlike, way, trust=1.0)
    return namespace(saliency).maximum(saliency, resized(carried, (saliency.shape[0], saliency.shape[1])))


def still_meant(found: Array, way: Flow, trust: float) -> Array:
    """What a model found on an earlier frame, `[h, w]`, carried to this one; fades where carrying lost track.

    Args:
        found: In [0, 1].
        way: Back to that frame.
        trust: Confidence from which it is fully believed.
    """
    confidence = averaged(way.confidence, (found.shape[0], found.shape[1]))
    return carry(found, way, outside=0.0) * at_most(confidence / max(trust, 1e-6), 1.0)


def _to_half_cells(channels: FloatArray, grid: Grid) -> FloatArray:
    """`[16, 2*gh, 2*gw]`: two samples a cell and side, whatever the embedder gave."""
    size_wh = (2 * grid.columns, 2 * grid.rows)
    if channels.shape[1:] == size_wh[::-1]:
        return channels
    return np.stack([cv2.resize(plane, size_wh, interpolation=cv2.INTER_LINEAR) for plane in channels])
