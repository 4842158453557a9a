"""What every embedder promises."""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt
import pytest

from arr_stream.config import Settings
from arr_stream.errors import BackendUnavailable
from arr_stream.keyframes.base import Embedder
from arr_stream.keyframes.embeddings import EMBEDDERS, make_embedder
from arr_stream.types import Embedding, Grid
from tests.keyframe_fakes import seen

every_embedder = pytest.mark.parametrize("name", EMBEDDERS)


@functools.cache
def embedder(name: str) -> Embedder:
    try:
        return make_embedder(Settings().with_values({"keyframes.embeddings": name}))
    except BackendUnavailable as exc:
        pytest.skip(str(exc))


def embedding(name: str, rgb: npt.NDArray[np.uint8]) -> Embedding:
    return embedder(name).embed(seen(rgb))


def embed(name: str, rgb: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    return embedding(name, rgb).values


def cosine(a: npt.NDArray[np.float32], b: npt.NDArray[np.float32]) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def patch(kind: str) -> npt.NDArray[np.uint8]:
    """`[64, 64, 3]` of one appearance."""
    rng = np.random.default_rng(3)
    rgb = np.empty((64, 64, 3), np.uint8)
    if kind == "stripes":
        rgb[:] = np.where(np.arange(64) // 4 % 2, 200, 60)[None, :, None]
        return rgb
    rgb[:] = {"red": (200, 30, 30), "blue": (30, 30, 200), "green": (30, 160, 40), "black": 8, "white": 245}[kind]
    shift = rng.integers(-8, 9, (64, 64, 1))
    return np.clip(rgb + shift, 0, 255).astype(np.uint8)


KINDS = ("red", "blue", "green", "black", "white", "stripes")


@every_embedder
@pytest.mark.parametrize("size_wh", [(1, 1), (8, 8), (320, 33), (427, 240)])
def test_shape_and_range(name: str, size_wh: tuple[int, int]) -> None:
    shape, grid = (size_wh[1], size_wh[0], 3), Grid.for_size(size_wh)
    noise = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    for rgb in (noise, np.zeros(shape, np.uint8), np.full(shape, 255, np.uint8)):
        made = embedding(name, rgb)
        assert made.values.dtype == np.float32
        dimensions, rows, columns = made.values.shape
        assert made.joint or (dimensions, rows, columns) == (16, grid.rows * 2, grid.columns * 2)
        assert 1 <= rows <= grid.rows * 2 and 1 <= columns <= grid.columns * 2
        assert np.isfinite(made.values).all() and np.abs(made.values).max() <= 1.0 + 1e-6
        lengths = np.linalg.norm(made.values, axis=0)
        assert lengths.min() > 0.2
        if made.joint:
            np.testing.assert_allclose(lengths, 1.0, atol=1e-4)
    np.testing.assert_array_equal(embed(name, noise), embed(name, noise))


def test_likeness_is_a_high_cosine_and_difference_a_low_one() -> None:
    """Each appearance twice in one picture, in different places: its own twin is nearest."""
    first = np.concatenate([patch(kind) for kind in KINDS], axis=1)
    second = np.concatenate([patch(kind) for kind in reversed(KINDS)], axis=1)
    found = embed("appearance", np.concatenate([first, second]))
    places = found.reshape(16, 2, 4, len(KINDS), 4)[:, :, 1:3, :, 1:3].mean(axis=(2, 4))
    above, below = places[:, 0].T, places[:, 1].T[::-1]
    similarity = np.array([[cosine(a, b) for b in below] for a in above])
    own = np.diag(similarity)
    others = similarity - 2 * np.eye(len(KINDS))
    assert own.min() > 0.95
    assert (others.max(axis=1) < own - 0.05).all()


def test_small_changes_of_the_picture_make_small_changes() -> None:
    rng = np.random.default_rng(1)
    rgb = np.kron(rng.integers(40, 200, (8, 12, 3)), np.ones((32, 32, 1))).astype(np.uint8)
    difference = np.abs(embed("appearance", rgb) - embed("appearance", rgb + np.uint8(2)))
    assert 0.0 < difference.max() < 0.05


def test_what_happens_elsewhere_does_not_matter() -> None:
    rgb = np.random.default_rng(2).integers(0, 256, (256, 256, 3), np.uint8)
    changed = rgb.copy()
    changed[:, 192:] = 255
    before, after = embed("appearance", rgb), embed("appearance", changed)
    np.testing.assert_allclose(before[:, :, :6], after[:, :, :6], atol=1e-5)
    assert np.abs(before[:, :, 12:] - after[:, :, 12:]).max() > 0.1
