"""Others' ways to choose cells, by name: published rules for dropping visual tokens, and the simplest ones."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.rivals.base import Clip, Rule
from benchmarks.rivals.change import FrameDifference
from benchmarks.rivals.dtd import DifferentialDrop, RelativeDrop
from benchmarks.rivals.evs import EfficientVideoSampling, SamplingPerFrame
from benchmarks.rivals.plain import Random, Scaled, Uniform
from benchmarks.rivals.vidcom2 import VidCom2

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
