"""SLIC superpixels on the picture at a quarter of the texture's size, and square regions as a baseline.

Achanta et al., "SLIC Superpixels Compared to State-of-the-art Superpixel Methods", 2012. Two implementations give
different regions and carry different names in the records.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from arr_stream.errors import BackendUnavailable
from arr_stream.extras import needed_by
from arr_stream.keyframes.base import KeyframeInput
from arr_stream.keyframes.clusters.regions import clusters_from_labels, lattice_hw, pieces_of
from arr_stream.types import ByteArray, Clusters

SKIMAGE_COMPACTNESS, FAST_COMPACTNESS = 10.0, 20.0
"""Weight of position against colour (Lab), on the scale of each implementation; higher values give squarer regions."""

SMALLEST_SHARE = 0.1
"""Regions below this share of the average are joined to a neighbour.

Asked for 50 regions on ten DAVIS sequences, the best that the regions could say of the object's mask (every region in
or out by majority) was a mean IoU of 0.66 with these values for scikit-image; its own default of 0.5 left 20 to 40
regions and 0.39. fast-slic: 0.64, and 0.57 with its own defaults.
"""

ITERATIONS = 5
"""Number of iterations; ten cost half as much again and gain nothing at this size."""

SMALLEST_REGION_PX = 16
"""Least average size of a region in quarter-size pixels; it limits the number of regions."""


class SkimageSlic:
    """SLIC by scikit-image, into about `count` regions."""

    method = "slic-skimage"

    def __init__(self, count: int) -> None:
        self.count = count

    def cluster(self, picture: KeyframeInput) -> Clusters:
        # Loading it takes longer than ten keyframes, and often no regions are read.
        from skimage.segmentation import slic

        rgb = picture.quarter_rgb
        labels = slic(
            rgb,
            n_segments=_fitting(self.count, rgb),
            compactness=SKIMAGE_COMPACTNESS,
            min_size_factor=SMALLEST_SHARE,
            max_num_iter=ITERATIONS,
            enforce_connectivity=True,
            start_label=0,
            channel_axis=-1,
        )
        # Small pieces are merged into a neighbour, but a region may still consist of two pieces.
        return clusters_from_labels(pieces_of(labels), self.method)


class FastSlic:
    """SLIC by fast-slic, into about `count` regions.

    Raises:
        BackendUnavailable: fast-slic is missing.
    """

    method = "slic-fast"

    def __init__(self, count: int) -> None:
        with needed_by("keyframes.clusters=slic-fast", "slic"):
            from fast_slic import Slic
        self.count = count
        self._slic: Any = Slic

    def cluster(self, picture: KeyframeInput) -> Clusters:
        rgb = picture.quarter_rgb
        # A model keeps the previous picture's centres; a new one gives the same regions for the same input.
        model = self._slic(
            num_components=_fitting(self.count, rgb), compactness=FAST_COMPACTNESS, min_size_factor=SMALLEST_SHARE
        )
        return clusters_from_labels(pieces_of(model.iterate(rgb)), self.method)


def make_slic(count: int) -> FastSlic | SkimageSlic:
    """Return fast-slic if it is installed, else scikit-image; `Clusters.method` names it."""
    try:
        return FastSlic(count)
    except BackendUnavailable:
        return SkimageSlic(count)


def _fitting(count: int, rgb: ByteArray) -> int:
    height, width = rgb.shape[:2]
    return max(1, min(count, int(height * width) // SMALLEST_REGION_PX))


class GridClusterer:
    """Clusterer that divides the frame into about `count` nearly square regions, in rows and columns."""

    def __init__(self, count: int) -> None:
        self.count = count

    def cluster(self, picture: KeyframeInput) -> Clusters:
        height, width = picture.quarter_hw
        rows, columns = lattice_hw(self.count, height, width)
        row = np.arange(height) * rows // height
        column = np.arange(width) * columns // width
        return clusters_from_labels(row[:, None] * columns + column, "grid")
