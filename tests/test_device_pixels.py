"""Operations on a device equal those of the host, to the rounding of 8-bit pictures.

Tolerances: OpenCV keeps grey pictures in whole levels (a residual of 0.15 at most, 0.02 on average, comes from that)
and places samples to 1/32 px unless there are 1, 3 or 4 channels; all else agrees to rounding.
"""

from __future__ import annotations

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from arr_stream.gpu.pixels import nearest_distance
from arr_stream.motion.camera import camera_flow, independent_motion, visible_structure
from arr_stream.motion.flow import Flow, carry, checked_flow, compose
from arr_stream.texture.pictures import Pictures, full_picture
from arr_stream.texture.pixels import guided, picture_planes
from arr_stream.types import ByteArray, Frame, Grid
from benchmarks.scenes.shapes import make_scene
from tests.contracts.test_flow import texture
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


SIZES = [(90, 120), (31, 47), (2, 40), (64, 3)]
sized = pytest.mark.parametrize("hw", SIZES)
everywhere = pytest.mark.parametrize("device", DEVICES)


def smooth_flow(hw: tuple[int, int], *, seed: int = 0, spread_px: float = 4.0) -> Flow:
    rng = np.random.default_rng(seed)
    coarse = rng.normal(0, spread_px, (4, 5, 2)).astype(np.float32)
    offset_px = cv2.resize(coarse, (hw[1], hw[0])).reshape(*hw, 2)
    return Flow(np.ascontiguousarray(offset_px), rng.random(hw, np.float32), rng.random(hw, np.float32))


def grey(hw: tuple[int, int], seed: int = 0) -> ByteArray:
    return np.asarray(cv2.cvtColor(texture(*hw, seed=seed), cv2.COLOR_RGB2GRAY), dtype=np.uint8).reshape(hw)


def on(device: str, flow: Flow) -> Flow:
    planes = (flow.offset_px, flow.confidence, flow.residual)
    return Flow(*(torch.from_numpy(plane).to(device) for plane in planes))


@everywhere
@sized
@pytest.mark.parametrize("outside", [None, 0.0, -1.0])
@pytest.mark.parametrize(("channels", "tolerance"), [(3, 1e-4), (7, 0.05)])
def test_planes_are_carried(
    hw: tuple[int, int], device: str, outside: float | None, channels: int, tolerance: float
) -> None:
    values, flow = np.random.default_rng(1).random((channels, *hw), np.float32), smooth_flow(hw)
    ours = carry(torch.from_numpy(values).to(device), on(device, flow), outside=outside)
    assert np.abs(ours.cpu().numpy() - carry(values, flow, outside=outside)).max() < tolerance


@everywhere
@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.bool_])
def test_ids_are_carried(device: str, dtype: type) -> None:
    ids = (np.random.default_rng(2).integers(0, 2 if dtype is np.bool_ else 50, (60, 80))).astype(dtype)
    flow = smooth_flow((15, 20))
    ours = carry(torch.from_numpy(ids).to(device), on(device, flow), nearest=True, outside=0)
    assert ours.cpu().numpy().dtype == dtype
    # Half-way between two pixels either may be taken.
    assert (ours.cpu().numpy() == carry(ids, flow, nearest=True, outside=0)).mean() > 0.999


@everywhere
@sized
def test_flows_are_composed(hw: tuple[int, int], device: str) -> None:
    older, newer = smooth_flow(hw, seed=1), smooth_flow(hw, seed=2)
    ours = compose(on(device, older), on(device, newer)).to_numpy()
    theirs = compose(older, newer)
    assert np.abs(ours.offset_px - theirs.offset_px).max() < 0.1
    # Whether a path ends just inside or just outside hangs on 1/32 px.
    assert (np.abs(ours.confidence - theirs.confidence) < 1e-4).mean() > 0.98
    assert np.array_equal(ours.residual, theirs.residual)


@everywhere
@sized
@pytest.mark.parametrize("kind", ["noise", "cut"])
def test_checked_flow(hw: tuple[int, int], device: str, kind: str) -> None:
    previous, flow = grey(hw), smooth_flow(hw, spread_px=1.0)
    noise = np.random.default_rng(3).normal(0, 6, hw)
    present = grey(hw, seed=1) if kind == "cut" else np.clip(previous + noise, 0, 255).astype(np.uint8)
    theirs = checked_flow(previous, present, flow.offset_px)
    ours = checked_flow(
        *(torch.from_numpy(picture).float().to(device) for picture in (previous, present)),
        torch.from_numpy(flow.offset_px).to(device),
    )
    for mine, other in ((ours.confidence, theirs.confidence), (ours.residual, theirs.residual)):
        difference = np.abs(mine.cpu().numpy() - other)
        assert difference.mean() < 0.02 and difference.max() < 0.15


@everywhere
@sized
@pytest.mark.parametrize("step", [1, 8])
def test_camera(hw: tuple[int, int], device: str, step: int) -> None:
    y, x = np.mgrid[: hw[0], : hw[1]].astype(np.float32)
    flow = smooth_flow(hw, spread_px=0.2)
    offset_px = flow.offset_px + np.stack([1.5 + 0.02 * x - 0.01 * y, -2 + 0.015 * y], axis=2)
    offset_px[: hw[0] // 3, : hw[1] // 3] += 6
    theirs = camera_flow(offset_px, flow.confidence, step=step)
    given_px, weight = (torch.from_numpy(plane).to(device) for plane in (offset_px, flow.confidence))
    ours = camera_flow(given_px, weight, step=step)
    # Across a raster of few columns nothing but the ridge decides, where rounding shows.
    assert np.abs(ours.cpu().numpy() - theirs).max() < (2e-3 if min(hw) > 8 else 2e-2)
    grey = np.random.default_rng(3).integers(0, 40, hw).astype(np.uint8)
    structure, theirs_seen = (visible_structure(torch.from_numpy(grey).float().to(device)), visible_structure(grey))
    assert np.abs(structure.cpu().numpy() - theirs_seen).max() < 1e-5
    motion = independent_motion(given_px, torch.from_numpy(theirs).to(device), structure).cpu().numpy()
    assert np.abs(motion - independent_motion(offset_px, theirs, theirs_seen)).max() < 1e-4


def test_the_guided_filter() -> None:
    rng = np.random.default_rng(0)
    picture, mask = rng.integers(0, 256, (32, 48, 3), np.uint8), rng.random((32, 48), np.float32)
    expected = guided(mask, picture, 5, 6.5)
    found = guided(torch.from_numpy(mask), torch.from_numpy(picture).permute(2, 0, 1).float(), 5, 6.5)
    # Half-size pictures are rounded on the host.
    assert found.numpy() == pytest.approx(expected, abs=0.02)
    assert expected.min() >= 0 and expected.max() <= 1
