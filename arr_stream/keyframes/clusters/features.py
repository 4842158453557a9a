"""Regions of places with similar embeddings that are near each other.

Three steps. The embedding's samples are clustered by k-means in features and position together, so that the squared
distance is 0.6 of features and 0.4 of position, each measured in its own spread over the frame; four times the
requested number of clusters, seeded on a lattice, so that the same embedding always gives the same regions. Connected
pieces then merge by the same distance until the requested number is left. Last, every pixel beside a border takes the
label of the nearby sample with the most similar colour (joint bilateral upsampling, Kopf et al., 2007), since an
embedding has one sample for 16 pixels and objects end between samples.

On every twentieth frame of ten DAVIS sequences, with the appearance embedder and 50 regions, the best union of regions
has an IoU of 0.72 with the object's mask, and 0.69 without the last step; SLIC's have 0.66.
"""

from __future__ import annotations

import math

import cv2
import numpy as np
import numpy.typing as npt

from arr_stream.errors import KeyframeFailed
from arr_stream.keyframes.base import Embedder, KeyframeInput
from arr_stream.keyframes.clusters.merge import RegionGraph, merged
from arr_stream.keyframes.clusters.regions import (
    absorb_small,
    clusters_from_labels,
    lattice_hw,
    pieces_of,
    shared_borders,
)
from arr_stream.types import ByteArray, Clusters, FloatArray, IntArray

FEATURE_WEIGHT = 0.6
"""Share of features in the squared distance; position has the rest."""

CLUSTERS_A_REGION = 4
ROUNDS = 8

SMALLEST_SHARE = 0.02
"""Specks below this share of the average region, which the last step can leave, merge into their surroundings."""

COLOUR_STEP = 15.0
"""Difference in CIE Lab that weighs as much as a sample's distance, in the last step."""

_LEAST_SPREAD = 1e-3
"""Spread of features below which differences are rounding errors, which must not be scaled up."""


class FeatureClusterer:
    """Clusterer of an embedding with a spatial penalty, into about `count` connected regions."""

    def __init__(self, embedder: Embedder, count: int) -> None:
        self.embedder = embedder
        self.count = count

    def cluster(self, picture: KeyframeInput) -> Clusters:
        """Return regions at a quarter of the texture's size.

        Raises:
            KeyframeFailed: The embedding holds values that are not numbers.
        """
        values = self.embedder.embed(picture).values
        if not np.isfinite(values).all():
            raise KeyframeFailed(
                f"features: the embedding of {self.embedder.name} holds values that are not numbers",
                remedy="choose another keyframes.clusters",
            )
        labels = labels_from_features(values, self.count)
        labels = follow_colour(labels, picture.quarter_rgb)
        labels = absorb_small(labels, SMALLEST_SHARE * labels.size / self.count)
        return clusters_from_labels(pieces_of(labels), f"features ({self.embedder.name})")


def labels_from_features(values: FloatArray, count: int) -> IntArray:
    """Return connected regions of samples `[D, h, w]`: at most `count` ids, `[h, w]` int32."""
    height, width = values.shape[1:]
    if height * width == 1:
        return np.zeros((1, 1), np.int32)
    points = _points(values)
    seeds = points[_lattice(height, width, CLUSTERS_A_REGION * count)]
    nearest = ((seeds * seeds).sum(axis=1) - 2.0 * (points @ seeds.T)).argmin(axis=1).astype(np.int32)
    rounds = cv2.TERM_CRITERIA_MAX_ITER, ROUNDS, 0.0
    _, nearest, _ = cv2.kmeans(points, len(seeds), nearest, rounds, 1, cv2.KMEANS_USE_INITIAL_LABELS)
    labels = pieces_of(nearest.reshape(height, width))
    flat = labels.ravel()
    looks = np.stack([np.bincount(flat, plane) for plane in points.T], axis=1).astype(np.float64)
    graph = RegionGraph(np.bincount(flat).astype(np.float64), looks, *shared_borders(labels))
    return np.asarray(merged(graph, count)[labels], np.int32)


def _points(values: FloatArray) -> FloatArray:
    """Return `[h*w, D+2]`, features and position; squared distances are 0.6 of the one and 0.4 of the other."""
    _, height, width = values.shape
    y, x = np.mgrid[:height, :width]
    features = _spread_to_one(values.reshape(len(values), -1).T)
    places = _spread_to_one(np.stack([x.ravel(), y.ravel()], axis=1).astype(np.float32))
    return np.hstack([math.sqrt(FEATURE_WEIGHT) * features, math.sqrt(1.0 - FEATURE_WEIGHT) * places])


def _spread_to_one(vectors: FloatArray) -> FloatArray:
    """Return points centred and scaled to a mean squared length of one."""
    centred = vectors - vectors.mean(axis=0)
    spread = float(np.sqrt((centred * centred).sum(axis=1).mean()))
    return np.asarray(centred / max(spread, _LEAST_SPREAD), np.float32)


def _lattice(height: int, width: int, count: int) -> npt.NDArray[np.intp]:
    """Return places of about `count` seeds on an even lattice, as indices into `h*w`."""
    rows, columns = lattice_hw(count, height, width)
    y = ((np.arange(rows) + 0.5) * height / rows).astype(np.intp)
    x = ((np.arange(columns) + 0.5) * width / columns).astype(np.intp)
    return (y[:, None] * width + x).ravel()


def follow_colour(labels: IntArray, rgb: ByteArray) -> IntArray:
    """Enlarge a label map `[h, w]` to the size of a picture `[H, W, 3]`, with borders along the picture's edges.

    A pixel takes the label of one of the nine samples around it: the one with the least sum of the squared distance,
    in samples, and the squared difference in colour, in steps of `COLOUR_STEP`.
    """
    (height, width), (rows, columns) = rgb.shape[:2], labels.shape
    lab = cv2.cvtColor(rgb.astype(np.float32) / 255.0, cv2.COLOR_RGB2LAB) / COLOUR_STEP
    means = np.asarray(cv2.resize(lab, (columns, rows), interpolation=cv2.INTER_AREA), np.float32)
    y = ((np.arange(height) + 0.5) * rows / height - 0.5).astype(np.float32)
    x = ((np.arange(width) + 0.5) * columns / width - 0.5).astype(np.float32)
    row, column = np.rint(y).astype(np.intp), np.rint(x).astype(np.intp)
    made = labels[row[:, None], column].astype(np.int32)
    # Away from borders all nine agree, so only pixels beside a border are compared.
    ids, square = labels.astype(np.float32), np.ones((3, 3), np.uint8)
    at_border = cv2.dilate(ids, square) != cv2.erode(ids, square)
    beside = at_border[row[:, None], column]
    here_y, here_x = np.nonzero(beside)
    colours, least = lab[here_y, here_x], np.full(len(here_y), np.inf, np.float32)
    chosen = made[here_y, here_x]
    for step_y in (-1, 0, 1):
        for step_x in (-1, 0, 1):
            r = np.clip(row[here_y] + step_y, 0, rows - 1)
            c = np.clip(column[here_x] + step_x, 0, columns - 1)
            differ = colours - means[r, c]
            cost = (differ * differ).sum(axis=1) + (y[here_y] - r) ** 2 + (x[here_x] - c) ** 2
            better = cost < least
            least, chosen = np.where(better, cost, least), np.where(better, labels[r, c], chosen)
    made[here_y, here_x] = chosen
    return np.asarray(made, np.int32)
