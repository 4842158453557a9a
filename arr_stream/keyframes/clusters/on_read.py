"""Regions that are made when something first reads them.

Cells are chosen without them unless a strategy by region, the cascade or a view asks, and to divide a frame is the
second dearest part of a keyframe.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from arr_stream.errors import ArrStreamError, KeyframeFailed
from arr_stream.keyframes.base import Clusterer, KeyframeInput
from arr_stream.types import Clusters, FloatArray, IntArray


class ClustererOnRead:
    """Puts another clusterer's work off; its pictures are kept until then, or until the next keyframe.

    Args:
        clusterer: Does the work.
        method: What it will call itself.
    """

    def __init__(self, clusterer: Clusterer, method: str) -> None:
        self._clusterer = clusterer
        self._method = method

    def cluster(self, picture: KeyframeInput) -> Clusters:
        """Regions that are not there yet; see `ClustersOnRead` for what reading them may raise."""
        return ClustersOnRead(_Later(lambda: self._clusterer.cluster(picture)), self._method)


class _Later:
    """Regions, made once, in whatever thread first asks."""

    def __init__(self, make: Callable[[], Clusters]) -> None:
        self._make: Callable[[], Clusters] | None = make
        self._found: Clusters | None = None
        self._lock = threading.Lock()
        self.check: Callable[[Clusters], None] | None = None

    def made(self) -> Clusters:
        with self._lock:
            if self._found is None:
                assert self._make is not None
                found = self._make()
                if self.check is not None:
                    self.check(found)
                # The picture is free from here on.
                self._found, self._make = found, None
            return self._found


class ClustersOnRead(Clusters):
    """As `Clusters`; reading labels, areas or centroids for the first time makes them. A pickle holds what was made.

    Args:
        later: Makes them.
        method: Their name.

    Raises:
        KeyframeFailed: On reading: they could not be made, or are no regions; likewise at the next reading.
    """

    __slots__ = ("_later",)
    _later: _Later

    def __init__(self, later: _Later, method: str) -> None:
        # Past the frozen dataclass, whose other fields stay empty: the properties below stand before them.
        object.__setattr__(self, "_later", later)
        object.__setattr__(self, "method", method)

    def check_when_made(self, check: Callable[[Clusters], None]) -> None:
        """Let something look at the regions before anybody reads them; it raises where they are none."""
        self._later.check = check

    def _made(self) -> Clusters:
        try:
            return self._later.made()
        except ArrStreamError:
            raise
        except Exception as exc:
            raise KeyframeFailed(f"clusters: {type(exc).__name__}: {' '.join(str(exc).split())}") from exc

    @property
    def labels(self) -> IntArray:
        return self._made().labels

    @property
    def areas(self) -> FloatArray:
        return self._made().areas

    @property
    def centroids_xy(self) -> FloatArray:
        return self._made().centroids_xy

    def __reduce__(self) -> tuple[Any, ...]:
        found = self._made()
        return Clusters, (found.labels, found.areas, found.centroids_xy, found.method)
