"""Optical flow on a device."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from arr_stream.motion.camera import camera_parameters
from arr_stream.motion.flow import (
    CONTRAST_SHARE,
    FLOOR,
    NOISE,
    Flow,
    FlowInput,
    checked_flow,
    raster_hw,
    reduced_hw,
    source_map,
)
from arr_stream.motion.torch_flow import flow_px
from arr_stream.texture.pixels import averaged, inside, remap

_camera_parameters = camera_parameters.dispatch(object)


class DeviceFlow:
    """Estimator that runs `motion.torch_flow` on the device; see `FlowEstimator`.

    Args:
        run: Runs a pure function on the device.
    """

    def __init__(self, run: Callable[..., Any]) -> None:
        self._run = run
        self.reduction = 1

    def estimate(self, previous: FlowInput, present: FlowInput) -> Flow:
        hw = raster_hw(previous, present)
        flow: Flow = self._run(estimate, previous.grey, present.grey, hw, self.reduction)
        return flow


def estimate(previous: Tensor, present: Tensor, hw: tuple[int, int], reduction: int = 1) -> Flow:
    """Return the backward flow between two frames, with photometric confidence.

    Args:
        previous, present: `[h, w]` float32 lightness in [0, 255].
        hw: Raster of the result.
        reduction: The search runs on pictures reduced by this factor.
    """
    if reduction > 1:
        smaller = reduced_hw(present, reduction)
        previous, present = averaged(previous, smaller), averaged(present, smaller)
    kernels = _kernels(present)
    find = kernels.flow_px if kernels else flow_px
    offset_px = find(previous, present, hw)
    return checked_flow(averaged(previous, hw), averaged(present, hw), offset_px)


@checked_flow.register(Tensor)
def checked_on_device(previous: Tensor, present: Tensor, offset_px: Tensor) -> Flow:
    """Return a flow with confidence as `motion.flow.checked_flow` does; the host rounds to whole grey levels."""
    if kernels := _kernels(present):
        return Flow(offset_px, *kernels.checked(previous, present, offset_px))
    map_px = source_map(offset_px)
    earlier, now = _blurred(torch.stack([previous, present])[:, None])
    difference = _mean3((remap(earlier, map_px) - now).abs()[None])[0, 0]
    extremes = F.max_pool2d(torch.stack([present, -present])[None], 3, stride=1, padding=1)[0]
    contrast = extremes[0] + extremes[1]
    residual = ((difference - NOISE) / (contrast * CONTRAST_SHARE + FLOOR)).clamp(0, 1)
    return Flow(offset_px, torch.where(inside(map_px), 1 - residual, 0.0), residual)


@camera_parameters.register(Tensor)
def camera_parameters_on_device(offset_px: Tensor, weight: Tensor, step: int) -> Tensor:
    kernels = _kernels(offset_px)
    found: Tensor = (kernels.camera_parameters if kernels else _camera_parameters)(offset_px, weight, step)
    return found


def _kernels(beside: Tensor) -> ModuleType | None:
    """Return the Triton kernels for a real tensor on a GPU, if Triton is available; not for a fake tensor."""
    return _compiled() if beside.is_cuda and type(beside) is Tensor else None


@cache
def _compiled() -> ModuleType | None:
    return import_module("arr_stream.gpu.kernels") if find_spec("triton") else None


def _blurred(planes: Tensor) -> Tensor:
    """Blur `[n, 1, h, w]` by the 3x3 binomial kernel, borders continued."""
    return F.conv2d(F.pad(planes, (1, 1, 1, 1), mode="replicate"), _binomial(planes.device))


def _mean3(planes: Tensor) -> Tensor:
    return F.avg_pool2d(F.pad(planes, (1, 1, 1, 1), mode="replicate"), 3, stride=1)


@cache
def _binomial(device: torch.device) -> Tensor:
    row = torch.tensor([0.25, 0.5, 0.25], device=device)
    return (row[:, None] * row)[None, None]
