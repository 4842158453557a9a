"""Statistics of a run and of a model's use of it, in memory that does not grow with its length."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from arr_stream.consumer import pays_for_keyframe, total_ms
from arr_stream.patch_set import Answer, Feeding, PatchSet
from arr_stream.plain_text import model_name, one_line, redact_url
from arr_stream.types import SCORERS

_KEPT = 8192
_KEPT_ANSWERS = 1000


T = TypeVar("T")


class Sample(Generic[T]):
    """Even random sample of at most 8192 items (Vitter's algorithm R), in the order they came."""

    def __init__(self) -> None:
        self.count = 0
        self._kept: list[tuple[int, T]] = []
        # Fixed, so that the same run gives the same report.
        self._random = random.Random(0)

    @property
    def items(self) -> list[T]:
        return [item for _, item in sorted(self._kept, key=lambda kept: kept[0])]

    def add(self, item: T) -> None:
        """Take one item into account."""
        self.count += 1
        if len(self._kept) < _KEPT:
            self._kept.append((self.count, item))
        elif (place := self._random.randrange(self.count)) < _KEPT:
            self._kept[place] = self.count, item


class Quantiles(Sample[float]):
    """Quantiles of many numbers: exact up to 8192 of them, of a sample beyond."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0.0
        self.largest = 0.0

    def add(self, value: float) -> None:
        """Count one number."""
        super().add(value)
        self.total += value
        self.largest = max(self.largest, value)

    def summary(self) -> dict[str, float]:
        """Return mean, median, p95, p99 and largest; empty if no number was added."""
        if not self.count:
            return {}
        median, p95, p99 = np.percentile(self.items, (50, 95, 99)).tolist()
        values = {"mean": self.total / self.count, "median": median, "p95": p95, "p99": p99, "max": self.largest}
        return {name: round(value, 4) for name, value in values.items()}


class FrameLatency(NamedTuple):
    """Milliseconds of a frame, those of them spent on a keyframe, and whether it took in parts of one."""

    frame_index: int
    total_ms: float
    keyframe_ms: float
    pays: bool


@dataclass(slots=True)
class RunStatistics:
    """Counts over all frames of a run."""

    frames: int = 0
    tokens: Quantiles = field(default_factory=Quantiles)
    grid_share: Quantiles = field(default_factory=Quantiles)
    confidence: Quantiles = field(default_factory=Quantiles)
    cells_scored: Quantiles = field(default_factory=Quantiles)
    latency: Quantiles = field(default_factory=Quantiles)
    keyframe_latency: Quantiles = field(default_factory=Quantiles)
    between_latency: Quantiles = field(default_factory=Quantiles)
    stages: dict[str, Quantiles] = field(default_factory=dict)
    keyframes: Counter[str] = field(default_factory=Counter)
    scorers: Counter[str] = field(default_factory=Counter)
    carried: int = 0
    fresh: int = 0
    first_pts_seconds: float | None = None
    last_pts_seconds: float = 0.0
    timeline: Sample[FrameLatency] = field(default_factory=Sample)
    _parts: Mapping[str, tuple[int, str]] = field(default_factory=dict)

    @property
    def amortised_ms(self) -> float:
        """Milliseconds of all frames, keyframes included, divided by their number; 0 without any."""
        return self.latency.total / max(1, self.latency.count)

    def add(self, patches: PatchSet) -> None:
        """Count one frame."""
        self.frames += 1
        if self.first_pts_seconds is None:
            self.first_pts_seconds = patches.pts_seconds
        self.last_pts_seconds = patches.pts_seconds
        self.tokens.add(patches.tokens)
        self.grid_share.add(patches.tokens / patches.grid.cells)
        if patches.keyframe_index is not None:
            self.confidence.add(patches.confidence)
        self.cells_scored.add(patches.cells_scored)
        self.carried += int(patches.carried.sum())
        self.fresh += int(patches.fresh.sum())
        self.scorers.update(SCORERS[scorer] for scorer in np.sort(patches.scorer).tolist())
        if patches.keyframe:
            self.keyframes[patches.refresh_reason or "unknown"] += 1
        if patches.latency_ms:
            self._add_latency(patches)
        self._parts = patches.parts

    def _add_latency(self, patches: PatchSet) -> None:
        total = total_ms(patches.latency_ms)
        self.latency.add(total)
        pays = pays_for_keyframe(patches, self._parts)
        (self.keyframe_latency if pays else self.between_latency).add(total)
        self.timeline.add(FrameLatency(patches.index, total, patches.latency_ms.get("keyframe", 0.0), pays))
        for stage, milliseconds in patches.latency_ms.items():
            if stage != "total":
                self.stages.setdefault(stage, Quantiles()).add(milliseconds)

    def summary(self) -> dict[str, Any]:
        """Return all counts, as plain JSON values."""
        cells = max(1, self.scorers.total())
        amortised = self.amortised_ms
        return {
            "frames": self.frames,
            "pts_seconds": [self.first_pts_seconds, self.last_pts_seconds],
            "keyframes": {"count": self.keyframes.total(), "by_reason": dict(self.keyframes.most_common())},
            "amortised_ms": round(amortised, 4),
            "amortised_fps": round(1000 / amortised, 2) if amortised else None,
            "latency_ms": {
                "all": self.latency.summary(),
                "keyframes": self.keyframe_latency.summary(),
                "between": self.between_latency.summary(),
                "stages": {stage: numbers.summary() for stage, numbers in self.stages.items()},
            },
            "tokens": self.tokens.summary(),
            "grid_share": self.grid_share.summary(),
            "confidence": self.confidence.summary(),
            "cells_scored": self.cells_scored.summary(),
            "chosen_by": {name: round(count / cells, 4) for name, count in self.scorers.most_common()},
            "carried_share": round(self.carried / cells, 4),
            "fresh_share": round(self.fresh / cells, 4),
        }


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
    """Counts over all frames that a model received, and the newest 1000 answers."""

    frames: int = 0
    failed_frames: int = 0
    sent: int = 0
    held: int = 0
    memory_tokens: int = 0
    most_memory_tokens: int = 0
    most_cache_bytes: int = 0
    rebuilt: Counter[str] = field(default_factory=Counter)
    vision: Quantiles = field(default_factory=Quantiles)
    prefill: Quantiles = field(default_factory=Quantiles)
    answers: int = 0
    failed_answers: int = 0
    newest: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=_KEPT_ANSWERS))

    def add(self, patches: PatchSet) -> None:
        """Count one frame."""
        if patches.feeding is not None:
            self._add_feeding(patches.feeding)
        for answer in patches.answers:
            self._add_answer(answer)

    def _add_feeding(self, feeding: Feeding) -> None:
        self.frames += 1
        self.sent += feeding.sent
        self.held += feeding.held
        self.memory_tokens = feeding.memory_tokens
        self.most_memory_tokens = max(self.most_memory_tokens, feeding.memory_tokens)
        self.most_cache_bytes = max(self.most_cache_bytes, feeding.cache_bytes)
        if feeding.rebuilt is not None:
            self.rebuilt[feeding.rebuilt] += 1
        if feeding.error is not None:
            self.failed_frames += 1
        else:
            self.vision.add(feeding.vision_ms)
            self.prefill.add(feeding.prefill_ms)

    def _add_answer(self, answer: Answer) -> None:
        self.answers += 1
        self.failed_answers += answer.finish == "failed"
        self.most_cache_bytes = max(self.most_cache_bytes, answer.cache_bytes)
        self.newest.append(
            {
                "pts_seconds": round(answer.pts_seconds, 6),
                "question": redact_url(answer.question),
                "text": redact_url(answer.text),
                "model": model_name(answer.model),
                "answer_tokens": answer.answer_tokens,
                "prefill_ms": round(answer.prefill_ms, 3),
                "decode_ms": round(answer.decode_ms, 3),
                "finish": answer.finish,
                "error": one_line(answer.error),
            }
        )

    def summary(self) -> dict[str, Any] | None:
        """Return all counts, as plain JSON values; None if no model watched."""
        if not self.frames and not self.answers:
            return None
        return {
            "feeding": {
                "frames": self.frames,
                "failed": self.failed_frames,
                "sent": self.sent,
                "held": self.held,
                "rebuilt": dict(self.rebuilt.most_common()),
                "memory_tokens": {"last": self.memory_tokens, "max": self.most_memory_tokens},
                "cache_bytes_max": self.most_cache_bytes,
                "vision_ms": self.vision.summary(),
                "prefill_ms": self.prefill.summary(),
            },
            "answers": {"count": self.answers, "failed": self.failed_answers, "newest": list(self.newest)},
        }
