"""Contract of flow estimators: the host's and the device's."""

from __future__ import annotations

from collections.abc import Callable

import cv2
import numpy as np
import pytest
import torch

from arr_stream.gpu.flow import DeviceFlow
from arr_stream.motion.flow import DisFlow, Flow, FlowInput
from arr_stream.types import ByteArray, Frame

Measure = Callable[[ByteArray, ByteArray], Flow]


def texture(height: int, width: int, *, seed: int = 0) -> ByteArray:
    """Smooth random colour with structure at several scales."""
    random = np.random.default_rng(seed)
    picture = np.zeros((height, width, 3), np.float32)
    for sigma in (3.0, 8.0, 20.0):
        layer = cv2.GaussianBlur(random.normal(size=(height, width, 3)).astype(np.float32), (0, 0), sigma)
        picture += layer / layer.std()
    return np.clip(128 + 40 * picture, 0, 255).astype(np.uint8)


def flow_input(rgb: ByteArray) -> FlowInput:
    """A frame with its grey picture at half size, as the pipeline makes it."""
    height, width = rgb.shape[:2]
    grey = cv2.cvtColor(rgb, cv2.COLOR_RGB2GRAY)
    half = cv2.resize(grey, (max(1, width // 2), max(1, height // 2)), interpolation=cv2.INTER_AREA)
    return FlowInput(half, Frame(0, 0.0, rgb))


def on_host(previous: ByteArray, present: ByteArray) -> Flow:
    return DisFlow().estimate(flow_input(previous), flow_input(present))


def on_device(previous: ByteArray, present: ByteArray) -> Flow:
    made = [flow_input(rgb) for rgb in (previous, present)]
    given = [FlowInput(torch.from_numpy(each.grey).float(), each.frame) for each in made]
    return DeviceFlow(lambda step, *args: step(*args)).estimate(*given).to_numpy()


@pytest.fixture(params=[on_host, on_device])
def measure(request: pytest.FixtureRequest) -> Measure:
    """Backward flow between two pictures."""
    found: Measure = request.param
    return found


@pytest.mark.parametrize("shift_xy", [(6, 0), (-4, 8), (3, -5)])
def test_translation_is_recovered(measure: Measure, shift_xy: tuple[int, int]) -> None:
    dx, dy = shift_xy
    world = texture(240 + 40, 320 + 40)
    previous, present = world[20:260, 20:340], world[20 - dy : 260 - dy, 20 - dx : 340 - dx]
    flow = measure(previous, present)
    raster_per_px = np.float32([flow.hw[1] / 320, flow.hw[0] / 240])
    trusted = flow.confidence > 0.9
    assert trusted.mean() > 0.8
    # The content moved by (dx, dy), so it was at -(dx, dy).
    error_px = np.linalg.norm(flow.offset_px + np.float32([dx, dy]) * raster_per_px, axis=2)[trusted]
    assert np.median(error_px) < 0.1
    assert np.quantile(error_px, 0.95) < 0.5


def test_still_picture_does_not_move(measure: Measure) -> None:
    picture = texture(240, 320)
    flow = measure(picture, picture)
    assert np.abs(flow.offset_px).max() < 0.05
    assert flow.confidence.min() > 0.95
    assert flow.residual.max() < 0.05


def test_cut_takes_confidence_away(measure: Measure) -> None:
    flow = measure(texture(240, 320), texture(240, 320, seed=1))
    assert flow.confidence.mean() < 0.5
    assert flow.residual.mean() > 0.4


def test_uncovered_background_is_not_trusted(measure: Measure) -> None:
    background, thing = texture(240, 320), 255 - texture(240, 320, seed=2)
    previous, present = background.copy(), background.copy()
    previous[80:160, 100:180] = thing[80:160, 100:180]
    present[80:160, 132:212] = thing[80:160, 100:180]
    flow = measure(previous, present)
    confidence = cv2.resize(flow.confidence, (320, 240), interpolation=cv2.INTER_LINEAR)
    uncovered, elsewhere = confidence[88:152, 104:128], confidence[:, 224:]
    assert uncovered.mean() < elsewhere.mean() - 0.3
    assert elsewhere.mean() > 0.9


def test_what_comes_from_outside_is_not_trusted(measure: Measure) -> None:
    world = texture(240, 360)
    # The camera pans left by 32 px: the left edge was never seen.
    flow = measure(world[:, 40:], world[:, 8:-32])
    confidence = cv2.resize(flow.confidence, (320, 240), interpolation=cv2.INTER_LINEAR)
    assert confidence[:, :12].mean() < 0.5
    assert confidence[:, 80:].mean() > 0.85


@pytest.mark.parametrize("hw", [(1, 1), (8, 8), (2, 2), (16, 300), (300, 8), (24, 800)])
def test_tiny_and_thin_pictures(measure: Measure, hw: tuple[int, int]) -> None:
    height, width = hw
    picture = texture(height, width)
    flow = measure(picture, picture)
    assert min(flow.hw) >= 1
    assert np.abs(flow.offset_px).max() < 0.1
    assert flow.confidence.min() > 0.9


@pytest.mark.parametrize("level", [0, 128, 255])
def test_uniform_picture_does_not_move(measure: Measure, level: int) -> None:
    picture = np.full((96, 128, 3), level, np.uint8)
    flow = measure(picture, picture)
    assert np.abs(flow.offset_px).max() < 0.05
    assert flow.confidence.min() > 0.99


def test_noise_in_flat_areas_is_no_alarm(measure: Measure) -> None:
    random = np.random.default_rng(5)
    noisy = [np.clip(random.normal(128, 3, (240, 320, 3)), 0, 255).astype(np.uint8) for _ in range(2)]
    # Confidence may fall, since noise has no true flow (it may point outside).
    assert measure(*noisy).residual.mean() < 0.02


def test_pictures_of_two_sizes_are_refused(measure: Measure) -> None:
    with pytest.raises(ValueError, match="differ in size"):
        measure(texture(64, 64), texture(64, 96))
