"""What every clusterer promises."""

from __future__ import annotations

import sys

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from arr_stream.config import Settings
from arr_stream.errors import BackendUnavailable
from arr_stream.keyframes.base import Clusterer, KeyframeInput, LazyClusters
from arr_stream.keyframes.clusters import LazyClusterer, make_clusterer
from arr_stream.keyframes.clusters.regions import clusters_from_labels
from arr_stream.keyframes.clusters.slic import SkimageSlic
from arr_stream.keyframes.embeddings import make_embedder
from arr_stream.types import Clusters
from tests.keyframe_fakes import seen

HERE = ["auto", "slic", "slic-fast", "slic-skimage", "grid", "merge", "features"]
"""SAM needs weights; tests/test_sam.py holds it to the same promises."""

SLIC = ["auto", "slic", "slic-fast", "slic-skimage"]


def made(name: str, count: int) -> Clusterer:
    settings = Settings().with_values({"keyframes.clusters": name, "keyframes.cluster_count": count})
    return make_clusterer(settings, make_embedder(settings))


def clusterer(name: str, count: int) -> Clusterer:
    try:
        return made(name, count)
    except BackendUnavailable as exc:
        pytest.skip(str(exc))


def two_halves(size_wh: tuple[int, int] = (416, 256)) -> npt.NDArray[np.uint8]:
    """Red left, blue right, with a little noise, so that regions have something to follow."""
    width, height = size_wh
    rgb = np.zeros((height, width, 3), np.uint8)
    rgb[:, : width // 2, 0] = 200
    rgb[:, width // 2 :, 2] = 200
    noise = np.random.default_rng(0).integers(0, 30, rgb.shape, np.uint8)
    return rgb + noise


def assert_sound(clusters: Clusters) -> None:
    labels, count = clusters.labels, clusters.count
    sizes = np.bincount(labels.ravel(), minlength=count)
    assert labels.dtype == np.int32
    assert labels.min() == 0 and labels.max() == count - 1 and (sizes > 0).all()
    assert (np.diff(sizes) <= 0).all()
    np.testing.assert_allclose(clusters.areas, sizes / labels.size, rtol=1e-5)
    assert clusters.areas.sum() == pytest.approx(1.0, abs=1e-4)
    column, row = (clusters.centroids_xy * (labels.shape[1], labels.shape[0])).astype(int).T
    np.testing.assert_array_equal(labels[row, column], np.arange(count))


@pytest.mark.parametrize("name", HERE)
def test_labels_are_sound_at_any_size_on_anything_and_every_time_the_same(name: str) -> None:
    made = clusterer(name, 12)
    for width, height in ((1, 1), (8, 8), (320, 33), (427, 240)):
        noise = seen(np.random.default_rng(1).integers(0, 255, (height, width, 3), np.uint8))
        plain = seen(np.full((height, width, 3), 128, np.uint8))
        first, between, second = (made.cluster(one) for one in (noise, plain, noise))
        for clusters in (first, between):
            assert_sound(clusters)
            assert clusters.labels.shape == noise.quarter_hw
        np.testing.assert_array_equal(first.labels, second.labels)


@pytest.mark.parametrize("name", HERE)
@pytest.mark.parametrize("count", [1, 7, 200])
def test_count_is_about_what_was_asked(name: str, count: int) -> None:
    clusters = clusterer(name, count).cluster(seen(two_halves()))
    assert_sound(clusters)
    assert count / 2 <= clusters.count <= max(count * 2, 4)


@pytest.mark.parametrize("name", SLIC)
def test_slic_regions_hang_together_and_follow_colour(name: str) -> None:
    from skimage.measure import label

    clusters = clusterer(name, 40).cluster(seen(two_halves((400, 256))))
    assert label(clusters.labels, background=-1, connectivity=1).max() == clusters.count
    width = clusters.labels.shape[1]
    left = np.unique(clusters.labels[:, : width // 2 - 1])
    right = np.unique(clusters.labels[:, width // 2 + 1 :])
    assert not set(left) & set(right)


def test_method_names_what_made_it() -> None:
    halves = seen(two_halves())
    chosen = {name: made(name, 4).cluster(halves).method for name in ("auto", "slic", "grid", "slic-skimage")}
    try:
        made("slic-fast", 4)
        best = "slic-fast"
    except BackendUnavailable:
        best = "slic-skimage"
    assert chosen == {"auto": best, "slic": best, "grid": "grid", "slic-skimage": "slic-skimage"}


def test_missing_package_is_an_error_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fast_slic", None)
    with pytest.raises(BackendUnavailable, match="pip install --no-build-isolation fast-slic"):
        made("slic-fast", 4)


@settings(max_examples=60, deadline=None)
@given(arrays(np.int64, st.tuples(st.integers(1, 12), st.integers(1, 12)), elements=st.integers(-3, 5)))
def test_any_label_map_becomes_sound(labels: npt.NDArray[np.int64]) -> None:
    clusters = clusters_from_labels(labels, "any")
    assert_sound(clusters)
    assert clusters.count == len(np.unique(labels))
    same_before = labels[:, :, None, None] == labels
    same_after = clusters.labels[:, :, None, None] == clusters.labels
    np.testing.assert_array_equal(same_before, same_after)


class Looking(SkimageSlic):
    """Tells how often it looked at a picture."""

    looked = 0

    def cluster(self, picture: KeyframeInput) -> Clusters:
        self.looked += 1
        return super().cluster(picture)


def test_regions_on_read_are_made_once_and_only_when_read() -> None:
    slic = Looking(4)
    later = LazyClusterer(slic).cluster(seen(two_halves()))
    assert isinstance(later, LazyClusters) and later.method == "slic-skimage" and slic.looked == 0
    at_once = made("slic-skimage", 4).cluster(seen(two_halves()))
    np.testing.assert_array_equal(later.labels, at_once.labels)
    np.testing.assert_array_equal(later.areas, at_once.areas)
    np.testing.assert_array_equal(later.centroids_xy, at_once.centroids_xy)
    assert slic.looked == 1
