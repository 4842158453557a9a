"""Channels 6 to 12: appearance and motion of the current frame.

All filters run on reduced pictures as 8-bit integers, where OpenCV is fastest; a step of 1/255 is fine enough for every
use of these channels.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, singledispatch
from typing import Any

import cv2
import numpy as np

from arr_stream.texture.array import DeferredPlane, LazyPlane, Plane
from arr_stream.texture.arrays import Array, as_double, as_float, constant, namespace, sent
from arr_stream.texture.layout import CHANNEL_INDEX
from arr_stream.texture.pictures import Pictures, full_picture
from arr_stream.texture.pixels import cell_bytes, cell_colours, colour_shares, picture_planes, resized, solved
from arr_stream.types import FloatArray, Grid

_BYTE = 1 / 255

EDGE_THRESHOLD = 40
"""Gradient (of 255) from which a place counts as an edge for the distance channel."""

_NEIGHBOURS = np.ones((3, 3), np.uint8)

DETAIL_GAIN = 4.0
"""Detail rarely exceeds a quarter of the range."""

ORDINARY = 2.0
"""Squared distance, relative to the mean place's, at which the score is one half."""
UNCERTAINTY = 0.01
"""Share of the mean variance that is added to every variance."""
DULLEST = 0.65
"""Variance added in squared 255ths, so that nothing is salient in a frame of one colour."""


@dataclass(frozen=True, slots=True, eq=False)
class FrameFeatures:
    """Features of one frame by itself.

    Args:
        grey, quarter_grey, eighth_grey: Lightness at half, a quarter and an eighth of the texture's size.
        quarter, eighth: The picture at a quarter and an eighth.
        high_pass: `[H/4, W/4]` in 255ths, fine detail.
        saliency: `[H/8, W/8]` float32 in [0, 1).
        colours: `[512]` share of the picture in each of 8x8x8 colours.
        change: Share of the picture whose colours the previous frame lacks; 1 for a first frame.
    """

    grey: Array
    quarter_grey: Array
    eighth_grey: Array
    quarter: Array
    eighth: Array
    high_pass: Array
    saliency: Array
    colours: Array
    change: Array


def frame_features(rgb: Array, before: Array | None, grid: Grid) -> FrameFeatures:
    """Compute the features of a frame `[H, W, 3]` uint8, and its change from the colours of the frame before."""
    pictures = Pictures(rgb, grid)
    detail, colours = high_pass(pictures.grey), colour_shares(pictures.eighth)
    return FrameFeatures(
        grey=pictures.grey,
        quarter_grey=pictures.quarter_grey,
        eighth_grey=pictures.eighth_grey,
        quarter=pictures.quarter,
        eighth=pictures.eighth,
        high_pass=detail,
        saliency=saliency(pictures.eighth, detail),
        colours=colours,
        change=colours.sum() if before is None else abs(before - colours).sum() / 2,
    )


def picture_channels(
    features: FrameFeatures, rgb: Array, motion: Array, texture_wh: tuple[int, int]
) -> dict[int, Plane | LazyPlane]:
    """Return channels 0 to 12, by the first of each plane; `motion` `[H/8, W/8]` is channel 10."""
    return {
        0: DeferredPlane(0, lambda: picture_planes(full_picture(rgb, texture_wh)), _BYTE),
        **_position_planes(texture_wh, None if isinstance(motion, np.ndarray) else motion.device),
        6: DeferredPlane(6, lambda: polar_edges(features.quarter_grey), _BYTE),
        8: Plane(8, features.high_pass[None], _BYTE),
        9: DeferredPlane(9, lambda: low_pass(features.eighth_grey)[None], _BYTE),
        10: Plane(10, namespace(motion).stack([motion, features.saliency])),
        12: DeferredPlane(12, lambda: edge_distance(polar_edges(features.quarter_grey))[None], _BYTE),
    }


@lru_cache(maxsize=8)
def _position_planes(texture_wh: tuple[int, int], device: Any) -> dict[int, Plane]:
    """Return channels 3 to 5, cached by size; a row and a column are enough for x and y."""
    width, height = texture_wh
    x: FloatArray = ((np.arange(width, dtype=np.float32) + 0.5) / width).astype(np.float32)[None]
    y: FloatArray = ((np.arange(height, dtype=np.float32) + 0.5) / height).astype(np.float32)[:, None]
    made = ("x", x), ("y", y), ("eccentricity", eccentricity((width // 4, height // 4)))
    planes = [Plane(CHANNEL_INDEX[name], sent(values[None], device)) for name, values in made]
    return {plane.first: plane for plane in planes}


@singledispatch
def high_pass(grey: Array) -> Array:
    """Return fine detail, `[h / 2, w / 2]` in 255ths, of lightness `[h, w]` at half size, which still has it."""
    detail = cv2.absdiff(grey, cv2.blur(grey, (7, 7)))
    halved = cv2.resize(detail, (grey.shape[1] // 2, grey.shape[0] // 2), interpolation=cv2.INTER_AREA)
    return cv2.convertScaleAbs(halved, alpha=DETAIL_GAIN)


@singledispatch
def polar_edges(grey: Array) -> Array:
    """Return the two polarities of the Sobel response of lightness `[h, w]`, as `[2, h, w]` in 255ths.

    The first is the increase of lightness to the right or downwards, the second its decrease; a step of half the range
    gives full strength.
    """
    dx, dy = cv2.spatialGradient(grey, ksize=3)
    rising, falling = cv2.max(cv2.max(dx, dy), 0), cv2.min(cv2.min(dx, dy), 0)
    return np.stack([cv2.convertScaleAbs(each, alpha=0.5).reshape(grey.shape) for each in (rising, falling)])


@singledispatch
def low_pass(grey: Array) -> Array:
    """Blur lightness `[h, w]`, in 255ths."""
    return cv2.blur(grey, (5, 5)).reshape(grey.shape)


def saliency(eighth: Array, detail: Array) -> Array:
    """Score how much each place differs from the rest of the frame in colour and detail, `[H/8, W/8]` in [0, 1).

    Places are 16x16 texture pixels; `eighth` is the picture at an eighth of the texture's size, `detail` the high-pass
    channel `[H/4, W/4]` in 255ths.
    """
    hw = detail.shape[0] // 4, detail.shape[1] // 4
    fine = as_float(cell_bytes(detail, hw)).reshape(1, -1)
    looks = namespace(fine).concatenate([cell_colours(eighth, hw).T, fine])
    return resized(unlikeness(looks, DULLEST).reshape(hw), (2 * hw[0], 2 * hw[1]))


def unlikeness(looks: Array, least: float) -> Array:
    """Score how much each of many places differs from the others, `[places]` in [0, 1).

    The anomaly detector of Reed and Yu ("Adaptive multiple-band CFAR detection of an optical pattern with unknown
    spectral distribution", 1990): the squared Mahalanobis distance d of a place's features from the mean of all, as d /
    (d + `ORDINARY` * C).

    Args:
        looks: `[C, places]`, C features of each.
        least: Variance of each feature that counts as noise.
    """
    # Sums of products of bytes are exact in float64, in any order.
    looks = as_double(looks)
    numbers, count = looks.shape
    mean = looks.mean(1)[:, None]
    covariance = looks @ looks.T / count - mean @ mean.T
    least = least + UNCERTAINTY * covariance.diagonal().mean()
    identity, apart = constant(covariance, np.eye, numbers), looks - mean
    distance = (solved(covariance + identity * least, identity) @ apart * apart).sum(0)
    return as_float(distance / (distance + ORDINARY * numbers))


@singledispatch
def edge_distance(edges: Array) -> Array:
    """Return the distance to the nearest edge, over the diagonal, in 255ths; 255 everywhere without an edge.

    From `[2, h, w]` of `polar_edges` it makes `[h / 2, w / 2]` in [0, 255]; an edge in any of the reduced pixels
    counts.
    """
    strength = cv2.max(edges[0], edges[1])
    height, width = strength.shape[0] // 2, strength.shape[1] // 2
    reduced = cv2.resize(cv2.dilate(strength, _NEIGHBOURS), (width, height), interpolation=cv2.INTER_NEAREST)
    _, apart = cv2.threshold(reduced, EDGE_THRESHOLD, 255, cv2.THRESH_BINARY_INV)
    distance = cv2.distanceTransform(apart.reshape(height, width), cv2.DIST_L2, 3)
    diagonal = np.hypot(height, width)
    return cv2.min(distance, diagonal).reshape(height, width) * np.float32(255 / diagonal)


@lru_cache(maxsize=8)
def eccentricity(size_wh: tuple[int, int]) -> FloatArray:
    """Return the distance from the centre, `[h, w]`; 1 in the corners."""
    width, height = size_wh
    x = (np.arange(width, dtype=np.float32) + 0.5) / width * 2 - 1
    y = (np.arange(height, dtype=np.float32) + 0.5) / height * 2 - 1
    distance: FloatArray = (np.hypot(x[None] * width, y[:, None] * height) / np.hypot(width, height)).astype(np.float32)
    return distance
