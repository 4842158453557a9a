"""Where a region lies, as numbers that a transformer can use.

A region has no single row and column, so its place is given by 2, 4 or 6 values, each with its own equal share of the
dimensions, and each share rotated as in rotary position embedding (Su et al., "RoFormer: Enhanced Transformer with
Rotary Position Embedding", 2021).
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from arr_stream.selection.atlas import SemanticAtlas
from arr_stream.types import FloatArray

PositionKind = Literal["centroid", "corners", "corners_and_size"]

STEPS = 100.0
"""Positions are counted in hundredths of the frame. The quickest pair of dimensions turns by one radian a step, so
that neighbouring regions differ, and the slowest by less than one turn over the frame."""


def region_positions(atlas: SemanticAtlas, kind: PositionKind) -> FloatArray:
    """Places of an atlas's regions, normalised by the grid's width and height.

    Args:
        atlas: The regions.
        kind: `centroid`: x, y of the mean of the region's cells. `corners`: left, top, right, bottom of its box.
            `corners_and_size`: the corners, then width and height of the box.

    Returns:
        `[regions, 2 | 4 | 6]` float32 in [0, 1].

    Raises:
        ValueError: No such kind.
    """
    if kind == "centroid":
        return atlas.centroids_xy
    corners: FloatArray = (atlas.boxes_xyxy / np.array([atlas.hw[1], atlas.hw[0]] * 2)).astype(np.float32)
    if kind == "corners":
        return corners
    if kind == "corners_and_size":
        return np.concatenate([corners, corners[:, 2:] - corners[:, :2]], axis=1)
    raise ValueError(f"positions {kind!r} are not known; there are centroid, corners and corners_and_size")


def rotary_encoding(
    positions: FloatArray, dimensions: int, *, base: float = 10_000.0, steps: float = STEPS
) -> tuple[FloatArray, FloatArray]:
    """Cosines and sines by which queries and keys are rotated.

    With P values a position, value p owns dimensions p * D to (p + 1) * D, where D = dimensions / P. Its pair i
    (dimensions 2i and 2i + 1 of its share) turns by the angle

        steps * position[p] * base ** (-2 * i / D),    i = 0 ... D / 2 - 1.

    A dot product of two vectors rotated this way depends on the difference of their positions alone.

    Args:
        positions: `[N, P]`, any real values, usually in [0, 1].
        dimensions: Length of the vectors to be rotated; a multiple of 2 P.
        base: How much slower the slowest pair turns than the quickest, about.
        steps: Steps in a position of 1.

    Returns:
        cos and sin, each `[N, dimensions]` float32; both entries of a pair hold the same value.

    Raises:
        ValueError: The dimensions do not divide into pairs for each value.
    """
    count, values = positions.shape
    if dimensions < 1 or values < 1 or dimensions % (2 * values):
        raise ValueError(
            f"{dimensions} dimensions do not divide into pairs for {values} values a position; "
            f"take a multiple of {2 * max(values, 1)}"
        )
    share = dimensions // values
    frequency = base ** (-2.0 * np.arange(share // 2) / share)
    angles = (positions.astype(np.float64) * steps)[:, :, None] * frequency
    paired = np.repeat(angles, 2, axis=2).reshape(count, dimensions)
    return np.cos(paired).astype(np.float32), np.sin(paired).astype(np.float32)


def apply_rotary(x: FloatArray, cos: FloatArray, sin: FloatArray) -> FloatArray:
    """Rotate vectors pair by pair: (a, b) becomes (a cos - b sin, a sin + b cos).

    Args:
        x: `[..., N, d]`.
        cos, sin: `[N, d]` from `rotary_encoding`.

    Returns:
        `[..., N, d]` of the same lengths.

    Raises:
        ValueError: The shapes do not belong together.
    """
    if x.shape[-2:] != cos.shape or cos.shape != sin.shape:
        raise ValueError(f"vectors {list(x.shape)} do not fit an encoding of {list(cos.shape)}")
    turned = np.empty_like(x)
    turned[..., 0::2], turned[..., 1::2] = -x[..., 1::2], x[..., 0::2]
    rotated: FloatArray = (x * cos + turned * sin).astype(x.dtype)
    return rotated
