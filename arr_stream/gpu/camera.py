"""What the camera does: one affine motion that most of the picture follows; `motion/camera.py` on a device."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from arr_stream.motion.camera import (
    FULL_MOTION_PX,
    RIDGE,
    ROUNDS,
    STRUCTURE_CONTRAST,
    STRUCTURE_SIDE_PX,
    TOLERANCE_PX,
    every_nth,
)
from arr_stream.motion.camera import affine_design as host_design


def camera_flow(offset_px: Tensor, weight: Tensor, *, step: int = 8) -> Tensor:
    """The affine flow that most places agree on; see `motion.camera.camera_flow`.

    Args:
        offset_px: `[h, w, 2]` flow.
        weight: `[h, w]` trust in it.

    Returns:
        `[h, w, 2]` flow of the camera alone.
    """
    height, width = hw = offset_px.shape[0], offset_px.shape[1]
    places = every_nth(step, height), every_nth(step, width)
    rows = _design(hw, step, offset_px.device)
    observed = offset_px[places].reshape(-1, 2)
    trust = weight[places].reshape(-1) + 1e-3
    middle = len(observed) // 2
    parameters = torch.cat([observed.sort(dim=0).values[middle : middle + 1], observed.new_zeros((2, 2))])
    for _ in range(ROUNDS):
        squared = (observed - rows @ parameters).square().sum(1)
        scale = squared.sort().values[middle].clamp(min=TOLERANCE_PX**2)
        weighted = (rows * (trust / (1 + squared / scale))[:, None]).T
        parameters = _solved(weighted @ rows, weighted @ observed)
    fitted: Tensor = _design(hw, 1, offset_px.device) @ parameters
    return fitted.reshape(height, width, 2)


def visible_structure(grey: Tensor) -> Tensor:
    """`[h, w]` in [0, 1] of lightness in [0, 255]; see `motion.camera.visible_structure`."""
    near = functional.pad(grey[None, None], (1, 1, 1, 1), mode="replicate")
    contrast = functional.max_pool2d(near, 3, 1) + functional.max_pool2d(-near, 3, 1)
    reach = STRUCTURE_SIDE_PX // 2
    around = functional.avg_pool2d(functional.pad(contrast, (reach,) * 4, mode="replicate"), STRUCTURE_SIDE_PX, 1)
    return (around[0, 0] / STRUCTURE_CONTRAST).clamp(max=1.0)


def independent_motion(
    offset_px: Tensor, camera_px: Tensor, structure: Tensor, *, full_px: float = FULL_MOTION_PX
) -> Tensor:
    """How much each place is seen to move against the camera: `[h, w]`; see `motion.camera.independent_motion`."""
    speed = torch.linalg.vector_norm(offset_px - camera_px, dim=2)
    camera_speed = torch.linalg.vector_norm(camera_px, dim=2).mean()
    motion: Tensor = (speed / (full_px + 0.5 * camera_speed)).clamp(max=1.0) * structure
    return motion


def _solved(normal: Tensor, right: Tensor) -> Tensor:
    """Three symmetric equations by cofactors: library solvers look at the result, which waits for the device."""
    matrix = normal.double() + _ridge(normal.device)
    cofactors = torch.linalg.cross(matrix.roll(-1, 0), matrix.roll(-2, 0))
    determinant = (matrix[0] * cofactors[0]).sum()
    solved: Tensor = cofactors.T @ right.double() / determinant
    return solved.float()


@lru_cache(maxsize=32)
def _design(hw: tuple[int, int], step: int, device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(host_design(hw, step))).to(device)


@lru_cache(maxsize=4)
def _ridge(device: torch.device) -> Tensor:
    return torch.from_numpy(RIDGE).double().to(device)
