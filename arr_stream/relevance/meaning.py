"""Conversion of a keyframe's embedding to the texture's channels, and its scores against the queries of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import cv2
import numpy as np

from arr_stream.motion.flow import Flow, carry
from arr_stream.motion.keyframe_results import KeyframeResults
from arr_stream.texture.arrays import Array, at_most, namespace
from arr_stream.texture.pixels import averaged, resized
from arr_stream.texture.visual import unlikeness
from arr_stream.types import FloatArray, Grid

if TYPE_CHECKING:
    from arr_stream.relevance.semantic import SemanticSpace

_LEAST_VARIANCE = 1e-6
"""Smallest variance of a number in [-1, 1] that is more than rounding."""


@dataclass(frozen=True, slots=True, eq=False)
class Meanings:
    """Fit of the places of one embedding to the queried phrases.

    Args:
        version: Version of the semantic space of the scores; None before the first embedding.
        maps: By phrase, `[h, w]` in [0, 1].
        unlike: `[h, w]` in [0, 1], how much each place differs in meaning from the rest of the frame; None without an
            embedding model.
    """

    version: int | None = None
    maps: Mapping[str, Array] = field(default_factory=dict)
    unlike: Array | None = None


def renew_meanings(
    results: KeyframeResults, space: SemanticSpace | None, phrases: Sequence[str], known: Meanings
) -> Meanings:
    """Bring a new embedding, or an old one under new queries, to channels 18 to 33 and to meanings.

    Raises:
        ValueError: An embedding in a joint space, and no space to compare it in.
    """
    embedding = results.embedding
    if embedding is None:
        return Meanings()
    if not embedding.joint:
        if not results.has_embedding_channels:
            results.set_embedding_channels(_to_half_cells(embedding.values, results.grid))
        return known
    if space is None:
        raise ValueError(f"embeddings of {embedding.space!r} are in a joint space: give the pipeline its text encoder")
    if not results.has_embedding_channels:
        # A window was chosen for its new content, so it is not a representative sample of the stream.
        if not results.embedding_joined:
            space.learn(embedding)
    elif known.version == space.version:
        return known
    channels = _to_half_cells(space.project(embedding), results.grid)
    results.set_embedding_channels(channels)
    maps = (results.put(scores) for scores in space.relevance(channels))
    unlike = unlikeness(channels.reshape(len(channels), -1), _LEAST_VARIANCE).reshape(channels.shape[1:])
    return Meanings(space.version, dict(zip(phrases, maps, strict=True)), results.put(unlike))


def with_semantic_saliency(saliency: Array, unlike: Array, flow: Flow) -> Array:
    """Return saliency `[h, w]` of the current frame, raised where places of an earlier frame differed in meaning from
    its rest.

    Args:
        saliency: In [0, 1].
        unlike: `[h', w']` in [0, 1] of the earlier frame.
        flow: Flow back to it; places that it does not cover keep their saliency.
    """
    carried = still_meant(unlike, flow, trust=1.0)
    return namespace(saliency).maximum(saliency, resized(carried, (saliency.shape[0], saliency.shape[1])))


def still_meant(found: Array, flow: Flow, trust: float) -> Array:
    """Carry a model's result `[h, w]` from an earlier frame to this one; it fades where the flow is unreliable.

    Args:
        found: In [0, 1].
        flow: Flow back to that frame.
        trust: Confidence at which it has full weight.
    """
    confidence = averaged(flow.confidence, (found.shape[0], found.shape[1]))
    return carry(found, flow, outside=0.0) * at_most(confidence / max(trust, 1e-6), 1.0)


def _to_half_cells(channels: FloatArray, grid: Grid) -> FloatArray:
    """Return `[16, 2*gh, 2*gw]`: two samples per cell and side, for any size of the embedder's output."""
    size_wh = (2 * grid.columns, 2 * grid.rows)
    if channels.shape[1:] == size_wh[::-1]:
        return channels
    return np.stack([cv2.resize(plane, size_wh, interpolation=cv2.INTER_LINEAR) for plane in channels])
