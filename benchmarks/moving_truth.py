"""What moves by itself: a thing whose motion is not the camera's.

Where the footage gives the flow, that is used. Where it does not, flow is searched far more dearly than the frame loop
does (DIS medium at the frame's full size), and the camera's share is the homography that places outside of the known
masks follow. That is a measurement, with a measurement's errors, and reports say so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import cv2
import numpy as np

from arr_stream.evaluation.davis import Mask
from arr_stream.types import ByteArray, FloatArray
from benchmarks.camera_kind import Homography, camera_homography, homography_flow
from benchmarks.footage import Footage, Truth

MOVING_SHARE = 1 / 1000
"""Of the frame's diagonal, a frame: a thing moves if half of it or more goes so far against the camera."""


@dataclass(frozen=True, slots=True, eq=False)
class Moved:
    """One frame's truth with its motion.

    Args:
        truth: As the footage gives it.
        moving: `[H, W]`, what moves against the camera; None on the first frame, and where there are no things.
        homography: The camera's motion since the frame before; None where nothing asked for it.
        grey: `[H, W]` lightness.
    """

    truth: Truth
    moving: Mask | None
    homography: Homography | None
    grey: ByteArray


def moved_truths(footage: Footage) -> Iterator[Moved]:
    """Truths of all frames with what moves; flow is searched only where it is neither given nor needless."""
    search = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM)
    before: ByteArray | None = None
    for frame, truth in zip(footage.frames(), footage.truths(), strict=True):
        grey = np.asarray(cv2.cvtColor(frame.rgb, cv2.COLOR_RGB2GRAY), np.uint8)
        if before is None or (footage.camera is not None and (truth.moving is not None or not truth.things)):
            yield Moved(truth, truth.moving, None, grey)
        else:
            flow_px = truth.flow_px if truth.flow_px is not None else search.calc(grey, before, None)
            things = np.logical_or.reduce([np.zeros(grey.shape, bool), *truth.things])
            homography = camera_homography(flow_px, things)
            moving = moving_things(truth.things, flow_px, homography) if truth.moving is None else truth.moving
            yield Moved(truth, moving, homography, grey)
        before = grey


def moving_things(things: tuple[Mask, ...], flow_px: FloatArray, homography: Homography) -> Mask | None:
    """`[H, W]`, the things that move against the camera; None where there are no things.

    Args:
        things: `[H, W]` each.
        flow_px: `[H, W, 2]` backward flow; NaN where it is not known.
        homography: The camera's motion.
    """
    if not things:
        return None
    height, width = flow_px.shape[:2]
    against_px = np.linalg.norm(flow_px - homography_flow(homography, (width, height)), axis=2)
    least_px = MOVING_SHARE * np.hypot(width, height)
    moving = np.zeros((height, width), bool)
    for thing in things:
        ways_px = against_px[thing]
        ways_px = ways_px[np.isfinite(ways_px)]
        if len(ways_px) and np.median(ways_px) >= least_px:
            moving |= thing
    return moving
