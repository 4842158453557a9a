"""Clustering an embedding with a spatial penalty."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from arr_stream.errors import KeyframeFailed
from arr_stream.keyframes.base import KeyframeInput
from arr_stream.keyframes.clusters.features import FeatureClusterer, follow_colour, labels_from_features
from arr_stream.keyframes.clusters.regions import pieces_of
from arr_stream.types import Embedding
from tests.keyframe_fakes import seen


class Given:
    """An embedder that says what it was given."""

    name = "given"

    def __init__(self, values: npt.NDArray[np.float32]) -> None:
        self.values = values

    def embed(self, picture: KeyframeInput) -> Embedding:
        return Embedding(self.values, self.name)


def directions(truth: npt.NDArray[np.int32], dimensions: int) -> npt.NDArray[np.float32]:
    """`[D, h, w]` of unit length: a random direction for each id, with noise that differs from place to place."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=(int(truth.max()) + 1, dimensions))[truth] + rng.normal(0, 0.2, (*truth.shape, dimensions))
    values /= np.linalg.norm(values, axis=2, keepdims=True)
    return values.transpose(2, 0, 1).astype(np.float32)


def pattern() -> npt.NDArray[np.int32]:
    """`[12, 20]`: four blocks of different sizes."""
    truth = np.zeros((12, 20), np.int32)
    truth[:, 11:] = 1
    truth[2:7, 2:8] = 2
    truth[5:11, 13:18] = 3
    return truth


@pytest.mark.parametrize("dimensions", [16, 512])
def test_what_differs_in_features_becomes_regions(dimensions: int) -> None:
    truth = pattern()
    labels = labels_from_features(directions(truth, dimensions), 12)
    assert len(np.unique(labels)) == pieces_of(labels).max() + 1 == 12
    majority = [np.bincount(truth[labels == region]).max() for region in np.unique(labels)]
    assert sum(majority) / truth.size > 0.98


@settings(max_examples=40)
@given(
    arrays(
        np.float32,
        st.tuples(st.integers(1, 4), st.integers(2, 7), st.integers(1, 7)),
        elements=st.floats(-1, 1, width=32),
    ),
    st.integers(1, 60),
)
def test_any_embedding_gives_connected_regions_up_to_the_count(values: npt.NDArray[np.float32], count: int) -> None:
    labels = labels_from_features(values, count)
    regions = len(np.unique(labels))
    assert labels.shape == values.shape[1:]
    assert 1 <= regions <= min(count, labels.size)
    assert pieces_of(labels).max() + 1 == regions


def test_borders_go_where_the_picture_has_them() -> None:
    labels = np.zeros((6, 8), np.int32)
    labels[:, 4:] = 5
    rgb = np.zeros((24, 32, 3), np.uint8)
    rgb[:, 18:] = 255  # the embedding's border lies at 16, the picture's at 18
    made = follow_colour(labels, rgb)
    np.testing.assert_array_equal(made, np.where(np.arange(32) < 18, 0, 5)[None].repeat(24, axis=0))


@given(arrays(np.int32, st.tuples(st.integers(1, 6), st.integers(1, 6)), elements=st.integers(0, 5)))
@settings(max_examples=30)
def test_in_a_plain_picture_borders_stay_where_they_are(labels: npt.NDArray[np.int32]) -> None:
    plain = np.full((labels.shape[0] * 4, labels.shape[1] * 4, 3), 77, np.uint8)
    np.testing.assert_array_equal(follow_colour(labels, plain), labels.repeat(4, axis=0).repeat(4, axis=1))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_an_embedding_that_is_not_numbers_is_refused(value: float) -> None:
    values = directions(pattern(), 16)
    values[3, 4, 5] = value
    with pytest.raises(KeyframeFailed, match="the embedding of given holds values that are not numbers"):
        FeatureClusterer(Given(values), 10).cluster(seen(np.zeros((192, 320, 3), np.uint8)))
