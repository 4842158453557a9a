"""Puts another clusterer's work off until something reads its regions.

Cells are chosen without them unless a strategy by region, the cascade or a view asks, and to divide a frame is the
second dearest part of a keyframe.
"""

from __future__ import annotations

from typing import Protocol

from arr_stream.keyframes.base import KeyframeInput, LazyClusters
from arr_stream.types import Clusters


class _Eager(Protocol):
    def cluster(self, picture: KeyframeInput) -> Clusters: ...


class LazyClusterer:
    """A clusterer that keeps the picture until its regions are read, or until the next keyframe.

    Args:
        clusterer: Does the work.
        method: What it will call itself.
    """

    def __init__(self, clusterer: _Eager, method: str) -> None:
        self._clusterer = clusterer
        self._method = method

    def cluster(self, picture: KeyframeInput) -> LazyClusters:
        return LazyClusters(lambda: self._clusterer.cluster(picture), self._method)
