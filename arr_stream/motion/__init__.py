"""Motion between frames: optical flow with confidence, its composition, and carrying along it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from arr_stream.errors import InvalidSetting
from arr_stream.extras import needed_by

if TYPE_CHECKING:
    from arr_stream.motion.flow import FlowEstimator


def _dis(preset: str) -> FlowEstimator:
    from arr_stream.motion.dis import DisFlow

    return DisFlow(preset)


def _torch(preset: str) -> FlowEstimator:
    with needed_by("motion.flow=torch"):
        from arr_stream.motion.torch_flow import TorchFlow

    return TorchFlow(preset)


FLOWS: dict[str, Callable[[str], FlowEstimator]] = {"auto": _dis, "dis": _dis, "torch": _torch}
"""Makers of flow estimators by name; each takes the preset. A loop on a GPU takes `torch` for `auto`."""


USUAL_PRESETS = {"auto": "ultrafast", "dis": "ultrafast", "torch": "fast"}
"""Meaning of the preset `auto` for each flow: with `torch`, `fast` hardly takes longer than `ultrafast` on a GPU."""


def usual_preset(name: str, preset: str) -> str:
    """Return the preset, with `auto` resolved for the flow of that name."""
    return USUAL_PRESETS[name] if preset == "auto" else preset


def make_flow(name: str, preset: str = "auto") -> FlowEstimator:
    """Return the flow estimator of that name.

    Args:
        name: A key of `FLOWS`.
        preset: How thorough the search is: `ultrafast`, `fast`, `medium`, or `auto` for the one of `USUAL_PRESETS`.

    Raises:
        InvalidSetting: An unknown name or preset.
    """
    if name not in FLOWS:
        raise InvalidSetting(f"motion.flow={name!r} is not known", remedy=f"use one of {', '.join(FLOWS)}")
    return FLOWS[name](usual_preset(name, preset))
