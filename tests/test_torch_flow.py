"""Flow in tensor operations: what it finds."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from arr_stream.motion.flow import resize_offsets
from arr_stream.motion.torch_flow import flow_px
from arr_stream.sources import open_source
from benchmarks.scenes.truth import load_truth
from tests.contracts.test_flow import on_device, on_host, texture
from tests.device_checks import DEVICES

SAMPLES = Path(__file__).resolve().parent.parent / "sample_videos"


def grey(height: int, width: int, *, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(cv2.cvtColor(texture(height, width, seed=seed), cv2.COLOR_RGB2GRAY)).float()


def moved(height: int, width: int, shift_xy: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Two views of one picture, the second moved by whole pixels: previous and present."""
    dx, dy = shift_xy
    margin = max(abs(dx), abs(dy))
    world = grey(height + 2 * margin, width + 2 * margin)
    rows, columns = margin - dy, margin - dx
    return (
        world[margin : margin + height, margin : margin + width].contiguous(),
        world[rows : rows + height, columns : columns + width].contiguous(),
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("hw", "shift_xy"), [((240, 320), (7, -4)), ((211, 333), (-23, 9)), ((256, 256), (40, 31)), ((97, 61), (5, 6))]
)
def test_shifts_on_any_size(device: str, hw: tuple[int, int], shift_xy: tuple[int, int]) -> None:
    previous, present = (picture.to(device) for picture in moved(*hw, shift_xy))
    found = flow_px(previous, present).cpu()
    assert found.shape == (*hw, 2) and found.dtype == torch.float32
    # Away from what comes from outside the earlier picture.
    edge = max(map(abs, shift_xy)) + 8
    error_px = (found + torch.tensor(shift_xy)).norm(dim=2)[edge:-edge, edge:-edge]
    assert error_px.median() < 0.15 and error_px.quantile(0.9) < 0.6


def test_a_subpixel_shift() -> None:
    world = texture(300, 400)
    moved_by = np.array([[1, 0, 1.4], [0, 1, -0.6]])
    pair = [cv2.cvtColor(p, cv2.COLOR_RGB2GRAY) for p in (world, cv2.warpAffine(world, moved_by, (400, 300)))]
    previous, present = (torch.from_numpy(p[20:-20, 20:-20].copy()).float() for p in pair)
    found = flow_px(previous, present)[20:-20, 20:-20].reshape(-1, 2)
    assert torch.allclose(found.median(0).values, torch.tensor([-1.4, 0.6]), atol=0.05)


@pytest.mark.slow
def test_generated_clips_no_worse_than_dis() -> None:
    errors: dict[str, list[float]] = {"device": [], "host": []}
    for path in sorted(SAMPLES.glob("*.truth.npz")):
        truth = load_truth(path)
        with open_source(path.with_name(path.name.replace(".truth.npz", ".mp4"))) as source:
            frames = list(source.frames())
        for index in (truth.frames // 4, 3 * truth.frames // 4):
            flow, valid = truth.backward_flow(index)
            for name, measure in (("device", on_device), ("host", on_host)):
                found = measure(frames[index - 1].rgb, frames[index].rgb).offset_px
                away_px = np.linalg.norm(resize_offsets(found, flow.shape[:2]) - flow, axis=2)
                errors[name].append(float(away_px[valid].mean()))
    assert len(errors["device"]) >= 4
    assert 0 < np.mean(errors["device"]) <= np.mean(errors["host"]) < 2
