"""Places of regions and their rotary encoding."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arr_stream.selection.atlas import build_atlas
from arr_stream.selection.positions import PositionKind, apply_rotary, region_positions, rotary_encoding
from arr_stream.types import Grid

SEEDS = st.integers(0, 2**32 - 1)
VALUES = st.sampled_from([2, 4, 6])


def _vectors(seed: int, count: int, values: int, pairs: int) -> tuple[np.ndarray, np.ndarray, int]:
    rng = np.random.default_rng(seed)
    dimensions = 2 * pairs * values
    return rng.random((count, values), np.float32), rng.standard_normal((count, dimensions), np.float32), dimensions


@given(SEEDS, VALUES, st.integers(1, 6))
@settings(deadline=None)
def test_rotation_keeps_lengths(seed: int, values: int, pairs: int) -> None:
    positions, x, dimensions = _vectors(seed, 5, values, pairs)
    turned = apply_rotary(x, *rotary_encoding(positions, dimensions))
    np.testing.assert_allclose(np.linalg.norm(turned, axis=1), np.linalg.norm(x, axis=1), rtol=1e-5)
    assert turned.dtype == np.float32


@given(SEEDS, VALUES, st.integers(1, 6))
@settings(deadline=None)
def test_dot_products_depend_on_differences_of_positions_alone(seed: int, values: int, pairs: int) -> None:
    positions, x, dimensions = _vectors(seed, 2, values, pairs)
    shift = np.random.default_rng(seed + 1).uniform(-1, 1, (1, values)).astype(np.float32)

    def product(at: np.ndarray) -> float:
        query, key = apply_rotary(x, *rotary_encoding(at, dimensions)).astype(np.float64)
        return float(query @ key)

    size = float(np.linalg.norm(x[0]) * np.linalg.norm(x[1]))
    assert product(positions + shift) == pytest.approx(product(positions), abs=1e-4 * size)


def test_positions_that_differ_turn_vectors_apart() -> None:
    same = np.ones((2, 24), np.float32)
    near, far = (
        apply_rotary(same, *rotary_encoding(np.array([[0.5, 0.5], at], np.float32), 24)) for at in ([0.5, 0.51], [0, 1])
    )
    assert 24 > near[0] @ near[1] > far[0] @ far[1]


def test_golden_angles() -> None:
    cos, sin = rotary_encoding(np.array([[0.25, 0.5]], np.float32), 8, base=100.0, steps=4.0)
    # Each value has two pairs; the second turns a tenth as fast.
    angles = np.repeat([1.0, 0.1, 2.0, 0.2], 2)
    np.testing.assert_allclose(cos[0], np.cos(angles), rtol=1e-6)
    np.testing.assert_allclose(sin[0], np.sin(angles), rtol=1e-6)
    turned = apply_rotary(np.array([[1, 0, 0, 1, 0, 0, 0, 0]], np.float32), cos, sin)
    expected = [np.cos(1), np.sin(1), -np.sin(0.1), np.cos(0.1), 0, 0, 0, 0]
    np.testing.assert_allclose(turned[0], expected, rtol=1e-6)


def test_leading_dimensions_are_kept() -> None:
    positions, x, dimensions = _vectors(0, 7, 4, 2)
    cos, sin = rotary_encoding(positions, dimensions)
    heads = np.stack([x, 2 * x])
    np.testing.assert_allclose(apply_rotary(heads, cos, sin)[1], 2 * apply_rotary(x, cos, sin), rtol=1e-6)


@pytest.mark.parametrize(("values", "dimensions"), [(2, 6), (4, 12), (6, 16), (2, 0), (6, 6), (4, -8)])
def test_dimensions_that_do_not_divide_are_refused(values: int, dimensions: int) -> None:
    with pytest.raises(ValueError, match=f"multiple of {2 * values}"):
        rotary_encoding(np.zeros((3, values), np.float32), dimensions)


def test_vectors_that_do_not_fit_are_refused() -> None:
    cos, sin = rotary_encoding(np.zeros((3, 2), np.float32), 8)
    with pytest.raises(ValueError, match="do not fit"):
        apply_rotary(np.zeros((3, 4), np.float32), cos, sin)


def test_golden_positions() -> None:
    labels = np.zeros((4, 8), np.int32)
    labels[1:3, 2:8] = 1
    atlas = build_atlas(labels, Grid((256, 128), 4, 8))
    np.testing.assert_allclose(region_positions(atlas, "centroid")[1], [5 / 8, 0.5])
    np.testing.assert_allclose(region_positions(atlas, "corners"), [[0, 0, 1, 1], [0.25, 0.25, 1, 0.75]])
    np.testing.assert_allclose(region_positions(atlas, "corners_and_size")[1], [0.25, 0.25, 1, 0.75, 0.75, 0.5])


@pytest.mark.parametrize(("kind", "values"), [("centroid", 2), ("corners", 4), ("corners_and_size", 6)])
@given(SEEDS)
@settings(deadline=None)
def test_positions_lie_in_the_unit_square(kind: PositionKind, values: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, columns = (int(side) for side in rng.integers(1, 12, 2))
    labels = rng.integers(0, 9, (rows, columns)).astype(np.int32)
    positions = region_positions(build_atlas(labels, Grid((columns, rows), rows, columns)), kind)
    assert positions.shape == (len(np.unique(labels)), values)
    assert positions.dtype == np.float32
    assert positions.min() >= 0
    assert positions.max() <= 1


def test_an_unknown_kind_of_position_is_refused() -> None:
    atlas = build_atlas(np.zeros((2, 2), np.int32), Grid((64, 64), 2, 2))
    with pytest.raises(ValueError, match="corners_and_size"):
        region_positions(atlas, "middle")  # type: ignore[arg-type]
