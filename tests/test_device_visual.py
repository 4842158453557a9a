"""Pictures and visual channels on a device: the same as on the CPU path, to the rounding of 8-bit pictures."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
import torch

from arr_stream.gpu.visual import polar_edges
from arr_stream.texture import visual as on_cpu
from arr_stream.texture.pictures import Pictures
from arr_stream.texture.pixels import picture_planes, reduced
from arr_stream.texture.visual import VisualChannels, visual_channels
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
REDUCED = ("full", "half", "grey", "quarter", "quarter_grey", "eighth", "eighth_grey")
PLANES = ("fine", "low_pass", "saliency", "edge_distance")


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
    assert there.full.shape == (3, height, width)
    assert there.full.dtype == torch.uint8
    assert differences(there.full, as_planes(here.full)).max() <= 1
    assert differences(there.eighth, as_planes(here.eighth)).mean() < 0.2


def test_reduced_pictures_hold_whole_numbers() -> None:
    _, there = both(PICTURES["odd"], "cpu")
    for name in REDUCED[1:]:
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


def channels(name: str, device: str) -> tuple[dict[str, np.ndarray], VisualChannels]:
    here, there = both(PICTURES[name], device)
    visual = on_cpu.visual_channels(here)
    planes = {plane: getattr(visual, plane) for plane in PLANES}
    return {**planes, "fine": visual.fine / 255.0}, visual_channels(there)


TOLERANCES = {
    "fine": (0.003, 5 / 255),
    "low_pass": (0.001, 1 / 255),
    "saliency": (0.01, 0.035),
    "edge_distance": (0.01, 0.03),
}
"""Mean and 99th percentile of the difference, as shares of the channel's range, on any picture. Distance: see the test
of it alone."""


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", PICTURES)
@pytest.mark.parametrize("plane", PLANES)
def test_visual_channels_are_those_of_the_cpu(name: str, plane: str, device: str) -> None:
    here, there = channels(name, device)
    values = getattr(there, plane)
    assert values.dtype == torch.float32
    assert values.min() >= 0
    assert values.max() <= 1
    off = differences(values, here[plane])
    if name in EXACT and plane in ("fine", "low_pass"):
        assert off.max() < 1e-6
    mean, of_99 = TOLERANCES[plane]
    assert off.mean() < mean
    assert np.percentile(off, 99) <= of_99 + 1e-6


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", EXACT)
def test_distance_is_within_a_twentieth_of_the_chamfers_that_the_cpu_takes(name: str, device: str) -> None:
    here, there = channels(name, device)
    assert (differences(there.edge_distance, here["edge_distance"]) <= 0.05 * here["edge_distance"] + 1e-6).all()


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
    first = visual_channels(Pictures(rgb, grid))
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        again = visual_channels(Pictures(rgb, grid))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for plane in PLANES:
        assert torch.equal(getattr(first, plane), getattr(again, plane))
