"""Sixteen channels that keep the queries exactly, and the PCA behind them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from arr_stream.errors import WeightsInvalid
from arr_stream.keyframes.embeddings.pca import (
    MAX_QUERY_ROWS,
    Pca,
    adapted,
    centred,
    load_pca,
    make_projection,
    unknown,
)
from arr_stream.types import FloatArray
from arr_stream.weights import shipped_folder

EVERY_DIRECTION = np.eye(48, dtype=np.float32)


def unit(values: npt.ArrayLike, axis: int = -1) -> FloatArray:
    array = np.asarray(values, np.float64)
    return (array / np.linalg.norm(array, axis=axis, keepdims=True)).astype(np.float32)


def features(rng: np.random.Generator, count: int, dimensions: int) -> FloatArray:
    """`[N, D]` unit vectors around a mean, with variances that fall."""
    spread = np.arange(1, dimensions + 1) ** -0.5
    turned = np.linalg.qr(rng.standard_normal((dimensions, dimensions)))[0]
    return unit(2.0 * turned[0] + (rng.standard_normal((count, dimensions)) * spread) @ turned)


def pca_of(vectors: npt.NDArray[np.floating], components: int) -> Pca:
    variance, columns = np.linalg.eigh(np.cov(vectors.T, bias=True))
    basis, variance = columns.T[::-1][:components], np.maximum(variance[::-1], 0)
    mean = vectors.mean(axis=0, dtype=np.float64)
    parts = (np.ascontiguousarray(values, np.float32) for values in (mean, basis, variance[:components]))
    return Pca(*parts, float(variance.sum()))


@pytest.fixture(scope="module")
def some_pca() -> Pca:
    return pca_of(features(np.random.default_rng(1), 500, 48), 32)


@settings(deadline=None, max_examples=20)
@given(
    seed=st.integers(0, 2**32 - 1),
    dimensions=st.integers(16, 80),
    count=st.integers(0, MAX_QUERY_ROWS),
    components=st.integers(16, 64),
)
def test_active_queries_are_read_exactly(seed: int, dimensions: int, count: int, components: int) -> None:
    rng = np.random.default_rng(seed)
    places = features(rng, 120, dimensions)
    pca = pca_of(places, min(components, dimensions))
    queries = unit(rng.standard_normal((count, dimensions))) if count else np.zeros((0, dimensions), np.float32)
    projection = make_projection(queries, pca, unit(rng.standard_normal((20, dimensions))))
    np.testing.assert_allclose(projection.rows @ projection.rows.T, np.eye(16), atol=2e-6)
    np.testing.assert_allclose(projection.coordinates(queries), queries @ projection.rows.T, atol=1e-5)
    values = places.T.reshape(dimensions, 12, 10)
    channels = projection.project(centred(values, projection.mean))
    assert channels.shape == (16, 12, 10) and channels.dtype == np.float32
    assert np.abs(channels).max() <= 1.0
    asked = np.tensordot(projection.coordinates(queries), channels, 1)
    np.testing.assert_allclose(asked, np.tensordot(queries, centred(values, pca.mean), 1), atol=1e-5)


def test_without_a_query_the_rows_are_the_principal_directions(some_pca: Pca) -> None:
    projection = make_projection(np.zeros((0, 48), np.float32), some_pca, EVERY_DIRECTION)
    np.testing.assert_allclose(np.abs(np.sum(projection.rows * some_pca.basis[:16], axis=1)), 1.0, atol=1e-4)


def test_zero_and_parallel_queries_cost_no_row(some_pca: Pca) -> None:
    rng = np.random.default_rng(3)
    one, two = unit(rng.standard_normal((2, 48)))
    nearly = unit(one + 1e-7 * two)
    queries = np.stack([one, np.zeros(48, np.float32), 5 * one, -one, two, unit(one + two), nearly])
    projection = make_projection(queries, some_pca, EVERY_DIRECTION)
    np.testing.assert_allclose(projection.rows[2:] @ np.stack([one, two]).T, 0.0, atol=1e-5)
    np.testing.assert_allclose(projection.rows @ projection.rows.T, np.eye(16), atol=2e-6)
    np.testing.assert_allclose(projection.coordinates(queries) @ projection.rows, queries, atol=2e-5)
    again = make_projection(queries, some_pca, EVERY_DIRECTION)
    np.testing.assert_array_equal(again.rows, projection.rows)


def test_a_direction_that_was_not_asked_is_guessed_by_least_squares(some_pca: Pca) -> None:
    """With the covariance in hand, no other linear reading of the channels errs less on the places it came from."""
    rng = np.random.default_rng(5)
    places = features(np.random.default_rng(1), 500, 48).astype(np.float64)
    full = pca_of(places, 48)
    projection = make_projection(unit(rng.standard_normal((3, 48))), full, EVERY_DIRECTION)
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
    found = adapted(unknown(np.zeros(100, np.float32), 48), places, 6)
    np.testing.assert_allclose(found.variance[:16], expected[::-1][:16], rtol=1e-3)
    np.testing.assert_allclose(np.abs(np.sum(found.basis[:4] * columns.T[::-1][:4], axis=1)), 1.0, atol=1e-3)
    assert found.total_variance == pytest.approx(expected.sum(), rel=1e-4)
    again = adapted(found, places, 1)
    np.testing.assert_allclose(again.variance[:16], expected[::-1][:16], rtol=1e-4)


@pytest.mark.parametrize("count", [1, 40])
def test_vectors_that_do_not_vary_still_give_sixteen_rows(count: int) -> None:
    vectors = np.repeat(features(np.random.default_rng(10), 1, 64), count, axis=0)
    pca = pca_of(vectors, 32)
    query = unit(np.random.default_rng(11).standard_normal((1, 64)))
    projection = make_projection(query, pca, np.eye(64, dtype=np.float32))
    np.testing.assert_allclose(projection.rows @ projection.rows.T, np.eye(16), atol=2e-6)
    np.testing.assert_allclose(projection.coordinates(query) @ projection.rows, query, atol=1e-5)
    assert np.isfinite(projection.readout).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors["mean"].fill(np.nan), "not finite"),
        (lambda tensors: tensors.update(basis=tensors["basis"][:8]), "shape"),
        (lambda tensors: tensors.update(variance=np.array(1.0, np.float32)), "not usable"),
        (lambda tensors: tensors.pop("basis"), "basis"),
    ],
)
def test_files_that_do_not_fit_are_refused(
    tmp_path: Path, change: Callable[[dict[str, FloatArray]], object], message: str
) -> None:
    path = tmp_path / "pca.safetensors"
    tensors = load_file(shipped_folder("tiny") / "pca.safetensors")
    save_file(tensors, path, {"total_variance": "1.0"})
    assert len(load_pca(path).variance) >= 16
    change(tensors)
    save_file(tensors, path, {"total_variance": "1.0"})
    with pytest.raises(WeightsInvalid, match=message):
        load_pca(path)
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(WeightsInvalid, match="not usable principal directions"):
        load_pca(path)
