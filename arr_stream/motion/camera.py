"""Camera motion: one affine motion that most of the picture follows."""

from __future__ import annotations

from functools import lru_cache, singledispatch

import numpy as np

from arr_stream.motion.flow import Flow
from arr_stream.texture.arrays import Array, at_least, at_most, constant, namespace, zeros
from arr_stream.texture.pixels import affine, local_contrast, mean_of, middle_of, solved
from arr_stream.types import FloatArray

ROUNDS = 4
"""Reweightings; with two, near ground that passes by at another speed still pulls at the fit."""
_STEP = 8
"""Step between the places of the camera fit, on each axis."""
TOLERANCE_PX = 0.25
FULL_MOTION_PX = 0.6
"""Speed against a camera that stands still, in pixels of an eighth of the texture, that counts as full motion."""
SLOW_MOTION = 0.6
"""Largest value of motion that only accumulates over the frames since the keyframe."""
STRUCTURE_CONTRAST = 16.0
"""Mean contrast of neighbours, in grey levels of 255, from which flow is well defined by the picture."""
STRUCTURE_SIDE_PX = 9
RIDGE = 1e-4


@lru_cache(maxsize=16)
def affine_design(hw: tuple[int, int], step: int) -> FloatArray:
    """Return `[n, 3]`: 1, x, y of every `step`-th place, centred and scaled to about [-1, 1] for conditioning."""
    height, width = hw
    y, x = np.mgrid[:height, :width].astype(np.float32)
    columns = [np.ones_like(x), (x - (width - 1) / 2) / max(width, 2) * 2, (y - (height - 1) / 2) / max(height, 2) * 2]
    return np.stack([column[every_nth(step, height), every_nth(step, width)].ravel() for column in columns], axis=1)


@lru_cache(maxsize=16)
def _places(hw: tuple[int, int]) -> FloatArray:
    """Return `[h, w, 2]`: x, y of every place, as in `affine_design`."""
    return np.ascontiguousarray(affine_design(hw, 1)[:, 1:]).reshape(*hw, 2)


@lru_cache(maxsize=1)
def _ridge() -> FloatArray:
    return np.eye(3, dtype=np.float32) * np.float32(RIDGE)


def every_nth(step: int, size: int) -> slice:
    return slice(step // 2 if size > step else 0, None, step)


def camera_flow(offset_px: Array, weight: Array, *, step: int = _STEP) -> Array:
    """Fit the affine flow that most places agree on.

    Iteratively reweighted least squares with Cauchy weights on every `step`-th place each way, so that a moving
    object of less than half the picture does not pull the fit.

    From the flow `[h, w, 2]` and the trust in it `[h, w]`, return that of the camera alone, `[h, w, 2]`.
    """
    hw = offset_px.shape[0], offset_px.shape[1]
    parameters = camera_parameters(offset_px, weight, step)
    return affine(constant(offset_px, _places, hw), parameters[1:], parameters[0])


@singledispatch
def camera_parameters(offset_px: Array, weight: Array, step: int) -> Array:
    """Return `[3, 2]`: `camera_flow` at the middle of the raster, and its gradients across and down.

    The gradients' unit is half a raster's side.
    """
    hw, xp = (offset_px.shape[0], offset_px.shape[1]), namespace(offset_px)
    places = every_nth(step, hw[0]), every_nth(step, hw[1])
    design = constant(offset_px, affine_design, hw, step)
    observed = offset_px[places].reshape(-1, 2)
    trust = weight[places].reshape(-1) + 1e-3
    # Start from the median, which no minority can move.
    parameters = xp.concatenate([middle_of(observed)[None], zeros(observed, (2, 2))])
    table = xp.concatenate([design, observed], axis=1)
    for _ in range(ROUNDS):
        dx, dy = (observed - design @ parameters).T
        squared = dx * dx + dy * dy
        weighed = trust / (1 + squared / at_least(middle_of(squared), TOLERANCE_PX**2))
        sums = (design * weighed[:, None]).T @ table
        parameters = solved(sums[:, :3] + constant(offset_px, _ridge), sums[:, 3:])
    return parameters


def camera_of(flow: Flow) -> Array:
    """Return `camera_flow` of a flow and its confidence, cached; read-only."""
    return flow.once("camera", lambda: camera_flow(flow.offset_px, flow.confidence))


def visible_structure(grey: Array) -> Array:
    """Return `[h, w]` in [0, 1]: visibility of motion at each place of `[h, w]` lightness.

    In even areas, such as the sky, flow is a guess and lags behind a panning camera.
    """
    around = local_contrast(grey, STRUCTURE_SIDE_PX)
    return at_most(around * (1 / STRUCTURE_CONTRAST), 1.0)


def independent_motion(offset_px: Array, camera_px: Array, structure: Array, *, parallax: float = 0.5) -> Array:
    """Return the visible motion of each place against the camera, `[h, w]` in [0, 1].

    It is 1 at `FULL_MOTION_PX` pixels and above where `structure` (see `visible_structure`) is.

    The measure is relative to camera motion as well, since parallax and flow error grow with it: the speed that counts
    as full motion grows by `parallax` times the camera's mean speed.
    """
    speed = speed_px(offset_px - camera_px)
    # An affine flow has nearly the same mean speed on every eighth place.
    some = camera_px[every_nth(_STEP, camera_px.shape[0]), every_nth(_STEP, camera_px.shape[1])]
    scaled = speed * (1 / (FULL_MOTION_PX + parallax * mean_of(speed_px(some))))
    return at_most(scaled, 1.0) * structure


def motion_between(flow: Flow, structure: Array) -> Array:
    """Return motion against the camera and the residual of the flow to the frame before, `[h, w]` in [0, 1]."""
    independent = independent_motion(flow.offset_px, camera_of(flow), structure)
    return namespace(independent).maximum(independent, flow.residual)


def motion_since(flow: Flow, structure: Array) -> Array:
    """Return motion since the keyframe, `[h, w]` in [0, `SLOW_MOTION`].

    Half a pixel a frame is lost in the flow's noise between two frames but adds up since the keyframe. It counts only
    as far as the camera stood still, since parallax adds up, too. `flow` leads to the keyframe.
    """
    slow = independent_motion(flow.offset_px, camera_of(flow), structure, parallax=2.0)
    return SLOW_MOTION * slow * flow.confidence


def speed_px(flow_px: Array) -> Array:
    """Return `[h, w]` lengths of offsets `[h, w, 2]`; avoids `cv2.magnitude`, whose last bit depends on memory."""
    dx, dy = flow_px[..., 0], flow_px[..., 1]
    return namespace(flow_px).sqrt(dx * dx + dy * dy)
