"""SLIC on a device: whole regions that follow colour, the same on every run."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from arr_stream.gpu.slic import TorchSlic, join_small, pieces_of, ranked, slic, to_clusters
from arr_stream.keyframes.base import KeyframeInput
from arr_stream.keyframes.clusters.regions import clusters_from_labels
from arr_stream.keyframes.clusters.regions import pieces_of as pieces_on_cpu
from arr_stream.keyframes.clusters.slic import SMALLEST_SHARE
from arr_stream.threads import one_torch_thread
from arr_stream.types import Frame, Grid
from benchmarks.toy_scenes import make_scene
from tests.scenes import moving_square

DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU here")],
    ),
]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Many small kernels: threads would only wait for each other."""
    with one_torch_thread():
        yield


def planes(rgb: np.ndarray, device: str = "cpu") -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(rgb)).permute(2, 0, 1).float().to(device)


def noise(hw: tuple[int, int], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (*hw, 3), np.uint8)


def toy(seed: int, size_wh: tuple[int, int] = (216, 120)) -> np.ndarray:
    return make_scene(np.random.default_rng(seed), size_wh, diameter_px=(20, 70)).rgb


def check_regions(labels: np.ndarray) -> None:
    """Contiguous ids, the largest first, each in one piece."""
    areas = np.bincount(labels.ravel())
    assert labels.dtype == np.int32
    assert areas.min() > 0
    assert (np.diff(areas) <= 0).all()
    assert pieces_on_cpu(labels).max() + 1 == len(areas)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("count", [1, 7, 50, 300])
@pytest.mark.parametrize("rgb", [toy(1), toy(2, (131, 77)), noise((120, 216))], ids=["toy", "odd", "noise"])
def test_regions_are_whole_and_about_as_many_as_asked(rgb: np.ndarray, count: int, device: str) -> None:
    labels = slic(planes(rgb, device), count).cpu().numpy()
    assert labels.shape == rgb.shape[:2]
    check_regions(labels)
    areas = np.bincount(labels.ravel())
    assert count == 1 or count / 2 <= len(areas)
    assert areas.min() >= 0.8 * SMALLEST_SHARE * labels.size / count


@pytest.mark.parametrize("count", [7, 50, 300])
def test_a_scene_is_not_divided_into_many_more_than_asked(count: int) -> None:
    assert slic(planes(toy(1)), count).max() + 1 <= 2.5 * count


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 400), st.integers(0, 1 << 30))
def test_any_picture_divides(height: int, width: int, count: int, seed: int) -> None:
    check_regions(slic(planes(noise((height, width), seed)), count).numpy())


def test_regions_keep_to_the_borders_of_objects() -> None:
    frame = moving_square(1, (384, 512), side=160, start_xy=(160, 120))[0]
    rgb = frame.rgb[::4, ::4]
    inside = np.zeros(rgb.shape[:2], bool)
    inside[30:70, 40:80] = True
    labels = slic(planes(rgb), 50).numpy()
    share = np.bincount(labels.ravel(), inside.ravel()) / np.bincount(labels.ravel())
    said = share[labels] > 0.5
    assert (said & inside).sum() / (said | inside).sum() > 0.95


def test_an_even_picture_is_divided_evenly() -> None:
    labels = slic(torch.full((3, 96, 128), 90.0), 48).numpy()
    areas = np.bincount(labels.ravel())
    assert len(areas) == 48
    assert (areas == 96 * 128 / 48).all()


@pytest.mark.parametrize("device", DEVICES)
def test_the_same_picture_gives_the_same_regions(device: str) -> None:
    rgb = toy(3)
    first = slic(planes(rgb, device), 50)
    assert torch.equal(first, slic(planes(rgb, device), 50))
    # Another device rounds colours in another order, so a place between two centres may change hands.
    agree = (first.cpu() == slic(planes(rgb), 50)).float().mean()
    assert agree > 0.9


@settings(max_examples=40, deadline=None)
@given(arrays(np.int32, st.tuples(st.integers(1, 24), st.integers(1, 24)), elements=st.integers(0, 2)))
def test_pieces_are_those_of_the_cpu(labels: np.ndarray) -> None:
    pieces = pieces_of(torch.from_numpy(labels)).view(labels.shape).numpy()
    truth = pieces_on_cpu(labels)
    pairs = np.unique(np.stack([pieces.ravel(), truth.ravel()]), axis=1)
    assert pairs.shape[1] == len(np.unique(pieces)) == len(np.unique(truth))
    # Each is named by one of its own places.
    assert (pieces.ravel()[pieces.ravel()] == pieces.ravel()).all()


def spiral(side: int) -> np.ndarray:
    """A path one place wide that winds to the middle, and what lies between its turns."""
    made = np.zeros((side, side), np.int32)
    y, x, dy, dx, blocked = 0, 0, 0, 1, 0
    made[0, 0] = 1

    def taken(row: int, column: int) -> bool:
        return 0 <= row < side and 0 <= column < side and made[row, column] == 1

    while blocked < 2:
        ahead_y, ahead_x = y + dy, x + dx
        outside = not (0 <= ahead_y < side and 0 <= ahead_x < side)
        if outside or taken(ahead_y, ahead_x) or taken(ahead_y + dy, ahead_x + dx):
            dy, dx, blocked = dx, -dy, blocked + 1
            continue
        y, x, blocked = ahead_y, ahead_x, 0
        made[y, x] = 1
    return made


def test_a_winding_piece_is_found_whole() -> None:
    labels = spiral(200)
    assert pieces_on_cpu(labels).max() == 1
    assert len(pieces_of(torch.from_numpy(labels)).unique()) == 2


def test_a_speck_joins_the_neighbour_most_like_it() -> None:
    labels = torch.zeros(20, 30, dtype=torch.int32)
    labels[:, 15:] = 1
    labels[8:11, 14:16] = 2
    colours = torch.zeros(3, 20, 30)
    colours[0, :, 15:] = 60
    colours[0, 8:11, 14:16] = 50
    joined = join_small(pieces_of(labels), colours, 20).view(20, 30)
    assert len(joined.unique()) == 2
    assert (joined[8:11, 14:16] == joined[0, 29]).all()


def test_ids_are_ranked_as_on_the_cpu() -> None:
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(0, 9, (30, 40), generator=generator)
    truth = clusters_from_labels(labels.numpy(), "any").labels
    assert (ranked(labels.view(-1)).view(30, 40).numpy() == truth).all()


@pytest.mark.parametrize("device", DEVICES)
def test_clusters_as_the_host_knows_them(device: str) -> None:
    clusters = to_clusters(slic(planes(toy(4), device), 50))
    assert clusters.method == "slic-torch"
    assert clusters.areas.sum() == pytest.approx(1)
    height, width = clusters.labels.shape
    at = (clusters.centroids_xy * [width, height]).astype(int)
    assert (clusters.labels[at[:, 1], at[:, 0]] == np.arange(clusters.count)).all()


def test_it_is_a_clusterer() -> None:
    frame = Frame(0, 0.0, toy(5, (640, 352)))
    clusters = TorchSlic(50).cluster(KeyframeInput(frame, Grid.for_size(frame.size_wh)))
    assert clusters.labels.shape == (88, 160)
    check_regions(clusters.labels)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU here")
def test_nothing_waits_for_the_device() -> None:
    rgb = planes(toy(6), "cuda")
    first = slic(rgb, 50)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        again = slic(rgb, 50)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(first, again)
