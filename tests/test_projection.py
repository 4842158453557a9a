"""Sixteen channels that keep the queries exactly, and the PCA behind them: geometry, streaming, files."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from arr_stream.errors import BackendUnavailable, WeightsInvalid
from arr_stream.keyframes.embeddings.pca import (
    MAX_QUERY_ROWS,
    Pca,
    StreamingPca,
    adapted,
    centred,
    load_pca,
    make_projection,
    unknown,
)
from arr_stream.types import FloatArray

SPACE = "made-up"


def unit(values: npt.ArrayLike, axis: int = -1) -> FloatArray:
    array = np.asarray(values, np.float64)
    return (array / np.linalg.norm(array, axis=axis, keepdims=True)).astype(np.float32)


def features(rng: np.random.Generator, count: int, dimensions: int) -> FloatArray:
    """`[N, D]` unit vectors around a mean, with variances that fall."""
    spread = np.arange(1, dimensions + 1) ** -0.5
    turned = np.linalg.qr(rng.standard_normal((dimensions, dimensions)))[0]
    return unit(2.0 * turned[0] + (rng.standard_normal((count, dimensions)) * spread) @ turned)


def pca_of(vectors: npt.NDArray[np.floating], space: str, components: int) -> Pca:
    streaming = StreamingPca(vectors.shape[1])
    streaming.add(vectors)
    return streaming.result(space, components)


@pytest.fixture(scope="module")
def some_pca() -> Pca:
    return pca_of(features(np.random.default_rng(1), 500, 48), SPACE, 32)


@settings(deadline=None, max_examples=20)
@given(
    seed=st.integers(0, 2**32 - 1),
    dimensions=st.integers(16, 80),
    count=st.integers(0, MAX_QUERY_ROWS),
    components=st.integers(16, 64),
    with_texts=st.booleans(),
)
def test_active_queries_are_read_exactly(
    seed: int, dimensions: int, count: int, components: int, with_texts: bool
) -> None:
    rng = np.random.default_rng(seed)
    places = features(rng, 120, dimensions)
    pca = pca_of(places, SPACE, min(components, dimensions))
    queries = unit(rng.standard_normal((count, dimensions))) if count else np.zeros((0, dimensions), np.float32)
    texts = unit(rng.standard_normal((20, dimensions))) if with_texts else None
    projection = make_projection(queries, pca, texts)
    np.testing.assert_allclose(projection.rows @ projection.rows.T, np.eye(16), atol=2e-6)
    np.testing.assert_allclose(projection.coordinates(queries), queries @ projection.rows.T, atol=1e-5)
    values = places.T.reshape(dimensions, 12, 10)
    channels = projection.project(centred(values, projection.mean))
    assert channels.shape == (16, 12, 10) and channels.dtype == np.float32
    assert np.abs(channels).max() <= 1.0
    asked = np.tensordot(projection.coordinates(queries), channels, 1)
    np.testing.assert_allclose(asked, np.tensordot(queries, centred(values, pca.mean), 1), atol=1e-5)


def test_without_a_query_the_rows_are_the_principal_directions(some_pca: Pca) -> None:
    projection = make_projection(np.zeros((0, 48), np.float32), some_pca)
    np.testing.assert_allclose(np.abs(np.sum(projection.rows * some_pca.basis[:16], axis=1)), 1.0, atol=1e-4)


def test_zero_and_parallel_queries_cost_no_row(some_pca: Pca) -> None:
    rng = np.random.default_rng(3)
    one, two = unit(rng.standard_normal((2, 48)))
    nearly = unit(one + 1e-7 * two)
    queries = np.stack([one, np.zeros(48, np.float32), 5 * one, -one, two, unit(one + two), nearly])
    projection = make_projection(queries, some_pca)
    np.testing.assert_allclose(projection.rows[2:] @ np.stack([one, two]).T, 0.0, atol=1e-5)
    np.testing.assert_allclose(projection.rows @ projection.rows.T, np.eye(16), atol=2e-6)
    np.testing.assert_allclose(projection.coordinates(queries) @ projection.rows, queries, atol=2e-5)
    again = make_projection(queries, some_pca)
    np.testing.assert_array_equal(again.rows, projection.rows)


def test_a_direction_that_was_not_asked_is_guessed_by_least_squares(some_pca: Pca) -> None:
    """With the covariance in hand, no other linear reading of the channels errs less on the places it came from."""
    rng = np.random.default_rng(5)
    places = features(np.random.default_rng(1), 500, 48).astype(np.float64)
    full = pca_of(places, SPACE, 48)
    projection = make_projection(unit(rng.standard_normal((3, 48))), full)
    other = unit(rng.standard_normal((1, 48)))
    read = (places - places.mean(axis=0)) @ projection.rows.T.astype(np.float64)
    wanted = (places - places.mean(axis=0)) @ other[0]
    best = np.linalg.lstsq(read, wanted, rcond=None)[0]
    np.testing.assert_allclose(projection.coordinates(other)[0], best, atol=2e-3)
    plain = projection.rows @ other[0]
    assert np.square(read @ best - wanted).sum() < np.square(read @ plain - wanted).sum()


def test_adapted_directions_are_those_of_the_places() -> None:
    rng = np.random.default_rng(12)
    places = centred(features(rng, 300, 100).T, unit(rng.standard_normal(100)))
    expected, columns = np.linalg.eigh(places.astype(np.float64) @ places.T / 300)
    found = adapted(unknown(SPACE, np.zeros(100, np.float32), 48), places, 6)
    np.testing.assert_allclose(found.variance[:16], expected[::-1][:16], rtol=1e-3)
    np.testing.assert_allclose(np.abs(np.sum(found.basis[:4] * columns.T[::-1][:4], axis=1)), 1.0, atol=1e-3)
    assert found.total_variance == pytest.approx(expected.sum(), rel=1e-4)
    again = adapted(found, places, 1)
    np.testing.assert_allclose(again.variance[:16], expected[::-1][:16], rtol=1e-4)


@settings(deadline=None, max_examples=12)
@given(
    seed=st.integers(0, 2**32 - 1),
    blocks=st.lists(st.sampled_from([0, 1, 7, 300, 5000]), min_size=1, max_size=6).filter(lambda sizes: sum(sizes) > 0),
    offset=st.sampled_from([0.0, 1.0, 1e4]),
)
def test_streaming_equals_all_at_once(seed: int, blocks: list[int], offset: float) -> None:
    rng = np.random.default_rng(seed)
    vectors = rng.standard_normal((sum(blocks), 20)) * np.linspace(2, 0.5, 20) + offset
    streaming = StreamingPca(20)
    for block in np.split(vectors, np.cumsum(blocks)[:-1]):
        streaming.add(block)
    pca = streaming.result(SPACE, 20)
    expected = np.linalg.eigvalsh(np.cov(vectors.T, bias=True))[::-1] if len(vectors) > 1 else np.zeros(20)
    assert pca.count == len(vectors)
    np.testing.assert_allclose(pca.mean, vectors.mean(axis=0), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(pca.variance, np.maximum(expected, 0), atol=1e-5)
    assert pca.variance_kept(20) == pytest.approx(1.0)


@pytest.mark.parametrize("count", [1, 40])
def test_vectors_that_do_not_vary_still_give_sixteen_rows(count: int) -> None:
    vectors = np.repeat(features(np.random.default_rng(10), 1, 64), count, axis=0)
    pca = pca_of(vectors, SPACE, 32)
    assert pca.variance_kept(16) == 1.0
    query = unit(np.random.default_rng(11).standard_normal((1, 64)))
    projection = make_projection(query, pca)
    np.testing.assert_allclose(projection.rows @ projection.rows.T, np.eye(16), atol=2e-6)
    np.testing.assert_allclose(projection.coordinates(query) @ projection.rows, query, atol=1e-5)
    assert np.isfinite(projection.readout).all()


def test_a_saved_pca_comes_back(some_pca: Pca, tmp_path: Path) -> None:
    path = tmp_path / "pca.safetensors"
    some_pca.save(path)
    back = load_pca(path, SPACE)
    for name in ("mean", "basis", "variance"):
        np.testing.assert_array_equal(getattr(back, name), getattr(some_pca, name))
    assert (back.space, back.count, back.total_variance) == (SPACE, 500, some_pca.total_variance)


def test_a_pca_that_does_not_fit_says_so(some_pca: Pca, tmp_path: Path) -> None:
    path = tmp_path / "pca.safetensors"
    some_pca.save(path)
    with pytest.raises(WeightsInvalid, match="of the space 'made-up', needed is 'ViT-B-16:openai'; make one with"):
        load_pca(path, "ViT-B-16:openai")
    pca_of(features(np.random.default_rng(1), 100, 48), SPACE, 8).save(path)
    with pytest.raises(WeightsInvalid, match="8 directions, needed are at least 16"):
        load_pca(path, SPACE)


def test_damaged_and_foreign_files(some_pca: Pca, tmp_path: Path) -> None:
    path = tmp_path / "pca.safetensors"
    with pytest.raises(BackendUnavailable, match="no such PCA file; make one with"):
        load_pca(path)
    some_pca.save(path)
    whole = path.read_bytes()
    for size in (0, 4, 40, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(WeightsInvalid, match="not a usable PCA file"):
            load_pca(path)
    path.write_bytes(pickle.dumps({"mean": [1.0]}))
    with pytest.raises(WeightsInvalid, match="not a usable PCA file"):
        load_pca(path)
    save_file({"mean": some_pca.mean}, path)
    with pytest.raises(WeightsInvalid, match="written by something else"):
        load_pca(path)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [("mean", np.nan, "not finite"), ("basis", 3.0, "not orthonormal"), ("variance", -1.0, "negative")],
)
def test_values_that_cannot_be(some_pca: Pca, tmp_path: Path, name: str, value: float, message: str) -> None:
    path = tmp_path / "pca.safetensors"
    parts = {part: getattr(some_pca, part).copy() for part in ("mean", "basis", "variance")}
    parts[name].flat[0] = value
    metadata = {"format": "arr-stream pca 1", "space": SPACE, "count": "500", "total_variance": "9.0"}
    save_file(parts, path, metadata)
    with pytest.raises(WeightsInvalid, match=message):
        load_pca(path)
