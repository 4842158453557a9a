"""Flow, carrying and the camera on a device equal the path through OpenCV and numpy.

Tolerances: OpenCV keeps grey pictures in whole levels (a residual of 0.15 at most, 0.02 on average, comes from that)
and places samples to 1/32 px unless there are 1, 3 or 4 channels; all else agrees to rounding.
"""

from __future__ import annotations

import cv2
import numpy as np
import pytest
import torch

import arr_stream.gpu.pixels  # noqa: F401  tensors need what it registers
from arr_stream.motion.camera import camera_flow, independent_motion, visible_structure
from arr_stream.motion.carry import carry, compose
from arr_stream.motion.flow import Flow, checked_flow
from arr_stream.types import ByteArray
from tests.contracts.test_flow import texture
from tests.device_checks import DEVICES

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
