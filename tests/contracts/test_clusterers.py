"""What every clusterer promises."""

from __future__ import annotations

import builtins
import pickle
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from arr_stream.config import Settings
from arr_stream.errors import BackendUnavailable, KeyframeFailed
from arr_stream.keyframes.base import Clusterer, KeyframeInput, LazyClusters
from arr_stream.keyframes.clusters import CLUSTERERS, make_clusterer
from arr_stream.keyframes.clusters.on_read import LazyClusterer
from arr_stream.keyframes.clusters.regions import clusters_from_labels
from arr_stream.keyframes.embeddings import make_embedder
from arr_stream.types import Clusters, Frame, Grid

HERE = [name for name in CLUSTERERS if name != "sam"]
"""SAM needs weights; tests/test_sam.py holds it to the same promises."""

SLIC = ["auto", "slic", "slic-fast", "slic-skimage"]


def picture(rgb: npt.NDArray[np.uint8]) -> KeyframeInput:
    size_wh = (rgb.shape[1], rgb.shape[0])
    return KeyframeInput(Frame(0, 0.0, rgb), Grid.for_size(size_wh))


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
@pytest.mark.parametrize("size_wh", [(1, 1), (8, 8), (320, 33), (854, 480)])
def test_labels_are_sound_at_any_size(name: str, size_wh: tuple[int, int]) -> None:
    rgb = np.random.default_rng(1).integers(0, 255, (size_wh[1], size_wh[0], 3), np.uint8)
    made = picture(rgb)
    clusters = clusterer(name, 50).cluster(made)
    assert_sound(clusters)
    assert clusters.labels.shape == made.quarter_hw


@pytest.mark.parametrize("name", HERE)
@pytest.mark.parametrize("value", [0, 128, 255])
def test_uniform_pictures_are_divided_too(name: str, value: int) -> None:
    clusters = clusterer(name, 12).cluster(picture(np.full((128, 192, 3), value, np.uint8)))
    assert_sound(clusters)


@pytest.mark.parametrize("name", HERE)
@pytest.mark.parametrize("count", [1, 7, 50, 200])
def test_count_is_about_what_was_asked(name: str, count: int) -> None:
    clusters = clusterer(name, count).cluster(picture(two_halves()))
    assert_sound(clusters)
    assert count / 2 <= clusters.count <= max(count * 2, 4)


@pytest.mark.parametrize("name", HERE)
def test_same_picture_same_regions(name: str) -> None:
    made = clusterer(name, 20)
    first, between, second = (made.cluster(picture(rgb)) for rgb in (two_halves(), two_halves()[::-1], two_halves()))
    assert between.count
    np.testing.assert_array_equal(first.labels, second.labels)


@pytest.mark.parametrize("name", SLIC)
def test_slic_regions_hang_together_and_follow_colour(name: str) -> None:
    from skimage.measure import label

    clusters = clusterer(name, 40).cluster(picture(two_halves((400, 256))))
    assert label(clusters.labels, background=-1, connectivity=1).max() == clusters.count
    width = clusters.labels.shape[1]
    left = np.unique(clusters.labels[:, : width // 2 - 1])
    right = np.unique(clusters.labels[:, width // 2 + 1 :])
    assert not set(left) & set(right)


def test_method_names_what_made_it() -> None:
    chosen = {name: made(name, 4).cluster(picture(two_halves())).method for name in ("auto", "slic", "grid")}
    try:
        made("slic-fast", 4)
        best = "slic-fast"
    except BackendUnavailable:
        best = "slic-skimage"
    assert chosen == {"auto": best, "slic": best, "grid": "grid"}
    assert made("slic-skimage", 4).cluster(picture(two_halves())).method == "slic-skimage"


def test_grid_regions_are_nearly_square() -> None:
    clusters = made("grid", 40).cluster(picture(two_halves((640, 256))))
    assert clusters.count == 40
    assert clusters.areas.max() / clusters.areas.min() < 1.3


def without(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """Importing `package` fails, as where it is not installed."""
    real = builtins.__import__

    def refuse(
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        if name.split(".", maxsplit=1)[0] == package:
            raise ImportError(f"No module named {package!r}")
        module: Any = real(name, globals, locals, fromlist, level)
        return module

    monkeypatch.setattr(builtins, "__import__", refuse)


@pytest.mark.parametrize(
    ("name", "package", "remedy"),
    [
        ("slic-fast", "fast_slic", "pip install --no-build-isolation fast-slic"),
        ("slic-skimage", "skimage", "pip install scikit-image"),
    ],
)
def test_missing_package_is_an_error_with_its_remedy(
    monkeypatch: pytest.MonkeyPatch, name: str, package: str, remedy: str
) -> None:
    without(monkeypatch, package)
    with pytest.raises(BackendUnavailable, match=remedy):
        made(name, 4)


def test_auto_chooses_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "fast_slic")
    assert made("auto", 4).cluster(picture(two_halves())).method == "slic-skimage"


@settings(max_examples=60, deadline=None)
@given(arrays(np.int64, st.tuples(st.integers(1, 12), st.integers(1, 12)), elements=st.integers(-3, 5)))
def test_any_label_map_becomes_sound(labels: npt.NDArray[np.int64]) -> None:
    clusters = clusters_from_labels(labels, "any")
    assert_sound(clusters)
    assert clusters.count == len(np.unique(labels))
    same_before = labels[:, :, None, None] == labels
    same_after = clusters.labels[:, :, None, None] == clusters.labels
    np.testing.assert_array_equal(same_before, same_after)


def test_centroid_of_a_ring_lies_on_the_ring() -> None:
    labels = np.ones((9, 9), int)
    labels[1:8, 1:8] = 2
    labels[3:6, 3:6] = 3
    clusters = clusters_from_labels(labels, "rings")
    assert_sound(clusters)
    np.testing.assert_allclose(clusters.centroids_xy[2], 0.5)


def test_empty_label_map_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\[0, 4\]"):
        clusters_from_labels(np.zeros((0, 4), int), "none")


def test_regions_on_read_are_made_once_and_only_when_read() -> None:
    looked: list[str] = []

    class Counting:
        def cluster(self, seen: KeyframeInput) -> Clusters:
            looked.append("picture")
            return made("slic-skimage", 4).cluster(seen)

    later = LazyClusterer(Counting(), "slic-skimage").cluster(picture(two_halves()))
    assert isinstance(later, LazyClusters) and later.method == "slic-skimage" and looked == []
    later.check_when_made(lambda found: looked.append(f"{found.count} checked"))
    at_once = made("slic-skimage", 4).cluster(picture(two_halves()))
    np.testing.assert_array_equal(later.labels, at_once.labels)
    np.testing.assert_array_equal(later.areas, at_once.areas)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(later)).centroids_xy, at_once.centroids_xy)
    assert looked == ["picture", f"{at_once.count} checked"]


def test_regions_on_read_that_cannot_be_made_say_so_at_every_reading() -> None:
    class Broken:
        def cluster(self, seen: KeyframeInput) -> Clusters:
            raise ZeroDivisionError("by\nzero")

    later = LazyClusterer(Broken(), "broken").cluster(picture(two_halves()))
    for _ in range(2):
        with pytest.raises(KeyframeFailed, match=r"^clusters: ZeroDivisionError: by zero$"):
            _ = later.labels
