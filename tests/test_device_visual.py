"""Pictures and visual channels on a device: the same as on the CPU path, to the rounding of 8-bit pictures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from arr_stream.gpu.visual import nearest_distance
from arr_stream.texture.pictures import Pictures, full_picture
from arr_stream.texture.pixels import picture_planes, reduced
from arr_stream.texture.visual import edge_distance, high_pass, low_pass, polar_edges, saliency
from arr_stream.types import ByteArray, Frame, Grid
from benchmarks.scenes.shapes import make_scene
from tests.scenes import background, moving_square

DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU here")],
    ),
]
REDUCED = ("half", "grey", "quarter", "quarter_grey", "eighth", "eighth_grey")


def pictures() -> dict[str, ByteArray]:
    """Scenes whose sides are halved exactly, and odd ones."""
    return {
        "square": moving_square(1)[0].rgb,
        "toy": make_scene(np.random.default_rng(5), (448, 256)).rgb,
        "plain": make_scene(np.random.default_rng(6), (320, 192), plain=True).rgb,
        "large": cv2.resize(make_scene(np.random.default_rng(7), (640, 360)).rgb, (1920, 1088)),
        "odd": make_scene(np.random.default_rng(8), (427, 239)).rgb,
        "wide": background((91, 733)),
        "one cell": make_scene(np.random.default_rng(9), (29, 35), diameter_px=(8, 20)).rgb,
    }


PICTURES = pictures()
EXACT = ("square", "toy", "plain", "large")
"""Their sides are whole cells, so that every reduction is by two."""


def both(rgb: ByteArray, device: str, max_pixels: int = 1 << 62) -> tuple[Pictures, Pictures]:
    grid = Grid.for_size((rgb.shape[1], rgb.shape[0]), max_pixels=max_pixels)
    return Pictures(Frame(0, 0.0, rgb), grid), Pictures(torch.from_numpy(rgb).to(device), grid)


def as_planes(picture: ByteArray) -> np.ndarray:
    return np.moveaxis(picture, 2, 0) if picture.ndim == 3 else picture


def differences(there: torch.Tensor, here: np.ndarray) -> np.ndarray:
    assert there.shape == here.shape
    return np.abs(there.cpu().numpy().astype(np.float64) - here)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", PICTURES)
@pytest.mark.parametrize("size", REDUCED)
def test_reduced_pictures_are_those_of_the_cpu(name: str, size: str, device: str) -> None:
    here, there = both(PICTURES[name], device)
    picture = getattr(there, size)
    planes = picture_planes(picture) if picture.ndim == 3 else picture
    off = differences(planes, as_planes(getattr(here, size)))
    if name in EXACT:
        assert off.max() == 0
    else:
        # OpenCV interpolates in fixed point of 11 bits.
        assert off.max() <= 1
        assert off.mean() < 0.2


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("max_pixels", [200_000, 500_000])
def test_a_frame_larger_than_the_texture_is_brought_down_to_it(max_pixels: int, device: str) -> None:
    here, there = both(PICTURES["large"], device, max_pixels)
    width, height = there.grid.texture_wh
    full = full_picture(there.rgb, (width, height))
    assert full.shape == (3, height, width) and full.dtype == torch.uint8
    assert differences(full, as_planes(full_picture(here.rgb, (width, height)))).max() <= 1
    assert differences(there.eighth, as_planes(here.eighth)).mean() < 0.2


def test_reduced_pictures_hold_whole_numbers() -> None:
    _, there = both(PICTURES["odd"], "cpu")
    for name in REDUCED:
        picture = getattr(there, name)
        assert torch.equal(picture, picture.round())
        assert picture.min() >= 0
        assert picture.max() <= 255


def test_reduction_by_a_fraction_keeps_the_mean() -> None:
    generator = torch.Generator().manual_seed(0)
    planes = torch.randint(0, 256, (3, 310, 470), generator=generator)
    smaller = reduced(planes, (96, 64))
    # Means of two by two are rounded up.
    assert abs(smaller.mean().item() - planes.float().mean().item()) < 0.15
    even = torch.full((3, 310, 470), 77)
    assert torch.equal(reduced(even, (96, 64)), torch.full((3, 64, 96), 77.0))


def test_other_pictures_are_refused() -> None:
    with pytest.raises(ValueError, match="uint8"):
        Pictures(torch.zeros(4, 4, 3), Grid.for_size((4, 4)))
    with pytest.raises(ValueError, match=r"\[3, 4, 4\]"):
        Pictures(torch.zeros(3, 4, 4, dtype=torch.uint8), Grid.for_size((4, 4)))


MADE: dict[str, tuple[Callable[[Pictures], Any], float]] = {
    "high_pass": (lambda made: high_pass(made.grey), 255),
    "polar_edges": (lambda made: polar_edges(made.quarter_grey), 255),
    "low_pass": (lambda made: low_pass(made.eighth_grey), 255),
    "saliency": (lambda made: saliency(made.eighth, high_pass(made.grey)), 1),
    "edge_distance": (lambda made: edge_distance(polar_edges(made.quarter_grey)), 255),
}
"""What makes each plane of pictures, and its range."""

TOLERANCES = {
    "high_pass": (0.005, 8 / 255),
    "polar_edges": (0.003, 5 / 255),
    "low_pass": (0.001, 1 / 255),
    "saliency": (0.01, 0.035),
    "edge_distance": (0.01, 0.03),
}
"""Mean and 99th percentile of the difference, as shares of the channel's range, on any picture. A step of lightness
counts four times in fine detail. Distance: see the test of it alone."""


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", PICTURES)
@pytest.mark.parametrize("plane", MADE)
def test_visual_channels_are_those_of_the_cpu(name: str, plane: str, device: str) -> None:
    make, most = MADE[plane]
    here, there = (make(pictures) for pictures in both(PICTURES[name], device))
    assert there.dtype == torch.float32
    assert there.min() >= 0
    assert there.max() <= most
    off = differences(there, here) / most
    if name in EXACT and plane in ("high_pass", "polar_edges", "low_pass"):
        assert off.max() == 0
    mean, of_99 = TOLERANCES[plane]
    assert off.mean() < mean
    assert np.percentile(off, 99) <= of_99 + 1e-6


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", EXACT)
def test_distance_is_within_a_twentieth_of_the_chamfers_that_the_cpu_takes(name: str, device: str) -> None:
    here, there = (edge_distance(polar_edges(made.quarter_grey)) for made in both(PICTURES[name], device))
    assert (differences(there, here) <= 0.05 * here + 1e-4).all()


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.sampled_from([0.0, 0.01, 0.1, 0.6]), st.integers(0, 1 << 30))
def test_distances_are_to_the_nearest_edge(height: int, width: int, share: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    edges = rng.random((height, width)) < share
    edges[rng.integers(height), rng.integers(width)] = True
    rows, columns = np.nonzero(edges)
    y, x = np.mgrid[:height, :width]
    true = np.sqrt((y[..., None] - rows) ** 2 + (x[..., None] - columns) ** 2).min(axis=2)
    np.testing.assert_allclose(nearest_distance(torch.from_numpy(edges)).numpy(), true, atol=1e-4)


@pytest.mark.parametrize("device", DEVICES)
def test_distances_of_a_large_picture_are_tried_in_parts(device: str) -> None:
    edges = torch.zeros(500, 900, dtype=torch.bool, device=device)
    edges[0, 0] = edges[499, 899] = True
    found = nearest_distance(edges).cpu()
    assert found[0, 300] == 300 and found[499, 500] == 399 and found[400, 300] == 500


@pytest.mark.parametrize("device", DEVICES)
def test_a_picture_without_edges_is_far_from_them(device: str) -> None:
    for grey in (np.full((24, 32), 90, np.uint8), torch.full((24, 32), 90.0, device=device)):
        assert edge_distance(polar_edges(grey)).min() == 255


@pytest.mark.parametrize("device", DEVICES)
def test_edges_have_two_polarities(device: str) -> None:
    grey = torch.zeros(20, 30, device=device)
    grey[:, 10:20] = 200
    rising, falling = polar_edges(grey).cpu()
    assert rising[5, 9:11].tolist() == [255, 255]
    assert falling[5, 19:21].tolist() == [255, 255]
    assert rising[:, 15:].sum() == 0
    assert falling[:, :15].sum() == 0


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU here")
def test_nothing_waits_for_the_device() -> None:
    rgb = torch.from_numpy(PICTURES["toy"]).cuda()
    grid = Grid.for_size((448, 256))
    first = [make(Pictures(rgb, grid)) for make, _ in MADE.values()]
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        again = [make(Pictures(rgb, grid)) for make, _ in MADE.values()]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
