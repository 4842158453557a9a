"""Distances on a device: Euclid's, by flooding and by trying every place of a line."""

from __future__ import annotations

from collections.abc import Callable

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from arr_stream.gpu import distance
from arr_stream.gpu.distance import edge_distance, exact_distance, jump_flooding
from arr_stream.texture.visual import EDGE_THRESHOLD
from arr_stream.texture.visual import edge_distance as edge_distance_on_cpu

DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU here")],
    ),
]
Transform = Callable[[torch.Tensor], torch.Tensor]


def true_distance(edges: np.ndarray) -> np.ndarray:
    """From every place to every edge, the least."""
    rows, columns = np.nonzero(edges)
    y, x = np.mgrid[: edges.shape[0], : edges.shape[1]]
    return np.sqrt((y[..., None] - rows) ** 2 + (x[..., None] - columns) ** 2).min(axis=2)


def scattered(hw: tuple[int, int], share: float, seed: int) -> np.ndarray:
    """Random edges, at least one."""
    rng = np.random.default_rng(seed)
    edges = rng.random(hw) < share
    edges[rng.integers(hw[0]), rng.integers(hw[1])] = True
    return edges


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.sampled_from([0.0, 0.01, 0.1, 0.6]), st.integers(0, 1 << 30))
def test_two_passes_are_exact(height: int, width: int, share: float, seed: int) -> None:
    edges = scattered((height, width), share, seed)
    made = exact_distance(torch.from_numpy(edges)).numpy()
    np.testing.assert_allclose(made, true_distance(edges), atol=1e-4)


def test_flooding_never_reports_less_and_hardly_ever_more() -> None:
    rng = np.random.default_rng(4)
    off = []
    for seed in range(150):
        height, width = rng.integers(1, 41, 2)
        edges = scattered((int(height), int(width)), float(rng.choice([0.0, 0.01, 0.1, 0.6])), seed)
        off.append((jump_flooding(torch.from_numpy(edges)).numpy() - true_distance(edges)).ravel())
    beyond = np.concatenate(off)
    assert beyond.min() > -1e-4
    assert beyond.max() < 3.0
    assert (beyond > 1e-4).mean() < 0.001


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("transform", [exact_distance, jump_flooding])
@pytest.mark.parametrize("hw", [(128, 128), (68, 120), (97, 33)])
def test_distances_on_rasters_of_frames(hw: tuple[int, int], transform: Transform, device: str) -> None:
    for share in (0.0, 0.001, 0.03):
        edges = scattered(hw, share, 3)
        truth = cv2.distanceTransform((~edges).astype(np.uint8), cv2.DIST_L2, cv2.DIST_MASK_PRECISE)
        off = np.abs(transform(torch.from_numpy(edges).to(device)).cpu().numpy() - truth)
        assert off.max() < 0.5
        assert (off > 1e-3).mean() < 0.001


@pytest.mark.parametrize("limit", [0, 1 << 24])
def test_without_an_edge_everything_is_far(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distance, "_EXACT_UP_TO", limit)
    assert torch.equal(edge_distance(torch.full((24, 32), float(EDGE_THRESHOLD))), torch.ones(12, 16))


@pytest.mark.parametrize("limit", [0, 1 << 24])
def test_the_way_depends_on_the_size_and_not_the_result(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    strength = torch.zeros(96, 128)
    strength[40, 30:90] = 255
    strength[7, 120] = EDGE_THRESHOLD + 1
    usual = edge_distance(strength)
    monkeypatch.setattr(distance, "_EXACT_UP_TO", limit)
    torch.testing.assert_close(edge_distance(strength), usual)


def test_an_edge_counts_where_the_cpu_counts_it() -> None:
    for row in range(8, 12):
        for column in range(8, 12):
            strength = torch.zeros(20, 24)
            strength[row, column] = 200
            here = edge_distance_on_cpu(strength.numpy().astype(np.uint8))
            there = edge_distance(strength).numpy()
            assert ((there == 0) == (here == 0)).all()
            assert np.abs(there - here).max() <= 0.05 * here.max()
