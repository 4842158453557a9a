"""Report folder of a run: contact sheet, latency plot, numbers."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from arr_stream.config import Settings, public_settings
from arr_stream.consumer import Outcome, pays_for_keyframe, total_ms
from arr_stream.draw.overlay import draw_patches
from arr_stream.files import prepare_output, written_whole
from arr_stream.patch_set import PatchSet
from arr_stream.plain_text import redact_url
from arr_stream.types import SCORERS, ByteArray, Frame

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CONTACT_SHEET, LATENCY_PLOT, SUMMARY = "contact_sheet.png", "latency.png", "summary.json"

_KEPT = 8192
"""Frames in the sample of a run, so that memory does not grow with its length."""
_SHOWN = 16
_COLUMNS = 4
_THUMBNAIL_WH = 400, 420
_DPI = 120
_LEAST_WIDTH = 8.0
_MARK = "#e8890c"


def prepare_report(folder: Path, force: bool) -> None:
    """Check that a report can be written; see `Report`."""
    for name in (CONTACT_SHEET, LATENCY_PLOT, SUMMARY):
        prepare_output(folder / name, force)


class Report:
    """Writer of `contact_sheet.png`, `latency.png` and `summary.json` into a folder when it is closed.

    If a model watched, the summary has a section `model`. If objects of a query were found, `objects` holds for each
    class their number and times.

    Args:
        folder: Output folder; created when there is something to write.
        force: Replace the three files if they exist; other files in the folder are left alone.
        source: Description of the source, such as the fields of `SourceInfo`; plain JSON values or paths.
        asked: The queries.
        settings: The settings of the run.

    Raises:
        OutputExists: One of the three files exists and `force` is not set.
        OutputUnwritable: The folder cannot be written to.
    """

    def __init__(
        self,
        folder: Path | str,
        force: bool = False,
        *,
        source: Mapping[str, Any] | None = None,
        asked: str | None = None,
        settings: Settings | None = None,
    ) -> None:
        self.folder = Path(folder)
        prepare_report(self.folder, force)
        self._source, self._asked, self._settings = dict(source or {}), asked, settings or Settings()
        self._statistics = RunStatistics()
        self._model = ModelStatistics()
        self._objects = ObjectStatistics()
        self._sheet = ContactSheet()
        self._began = self._ended = 0.0
        self._closed = False

    def consume(self, frame: Frame, patches: PatchSet) -> None:
        """Count one frame."""
        if self._closed:
            raise ValueError(f"{self.folder}: closed, and given another frame")
        self._ended = time.perf_counter()
        if self._statistics.frames == 0:
            self._began = self._ended
        self._statistics.add(patches)
        self._model.add(patches)
        self._objects.add(patches)
        self._sheet.add(frame, patches)

    def close(self, *, failed: bool = False, outcome: Outcome | None = None) -> None:
        """Write the three files. Without a frame nothing is written."""
        if self._closed:
            return
        self._closed = True
        if self._statistics.frames == 0:
            return
        summary = self._summary(outcome or Outcome.of(failed=failed))
        self._write(CONTACT_SHEET, lambda path: self._sheet.write(path, f"{self._name()}\n{self._subtitle()}"))
        self._write(LATENCY_PLOT, lambda path: write_latency_plot(path, self._statistics, self._plot_title()))
        text = json.dumps(summary, indent=2, ensure_ascii=False, allow_nan=False, default=str) + "\n"
        # File names may hold bytes that are not text; JSON has an escape for them.
        self._write(SUMMARY, lambda path: path.write_bytes(text.encode("utf-8", "backslashreplace")))

    def _write(self, name: str, write: Callable[[Path], object]) -> None:
        with written_whole(self.folder / name, force=True) as partial:
            write(partial)

    def _summary(self, outcome: Outcome) -> dict[str, Any]:
        wall = self._ended - self._began
        frames = self._statistics.frames
        model = self._model.summary()
        return {
            "ended": outcome.reason,
            "error": redact_url(outcome.error) if outcome.error else None,
            "dropped": outcome.dropped,
            "wall_seconds": round(wall, 3),
            "frames_per_second": round((frames - 1) / wall, 2) if frames > 1 and wall > 0 else None,
            **self._statistics.summary(),
            **({"model": model} if model is not None else {}),
            **({"objects": self._objects.classes} if self._objects.classes else {}),
            "source": _redacted(self._source),
            "asked": redact_url(self._asked) if self._asked else None,
            "settings": public_settings(self._settings),
            "counters": _redacted(dict(outcome.counters)),
        }

    def _name(self) -> str:
        return redact_url(Path(str(self._source.get("name") or self._source.get("path") or "report")).name)

    def _subtitle(self) -> str:
        statistics = self._statistics
        parts = [
            f"{statistics.frames} frames",
            f"to {clock_time(statistics.last_pts_seconds)}",
            f"{statistics.keyframes.total()} keyframes",
        ]
        if statistics.timed:
            parts.append(f"{statistics.amortised_ms:.1f} ms a frame")
        if self._asked:
            parts.append(redact_url(self._asked))
        return "   ·   ".join(parts)

    def _plot_title(self) -> str:
        if not self._statistics.timed:
            return f"{self._name()}: no latency was measured"
        return f"{self._name()}: {self._statistics.amortised_ms:.1f} ms a frame (total / frames, keyframes included)"


def _redacted(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: redact_url(value) if isinstance(value, str) else value for name, value in values.items()}


class ContactSheet:
    """Every n-th annotated frame with its caption, at most 31; n doubles when there are more."""

    def __init__(self) -> None:
        self._seen = 0
        self._stride = 1
        self._kept: list[tuple[ByteArray, str]] = []

    def add(self, frame: Frame, patches: PatchSet) -> None:
        """Add the frame if it is an n-th one."""
        if self._seen % self._stride == 0:
            thumbnail = Image.fromarray(frame.rgb)
            thumbnail.thumbnail(_THUMBNAIL_WH)
            caption = f"{clock_time(frame.pts_seconds)}   {patches.tokens} tokens"
            if patches.keyframe:
                caption += f"   keyframe: {patches.refresh_reason}"
            self._kept.append((draw_patches(np.asarray(thumbnail), patches), caption))
            if len(self._kept) == 2 * _SHOWN:
                self._kept = self._kept[::2]
                self._stride *= 2
        self._seen += 1

    def write(self, path: Path, title: str) -> None:
        """Write 16 of the frames as a PNG; at least one frame must have been added."""
        places = np.linspace(0, len(self._kept) - 1, min(_SHOWN, len(self._kept))).round().astype(int)
        shown = [self._kept[place] for place in places]
        columns = min(_COLUMNS, len(shown))
        rows = -(-len(shown) // columns)
        height, width = np.max([rgb.shape[:2] for rgb, _ in shown], axis=0) / _DPI
        size = max(_LEAST_WIDTH, columns * (width + 0.1)), rows * (height + 0.3) + 0.5
        figure = _figure(size)
        figure.suptitle(title, fontweight="bold", parse_math=False, wrap=True)
        axes = figure.subplots(rows, columns, squeeze=False).ravel()
        for each in axes:
            each.axis("off")
        for (rgb, caption), each in zip(shown, axes, strict=False):
            each.imshow(rgb)
            each.set_title(caption, loc="left", fontsize=8)
        figure.savefig(path, format="png")


def _figure(size: tuple[float, float]) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=size, dpi=_DPI, layout="constrained")


def clock_time(seconds: float) -> str:
    """Return a time to the tenth of a second, as `1:02:03.4` or `02:03.4`."""
    tenths = round(seconds * 10)
    text = str(timedelta(seconds=tenths // 10)).removeprefix("0:")
    return f"{text}.{tenths % 10}"


def write_latency_plot(path: Path, statistics: RunStatistics, title: str) -> None:
    """Draw milliseconds over frames as a PNG, with the frames that take in parts of a keyframe marked.

    Raises:
        OSError: The file cannot be written.
    """
    frames = [frame for frame in statistics.sample if frame.latency_ms]
    paying = [frame for frame in frames if frame.pays]
    figure = _figure((12, 5))
    axes = figure.add_subplot()
    axes.plot([frame.index for frame in frames], [frame.total_ms for frame in frames], linewidth=1.1)
    axes.scatter(
        [frame.index for frame in paying],
        [frame.total_ms for frame in paying],
        color=_MARK,
        marker="D",
        zorder=3,
        label="takes in parts of a keyframe",
    )
    figures = quantiles([frame.total_ms for frame in frames])
    for name, style in (("median", "-"), ("p95", "--"), ("p99", ":")):
        if name in figures:
            label = f"{name} {figures[name]:.1f} ms"
            axes.axhline(figures[name], color="black", linewidth=1, linestyle=style, label=label)
    axes.set(xlabel="frame", ylabel="milliseconds a frame")
    axes.set_title(title, parse_math=False)
    axes.set_yscale("log")
    axes.grid(alpha=0.4)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    figure.savefig(path, format="png")


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
