"""Clusterers by name."""

from __future__ import annotations

from dataclasses import dataclass

from arr_stream.config import Settings
from arr_stream.errors import InvalidSetting
from arr_stream.keyframes.base import Clusterer, Embedder, KeyframeInput, LazyClusters
from arr_stream.keyframes.clusters.slic import FastSlic, GridClusterer, SkimageSlic, make_slic


@dataclass(frozen=True, slots=True)
class LazyClusterer:
    """Deferred SLIC: it keeps the picture until the next keyframe.

    Only strategies by region, the cascade and views read regions, and segmenting a frame is the second most expensive
    part of a keyframe.
    """

    slic: FastSlic | SkimageSlic

    def cluster(self, picture: KeyframeInput) -> LazyClusters:
        return LazyClusters(lambda: self.slic.cluster(picture), self.slic.method)


def make_clusterer(settings: Settings, embedder: Embedder | None = None) -> Clusterer:
    """Return the clusterer that `keyframes.clusters` names.

    Args:
        settings: Its name, the number of regions, and its options.
        embedder: Source of the features that `features` clusters.

    Raises:
        InvalidSetting: `features` without an embedder.
        BackendUnavailable, WeightsInvalid: A package or weights are missing or damaged.
    """
    count = settings.keyframes.cluster_count
    match settings.keyframes.clusters:
        case "auto":
            return LazyClusterer(make_slic(count))
        case "slic":
            return make_slic(count)
        case "slic-fast":
            return FastSlic(count)
        case "slic-skimage":
            return SkimageSlic(count)
        case "grid":
            return GridClusterer(count)
        case "merge":
            from arr_stream.keyframes.clusters.merge import MergeClusterer

            return MergeClusterer(count)
        case "features":
            from arr_stream.keyframes.clusters.features import FeatureClusterer

            if embedder is None:
                raise InvalidSetting("keyframes.clusters='features' without an embedder", remedy="pass an embedder")
            return FeatureClusterer(embedder, count)
        case "sam":
            from arr_stream.keyframes.clusters.sam import SamClusterer

            return SamClusterer(settings.sam, settings.models)
