"""Ways to divide a frame into regions, by name."""

from __future__ import annotations

from collections.abc import Callable

from arr_stream.config import Settings
from arr_stream.errors import InvalidSetting
from arr_stream.keyframes.base import Clusterer, Embedder
from arr_stream.keyframes.clusters.on_read import LazyClusterer
from arr_stream.keyframes.clusters.slic import FastSlic, GridClusterer, SkimageSlic, make_slic


def _count(settings: Settings) -> int:
    return settings.keyframes.cluster_count


def _slic(settings: Settings, embedder: Embedder | None) -> Clusterer:
    return make_slic(_count(settings))


def _slic_on_read(settings: Settings, embedder: Embedder | None) -> Clusterer:
    slic = make_slic(_count(settings))
    return LazyClusterer(slic, slic.method)


def _merge(settings: Settings, embedder: Embedder | None) -> Clusterer:
    from arr_stream.keyframes.clusters.merge import MergeClusterer

    return MergeClusterer(_count(settings))


def _features(settings: Settings, embedder: Embedder | None) -> Clusterer:
    from arr_stream.keyframes.clusters.features import FeatureClusterer

    if embedder is None:
        raise InvalidSetting("keyframes.clusters='features' without an embedder", remedy="hand one over")
    return FeatureClusterer(embedder, _count(settings))


def _sam(settings: Settings, embedder: Embedder | None) -> Clusterer:
    from arr_stream.keyframes.clusters.sam import SamClusterer

    return SamClusterer(settings.sam, settings.models)


CLUSTERERS: dict[str, Callable[[Settings, Embedder | None], Clusterer]] = {
    "auto": _slic_on_read,
    "slic": _slic,
    "slic-fast": lambda settings, embedder: FastSlic(_count(settings)),
    "slic-skimage": lambda settings, embedder: SkimageSlic(_count(settings)),
    "grid": lambda settings, embedder: GridClusterer(_count(settings)),
    "merge": _merge,
    "features": _features,
    "sam": _sam,
}


def make_clusterer(settings: Settings, embedder: Embedder | None = None, *, at_once: bool = False) -> Clusterer:
    """The clusterer that `keyframes.clusters` names.

    Args:
        settings: Its name, the number of regions, and what else it needs.
        embedder: What `features` clusters by.
        at_once: Never put the work off until the regions are read; for whoever measures it.

    Raises:
        InvalidSetting: `features` without an embedder.
        BackendUnavailable: A package or weights are missing.
        WeightsInvalid: Weights that are damaged or of another model.
    """
    name = settings.keyframes.clusters
    return CLUSTERERS["slic" if at_once and name == "auto" else name](settings, embedder)
