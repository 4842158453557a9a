"""Statistics of a run and of a model's use of it, in memory that does not grow with its length."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from arr_stream.consumer import pays_for_keyframe, total_ms
from arr_stream.patch_set import PatchSet
from arr_stream.types import SCORERS

_KEPT = 8192


@dataclass(frozen=True, slots=True)
class FrameFigures:
    """Figures of one frame; `pays` if it took in parts of a keyframe, `confidence` is None before the first."""

    index: int
    tokens: int
    cells_scored: int
    confidence: float | None
    latency_ms: Mapping[str, float]
    pays: bool

    @property
    def total_ms(self) -> float:
        return total_ms(self.latency_ms)


@dataclass(slots=True)
class RunStatistics:
    """Counts over all frames of a run, and quantiles: exact for 8192 frames, of an even random sample beyond."""

    frames: int = 0
    timed: int = 0
    spent_ms: float = 0.0
    keyframes: Counter[str] = field(default_factory=Counter)
    scorers: Counter[str] = field(default_factory=Counter)
    carried: int = 0
    fresh: int = 0
    first_pts_seconds: float | None = None
    last_pts_seconds: float = 0.0
    _sample: list[FrameFigures] = field(default_factory=list)
    # Fixed, so that the same run gives the same report.
    _random: random.Random = field(default_factory=lambda: random.Random(0))
    _parts: Mapping[str, tuple[int, str]] = field(default_factory=dict)

    @property
    def sample(self) -> list[FrameFigures]:
        """Figures of the sampled frames, in their order."""
        return sorted(self._sample, key=lambda frame: frame.index)

    @property
    def amortised_ms(self) -> float:
        """Milliseconds of all frames, keyframes included, divided by their number; 0 without any."""
        return self.spent_ms / max(1, self.timed)

    def add(self, patches: PatchSet) -> None:
        """Count one frame."""
        self.frames += 1
        if self.first_pts_seconds is None:
            self.first_pts_seconds = patches.pts_seconds
        self.last_pts_seconds = patches.pts_seconds
        if patches.latency_ms:
            self.timed += 1
            self.spent_ms += total_ms(patches.latency_ms)
        self.carried += int(patches.carried.sum())
        self.fresh += int(patches.fresh.sum())
        self.scorers.update(SCORERS[scorer] for scorer in np.sort(patches.scorer).tolist())
        if patches.keyframe:
            self.keyframes[patches.refresh_reason or "unknown"] += 1
        figures = FrameFigures(
            patches.index,
            patches.tokens,
            patches.cells_scored,
            None if patches.keyframe_index is None else patches.confidence,
            patches.latency_ms,
            pays_for_keyframe(patches, self._parts),
        )
        self._parts = patches.parts
        # Vitter's algorithm R.
        if len(self._sample) < _KEPT:
            self._sample.append(figures)
        elif (place := self._random.randrange(self.frames)) < _KEPT:
            self._sample[place] = figures

    def summary(self) -> dict[str, Any]:
        """Return all counts, as plain JSON values."""
        cells = max(1, self.scorers.total())
        amortised = self.amortised_ms
        frames = self.sample
        timed = [frame for frame in frames if frame.latency_ms]
        stages = dict.fromkeys(stage for frame in timed for stage in frame.latency_ms if stage != "total")
        return {
            "frames": self.frames,
            "pts_seconds": [self.first_pts_seconds, self.last_pts_seconds],
            "keyframes": {"count": self.keyframes.total(), "by_reason": dict(self.keyframes.most_common())},
            "amortised_ms": round(amortised, 4),
            "amortised_fps": round(1000 / amortised, 2) if amortised else None,
            "latency_ms": {
                "all": quantiles([frame.total_ms for frame in timed]),
                "keyframes": quantiles([frame.total_ms for frame in timed if frame.pays]),
                "between": quantiles([frame.total_ms for frame in timed if not frame.pays]),
                "stages": {
                    stage: quantiles([frame.latency_ms[stage] for frame in timed if stage in frame.latency_ms])
                    for stage in stages
                },
            },
            "tokens": quantiles([frame.tokens for frame in frames]),
            "confidence": quantiles([frame.confidence for frame in frames if frame.confidence is not None]),
            "cells_scored": quantiles([frame.cells_scored for frame in frames]),
            "chosen_by": {name: round(count / cells, 4) for name, count in self.scorers.most_common()},
            "carried_share": round(self.carried / cells, 4),
            "fresh_share": round(self.fresh / cells, 4),
        }


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """Return mean, median, p95, p99 and largest; empty without values."""
    if not values:
        return {}
    median, p95, p99 = np.percentile(values, (50, 95, 99))
    found = {"mean": np.mean(values), "median": median, "p95": p95, "p99": p99, "max": max(values)}
    return {name: round(float(value), 4) for name, value in found.items()}


@dataclass(slots=True)
class ObjectStatistics:
    """Numbers of objects and frames by class, and the first and last time of each class."""

    classes: dict[str, dict[str, Any]] = field(default_factory=dict)
    _newest_tracks: dict[str, int] = field(default_factory=dict)

    def add(self, patches: PatchSet) -> None:
        """Count one frame."""
        now = round(patches.pts_seconds, 3)
        for label in dict.fromkeys(each.label for each in patches.objects):
            seen = self.classes.setdefault(label, {"tracks": 0, "frames": 0, "first_seconds": now})
            # Track numbers grow, so that the newest one tells new objects without a list of all.
            tracks, newest = {each.track for each in patches.objects if each.label == label}, self._newest_tracks
            seen["tracks"] += sum(track > newest.get(label, 0) for track in tracks)
            seen["frames"] += 1
            seen["last_seconds"] = now
            newest[label] = max(newest.get(label, 0), *tracks)


@dataclass(slots=True)
class ModelStatistics:
    """Counts over all frames that a model received, and over its answers."""

    totals: Counter[str] = field(default_factory=Counter)
    rebuilt: Counter[str] = field(default_factory=Counter)
    vision_ms: float = 0.0
    prefill_ms: float = 0.0
    memory_tokens: int = 0
    most_memory_tokens: int = 0
    most_cache_bytes: int = 0

    def add(self, patches: PatchSet) -> None:
        """Count one frame."""
        if (feeding := patches.feeding) is not None:
            self.totals.update(frames=1, failed=feeding.error is not None, sent=feeding.sent, held=feeding.held)
            self.vision_ms += feeding.vision_ms
            self.prefill_ms += feeding.prefill_ms
            if feeding.rebuilt is not None:
                self.rebuilt[feeding.rebuilt] += 1
            self.memory_tokens = feeding.memory_tokens
            self.most_memory_tokens = max(self.most_memory_tokens, feeding.memory_tokens)
            self.most_cache_bytes = max(self.most_cache_bytes, feeding.cache_bytes)
        for answer in patches.answers:
            self.totals.update(answers=1, failed_answers=answer.finish == "failed")
            self.most_cache_bytes = max(self.most_cache_bytes, answer.cache_bytes)

    def summary(self) -> dict[str, Any] | None:
        """Return all counts, as plain JSON values; None if no model watched."""
        totals = self.totals
        if not totals:
            return None
        fed = max(1, totals["frames"] - totals["failed"])
        return {
            "feeding": {
                "frames": totals["frames"],
                "failed": totals["failed"],
                "sent": totals["sent"],
                "held": totals["held"],
                "rebuilt": dict(self.rebuilt.most_common()),
                "memory_tokens": {"last": self.memory_tokens, "max": self.most_memory_tokens},
                "cache_bytes_max": self.most_cache_bytes,
                "mean_vision_ms": round(self.vision_ms / fed, 4),
                "mean_prefill_ms": round(self.prefill_ms / fed, 4),
            },
            "answers": {"count": totals["answers"], "failed": totals["failed_answers"]},
        }
