"""Square regions: the degenerate division, blind to what the frame shows."""

from __future__ import annotations

import math

import numpy as np

from arr_stream.keyframes.base import KeyframeInput
from arr_stream.keyframes.clusters.regions import clusters_from_labels
from arr_stream.types import Clusters


class GridClusterer:
    """Divides the frame into `rows x columns` nearly square regions.

    Args:
        count: About how many regions; the nearest division into whole rows and columns is taken.
    """

    def __init__(self, count: int) -> None:
        self.count = count

    def cluster(self, picture: KeyframeInput) -> Clusters:
        height, width = picture.quarter_hw
        rows = min(height, max(1, round(math.sqrt(self.count * height / width))))
        columns = min(width, max(1, round(self.count / rows)))
        row = np.arange(height) * rows // height
        column = np.arange(width) * columns // width
        return clusters_from_labels(row[:, None] * columns + column, "grid")
