"""Ways to divide a frame into regions, by name."""

from __future__ import annotations

from collections.abc import Callable

from arr_stream.errors import InvalidSetting
from arr_stream.keyframes.base import Clusterer


def _slic(count: int) -> Clusterer:
    from arr_stream.keyframes.clusters.slic import make_slic

    return make_slic(count)


def _slic_fast(count: int) -> Clusterer:
    from arr_stream.keyframes.clusters.slic import FastSlic

    return FastSlic(count)


def _slic_skimage(count: int) -> Clusterer:
    from arr_stream.keyframes.clusters.slic import SkimageSlic

    return SkimageSlic(count)


def _grid(count: int) -> Clusterer:
    from arr_stream.keyframes.clusters.grid import GridClusterer

    return GridClusterer(count)


CLUSTERERS: dict[str, Callable[[int], Clusterer]] = {
    "auto": _slic,
    "slic": _slic,
    "slic-fast": _slic_fast,
    "slic-skimage": _slic_skimage,
    "grid": _grid,
}


def make_clusterer(name: str, count: int) -> Clusterer:
    """The clusterer of that name, for about `count` regions.

    Raises:
        InvalidSetting: No clusterer has that name, or `count` is below 1.
        BackendUnavailable: Its package is missing.
    """
    if name not in CLUSTERERS:
        raise InvalidSetting(f"keyframes.clusters={name!r}", remedy=f"choose one of {', '.join(CLUSTERERS)}")
    if count < 1:
        raise InvalidSetting(f"keyframes.cluster_count={count}", remedy="give at least 1")
    return CLUSTERERS[name](count)
