"""Steps as single GPU kernels give what they give as many small operations."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from arr_stream.gpu import flow as _registers_steps_on_tensors  # noqa: F401
from arr_stream.motion import torch_flow
from arr_stream.motion.camera import camera_parameters
from arr_stream.motion.flow import checked_flow
from tests.device_checks import DEVICES
from tests.test_torch_flow import moved

pytest.importorskip("triton", reason="Triton is not installed")


def check_flow(hw: tuple[int, int], device: str) -> None:
    from arr_stream.gpu import kernels

    previous, present = moved(*hw, (2, -1))
    present = present + torch.randn(hw, generator=torch.Generator().manual_seed(0))
    expected = torch_flow.flow_px(previous, present, hw)
    found = kernels.flow_px(previous.to(device), present.to(device), hw).cpu()
    assert found.shape == expected.shape
    difference = (found - expected).abs()
    # A search may fall to the other of two displacements that are as good.
    assert difference.median() < 1e-3 and difference.mean() < 0.02, difference


def check_confidence(hw: tuple[int, int], device: str) -> None:
    from arr_stream.gpu import kernels

    numbers = torch.Generator().manual_seed(0)
    previous, offset_px = torch.rand(hw, generator=numbers) * 255, torch.randn(*hw, 2, generator=numbers)
    present = previous + torch.randn(hw, generator=numbers) * 20
    expected = checked_flow(previous, present, offset_px)
    confidence, residual = kernels.checked(*(given.to(device) for given in (previous, present, offset_px)))
    assert 0.1 < residual.mean() < 0.9
    assert torch.allclose(confidence.cpu(), expected.confidence, atol=1e-4)
    assert torch.allclose(residual.cpu(), expected.residual, atol=1e-4)


def check_camera(hw: tuple[int, int], step: int, device: str) -> None:
    from arr_stream.gpu import kernels

    numbers = torch.Generator().manual_seed(0)
    offset_px, weight = torch.randn(*hw, 2, generator=numbers), torch.rand(hw, generator=numbers)
    offset_px += torch.tensor([2.0, -1.0])
    offset_px[: hw[0] // 3] += 6
    expected = camera_parameters(offset_px, weight, step)
    found = kernels.camera_parameters(offset_px.to(device), weight.to(device), step).cpu()
    assert torch.allclose(found, expected, atol=1e-3), (found, expected)


@pytest.mark.parametrize("hw", [(12, 13), (61, 47), (67, 120), (256, 256)], ids=str)
@pytest.mark.parametrize("device", DEVICES[1:])
def test_kernels_on_a_gpu(hw: tuple[int, int], device: str) -> None:
    check_flow(hw, device)
    check_confidence(hw, device)
    check_camera(hw, 8, device)
    if hw[0] < 100:
        check_camera(hw, 1, device)


@pytest.mark.parametrize(
    "check", ["check_flow((13, 9), 'cpu')", "check_confidence((13, 22), 'cpu')", "check_camera((40, 90), 8, 'cpu')"]
)
def test_kernels_interpreted_on_a_cpu(check: str) -> None:
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", f"from tests.test_device_kernels import *; {check}"],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        cwd=Path(__file__).resolve().parent.parent,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
