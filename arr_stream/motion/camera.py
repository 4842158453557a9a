"""What the camera does: one affine motion that most of the picture follows."""

from __future__ import annotations

from functools import lru_cache

import cv2
import numpy as np

from arr_stream.motion.flow import Flow
from arr_stream.types import ByteArray, FloatArray

ROUNDS = 2
TOLERANCE_PX = 0.25
FULL_MOTION_PX = 0.6
"""Speed against a camera that stands still, in pixels of an eighth of the texture, that counts as full motion."""
STRUCTURE_CONTRAST = 16.0
"""Mean contrast of neighbours, in grey levels of 255, from which flow can be told from the picture alone."""
STRUCTURE_SIDE_PX = 9
RIDGE = np.eye(3, dtype=np.float32) * np.float32(1e-4)
_NEIGHBOURS = np.ones((3, 3), np.uint8)


@lru_cache(maxsize=16)
def affine_design(hw: tuple[int, int], step: int) -> FloatArray:
    """`[n, 3]`: 1, x, y of every `step`-th place, centred and scaled to about [-1, 1] for conditioning."""
    height, width = hw
    y, x = np.mgrid[:height, :width].astype(np.float32)
    columns = [np.ones_like(x), (x - (width - 1) / 2) / max(width, 2) * 2, (y - (height - 1) / 2) / max(height, 2) * 2]
    return np.stack([column[every_nth(step, height), every_nth(step, width)].ravel() for column in columns], axis=1)


def every_nth(step: int, size: int) -> slice:
    return slice(step // 2 if size > step else 0, None, step)


def camera_flow(offset_px: FloatArray, weight: FloatArray, *, step: int = 8) -> FloatArray:
    """The affine flow that most places agree on.

    Iteratively reweighted least squares with Cauchy weights on every `step`-th place each way, so that a moving
    object of less than half the picture does not pull the fit.

    Args:
        offset_px: `[h, w, 2]` flow.
        weight: `[h, w]` trust in it.

    Returns:
        `[h, w, 2]` flow of the camera alone.
    """
    height, width = offset_px.shape[:2]
    places = every_nth(step, height), every_nth(step, width)
    design = affine_design((height, width), step)
    observed = offset_px[places].reshape(-1, 2)
    trust = weight[places].reshape(-1) + np.float32(1e-3)
    # Start from the median, which no minority can move.
    middle = len(observed) // 2
    parameters = np.zeros((3, 2), np.float32)
    parameters[0] = np.partition(observed, middle, axis=0)[middle]
    for _ in range(ROUNDS):
        residual = observed - design @ parameters
        squared = np.einsum("nc,nc->n", residual, residual)
        scale = max(float(np.partition(squared, middle)[middle]), TOLERANCE_PX**2)
        weights = trust / (1 + squared / np.float32(scale))
        weighted = (design * weights[:, None]).T
        parameters = np.linalg.solve(weighted @ design + RIDGE, weighted @ observed)
    return (affine_design((height, width), 1) @ parameters).reshape(height, width, 2)


def camera_of(flow: Flow) -> FloatArray:
    """`camera_flow` of a flow and its confidence, found once; not to be written to."""
    return flow.once("camera", lambda: camera_flow(flow.offset_px, flow.confidence))


def visible_structure(grey: ByteArray) -> FloatArray:
    """`[h, w]` in [0, 1]: how far motion can be seen at each place of `[h, w]` lightness.

    Where all around is even, such as in the sky, flow is a guess that a panning camera leaves behind.
    """
    contrast = cv2.morphologyEx(grey, cv2.MORPH_GRADIENT, _NEIGHBOURS, borderType=cv2.BORDER_REPLICATE)
    side = (STRUCTURE_SIDE_PX, STRUCTURE_SIDE_PX)
    around = cv2.boxFilter(contrast, cv2.CV_32F, side, borderType=cv2.BORDER_REPLICATE)
    seen: FloatArray = cv2.min(around * np.float32(1 / STRUCTURE_CONTRAST), 1.0)
    return seen.reshape(grey.shape)


def independent_motion(
    offset_px: FloatArray, camera_px: FloatArray, structure: FloatArray, *, full_px: float = FULL_MOTION_PX
) -> FloatArray:
    """How much each place is seen to move against the camera, `[h, w]` in [0, 1].

    It is 1 at `full_px` pixels a frame and above where `structure` (see `visible_structure`) is.

    The measure is relative to camera motion as well, since parallax and flow error grow with it.
    """
    speed = speed_px(offset_px - camera_px)
    camera_speed = cv2.mean(speed_px(camera_px))[0]
    scaled: FloatArray = cv2.min(speed * np.float32(1 / (full_px + 0.5 * camera_speed)), 1.0)
    return scaled.reshape(speed.shape) * structure


def speed_px(flow_px: FloatArray) -> FloatArray:
    """`[h, w]` length of each offset of `[h, w, 2]`; not by `cv2.magnitude`, whose last bit depends on memory."""
    dx, dy = cv2.split(flow_px)
    speed: FloatArray = np.sqrt(dx * dx + dy * dy).reshape(flow_px.shape[:2])
    return speed
