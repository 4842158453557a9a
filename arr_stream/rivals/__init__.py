"""Others' ways to choose cells, by name: published rules for dropping visual tokens, and the simplest ones."""

from __future__ import annotations

from collections.abc import Callable

from arr_stream.rivals.base import Clip, Rule
from arr_stream.rivals.change import FrameDifference
from arr_stream.rivals.dtd import DifferentialDrop, RelativeDrop
from arr_stream.rivals.evs import EfficientVideoSampling, SamplingPerFrame
from arr_stream.rivals.plain import Random, Scaled, Uniform
from arr_stream.rivals.vidcom2 import VidCom2

__all__ = ["RULES", "Clip", "Rule"]

RULES: dict[str, Callable[[], Rule]] = {
    "uniform": Uniform,
    "random": Random,
    "scaled": Scaled,
    "difference": FrameDifference,
    "evs": EfficientVideoSampling,
    "evs-per-frame": SamplingPerFrame,
    "dtd-pixel": lambda: DifferentialDrop("pixels"),
    "dtd-feature": lambda: DifferentialDrop("features"),
    "dtd-relative": lambda: RelativeDrop("features"),
    "vidcom2": VidCom2,
}
