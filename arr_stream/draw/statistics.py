"""Statistics of a run and of a model's use of it, in memory that does not grow with its length."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from arr_stream.answers import model_name
from arr_stream.consumer import pays_for_keyframe, total_ms
from arr_stream.patch_set import Answer, Feeding, PatchSet
from arr_stream.plain_text import one_line, redact_url
from arr_stream.types import SCORERS

_KEPT = 8192
_KEPT_ANSWERS = 1000
_KEPT_SPANS = 1000
_PAUSE_SECONDS = 1.0
"""Longest gap in a class's presence that is ignored."""


class Quantiles:
    """Quantiles of many numbers: exact up to 8192 of them, of an even random sample beyond (Vitter's algorithm R)."""

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.largest = 0.0
        self._kept: list[float] = []
        # Fixed, so that the same run gives the same report.
        self._random = random.Random(0)

    def add(self, value: float) -> None:
        """Count one number."""
        self.count += 1
        self.total += value
        self.largest = max(self.largest, value)
        if len(self._kept) < _KEPT:
            self._kept.append(value)
        elif (place := self._random.randrange(self.count)) < _KEPT:
            self._kept[place] = value

    def summary(self) -> dict[str, float]:
        """Return mean, median, p95, p99 and largest; empty if no number was added."""
        if not self._kept:
            return {}
        median, p95, p99 = np.percentile(self._kept, (50, 95, 99)).tolist()
        values = {"mean": self.total / self.count, "median": median, "p95": p95, "p99": p99, "max": self.largest}
        return {name: round(value, 4) for name, value in values.items()}


@dataclass(slots=True)
class Bin:
    """Neighbouring frames of a timeline.

    It holds the first one's index, their number, their milliseconds `total` and `largest`, those of `total` that were
    spent on keyframes, and whether one of them took in parts of a keyframe.
    """

    first: int
    count: int
    total: float
    largest: float
    keyframe_ms: float
    keyframe: bool

    def absorb(self, other: Bin) -> None:
        """Add the frames of the next bin."""
        self.count += other.count
        self.total += other.total
        self.largest = max(self.largest, other.largest)
        self.keyframe_ms += other.keyframe_ms
        self.keyframe |= other.keyframe


class Timeline:
    """Latency over time: one bin a frame at first; when there are more than `limit` (even), neighbours are joined."""

    def __init__(self, limit: int = 4096) -> None:
        self.bins: list[Bin] = []
        self._limit = limit
        self._size = 1

    def add(self, index: int, milliseconds: float, keyframe_ms: float, keyframe: bool) -> None:
        """Count one frame; see `Bin`."""
        one = Bin(index, 1, milliseconds, milliseconds, keyframe_ms, keyframe)
        if self.bins and self.bins[-1].count < self._size:
            self.bins[-1].absorb(one)
            return
        if len(self.bins) == self._limit:
            self._size *= 2
            for left, right in zip(self.bins[::2], self.bins[1::2], strict=True):
                left.absorb(right)
            self.bins = self.bins[::2]
        self.bins.append(one)


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
    timeline: Timeline = field(default_factory=Timeline)
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
        self.timeline.add(patches.index, total, patches.latency_ms.get("keyframe", 0.0), pays)
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
class _Presence:
    """Presence of objects of one class.

    Args:
        newest_track: Highest track number so far; a higher one is another object.
        spans_seconds: First and last time of each span; of very many, the newest.
    """

    tracks: int = 0
    newest_track: int = 0
    most_at_once: int = 0
    frames: int = 0
    spans_seconds: deque[list[float]] = field(default_factory=lambda: deque(maxlen=_KEPT_SPANS))


@dataclass(slots=True)
class ObjectStatistics:
    """Counts of objects by class, and the times of each class."""

    classes: dict[str, _Presence] = field(default_factory=dict)

    def add(self, patches: PatchSet) -> None:
        """Count one frame."""
        for label, count in Counter(each.label for each in patches.objects).items():
            seen = self.classes.setdefault(label, _Presence())
            seen.frames += 1
            seen.most_at_once = max(seen.most_at_once, count)
            for track in sorted(each.track for each in patches.objects if each.label == label):
                if track > seen.newest_track:
                    seen.tracks, seen.newest_track = seen.tracks + 1, track
            now, spans = round(patches.pts_seconds, 3), seen.spans_seconds
            if spans and now - spans[-1][1] <= _PAUSE_SECONDS:
                spans[-1][1] = now
            else:
                spans.append([now, now])

    def summary(self) -> dict[str, Any]:
        """Return all counts, as plain JSON values, by class."""
        return {
            label: {
                "tracks": seen.tracks,
                "most_at_once": seen.most_at_once,
                "frames": seen.frames,
                "spans_seconds": list(seen.spans_seconds),
            }
            for label, seen in self.classes.items()
        }


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
