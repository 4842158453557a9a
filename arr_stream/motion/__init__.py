"""Where things went from one frame to the next: flow with confidence, its composition, and carrying along it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from arr_stream.errors import InvalidSetting

if TYPE_CHECKING:
    from arr_stream.motion.flow import FlowEstimator


def _dis(preset: str) -> FlowEstimator:
    from arr_stream.motion.dis import DisFlow

    # DIS ultrafast searches at an eighth of the texture's size; a finer raster would only be interpolated.
    return DisFlow(preset, raster_divisor=4)


def _codec(preset: str) -> FlowEstimator:
    from arr_stream.motion.codec import CodecFlow

    return CodecFlow(raster_divisor=4)


FLOWS: dict[str, Callable[..., FlowEstimator]] = {"dis": _dis, "codec": _codec}
"""Makers of flow estimators by name; each takes the DIS preset, which `codec` has no use for."""


def make_flow(name: str, preset: str = "ultrafast") -> FlowEstimator:
    """The estimator of that name.

    Args:
        name: A key of `FLOWS`.
        preset: How thorough the search is, where there is one: `ultrafast`, `fast` or `medium`.

    Raises:
        InvalidSetting: An unknown name or preset.
    """
    if name not in FLOWS:
        raise InvalidSetting(f"motion.flow={name!r} is not known", remedy=f"use one of {', '.join(FLOWS)}")
    return FLOWS[name](preset)
