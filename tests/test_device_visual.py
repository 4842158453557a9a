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

from arr_stream.gpu.pixels import nearest_distance
from arr_stream.texture.pictures import Pictures, full_picture
from arr_stream.texture.pixels import picture_planes
from arr_stream.texture.visual import edge_distance, high_pass, low_pass, polar_edges, saliency
from arr_stream.types import ByteArray, Frame, Grid
from benchmarks.scenes.shapes import make_scene
from tests.device_checks import DEVICES
from tests.scenes import background, moving_square

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
