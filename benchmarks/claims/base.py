"""What a claim is, and how it is told whether it holds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np

from arr_stream.config import Settings
from arr_stream.evaluation.tables import ResultTable, Value
from arr_stream.processes import usable_cores
from arr_stream.types import Frame
from benchmarks.machine import machine
from benchmarks.scenes.shapes import moving_scene

Verdict = Literal["yes", "by construction", "no", "no, on this machine", "not measured"]


@dataclass(frozen=True, slots=True)
class Claim:
    """One figure that was promised, beside the one that was measured.

    Args:
        part: The part of the measurement that it belongs to.
        what: What is claimed, in words.
        claimed: The figure.
        measured: The same here; None where it cannot be measured here.
        unit: Of both, such as `x` or `ms`.
        how: What was measured, or why it was not.
        at_least: The claim is the least that it should be, not the most.
        other_machine: The claim is a time on another machine, so that a larger one here refutes nothing.
        by_construction: The figure follows from how the thing is built, so that it could not have come out otherwise.
        own_limit: The design names no figure here; this one is the project's own tolerance.
    """

    part: str
    what: str
    claimed: float
    measured: float | None
    unit: str
    how: str
    at_least: bool = False
    other_machine: bool = False
    by_construction: bool = False
    own_limit: bool = False

    @property
    def verdict(self) -> Verdict:
        if self.measured is None:
            return "not measured"
        if (self.measured >= self.claimed) if self.at_least else (self.measured <= self.claimed):
            return "by construction" if self.by_construction else "yes"
        return "no, on this machine" if self.other_machine else "no"

    def as_json(self) -> dict[str, Any]:
        names = ("part", "what", "claimed", "measured", "unit", "at_least", "own_limit", "verdict", "how")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class ClaimsPlan:
    """How claims are measured.

    Args:
        settings: What is measured.
        models: CLIP models to time, as `clip.model`; NAME:random is an architecture with random weights.
        size_wh: Size of the frames in pixels.
        video_sizes_wh: Sizes at which perception is compared with crops and dense passes, whose cost depends on it.
        rounds: Medians are over so many.
        between: Frames between keyframes in each round.
        scenes: Generated scenes that shares are counted on.
        threads: Of torch, for all that is compared alike.
        progress: Told what comes next.
    """

    settings: Settings = field(default_factory=Settings)
    models: tuple[str, ...] = ("ViT-B-16:random", "tiny")
    size_wh: tuple[int, int] = (1024, 1024)
    video_sizes_wh: tuple[tuple[int, int], ...] = ((864, 480), (1024, 1024))
    rounds: int = 5
    between: int = 10
    scenes: int = 10
    threads: int = field(default_factory=usable_cores)
    progress: Callable[[str], None] = lambda _: None

    @cached_property
    def frames(self) -> list[Frame]:
        """A clip for one round, of `size_wh`."""
        return self.clip(self.size_wh)

    def clip(self, size_wh: tuple[int, int]) -> list[Frame]:
        """A generated clip for one round: things that move before a panning camera."""
        scenes = moving_scene(np.random.default_rng(0), size_wh, 1 + self.between)
        return [Frame(index, index / 30, scene.rgb) for index, scene in enumerate(scenes)]


def median_ms(work: Callable[[], object], rounds: int) -> float:
    """Median time of some work; a first run, which is not counted, warms it up."""
    work()
    spent = []
    for _ in range(rounds):
        started = time.perf_counter()
        work()
        spent.append((time.perf_counter() - started) * 1e3)
    return float(np.median(spent))


def claims_table(claims: Sequence[Claim], size_wh: tuple[int, int]) -> ResultTable:
    """All claims, a row each."""
    rows: list[tuple[Value, ...]] = [
        (
            claim.what,
            _limit(claim),
            None if claim.measured is None else _shown(claim.measured, claim.unit),
            claim.verdict,
            claim.how,
        )
        for claim in claims
    ]
    return ResultTable(
        f"What the design promised, on frames of {size_wh[0]}x{size_wh[1]} unless a size is named",
        ("claim", "claimed", "measured", "holds", "how"),
        tuple(rows),
        note=f"Measured on {machine()}. Whether a claim holds is told by its two figures alone. Times were claimed for "
        "another machine, an A100; ratios are of times taken in turns on this one. By construction: the figure follows "
        "from how the thing is built and could not have come out otherwise. (ours): a tolerance that the design does "
        "not name.",
    )


def _limit(claim: Claim) -> str:
    bound = f"{'≥' if claim.at_least else '≤'} {_shown(claim.claimed, claim.unit)}"
    return f"{bound} (ours)" if claim.own_limit else bound


def _shown(value: float, unit: str) -> str:
    """Three digits that count."""
    if unit == "%":
        return f"{value:.1%}"
    number = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{number}x" if unit == "x" else f"{number} {unit}"
