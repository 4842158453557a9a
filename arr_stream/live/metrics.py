"""Prometheus metrics of running streams.

Names and labels follow its conventions: base units (seconds, bytes), `_total` at the end of counters, a label for the
stream. Labels take few values: at most 64 streams at a time, names cut to 80 characters, and open-ended values limited
to 32 each; further ones count under `other`.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arr_stream.consumer import Outcome, Rate, total_ms
from arr_stream.patch_set import PatchSet
from arr_stream.plain_text import redact_url
from arr_stream.sources.base import SourceStats
from arr_stream.types import Frame

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Metric

_OTHER = "other"
_STAGE_SECONDS = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5)
_FRAME_SECONDS = (0.002, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.033, 0.05, 0.1, 0.2, 0.5, 1.0)
_AGE_SECONDS = (0.005, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.5, 1.0, 2.0, 5.0)
_ANSWER_SECONDS = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0)
"""Upper bounds of the histograms' buckets."""

_FROM_THE_START = ("frames_total", "frames_dropped_total", "alerts_total", "pictures_sent_total")
"""Counters exported as 0 from the start, so that rates are right from the first event."""

_MOST_STREAMS = 64
_MOST_VALUES = 32
_LONGEST_NAME = 80
_FPS_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class _Row:
    """Description of a metric: kind, help text, label beside the stream, and histogram buckets."""

    kind: str
    help: str
    label: str | None = None
    buckets: tuple[float, ...] = ()


_OF_STREAMS: dict[str, _Row] = {
    "frames_total": _Row("Counter", "Frames processed."),
    "frames_dropped_total": _Row("Counter", "Frames dropped for a newer one."),
    "source_reconnects_total": _Row("Counter", "Times that the source was opened anew."),
    "source_stalls_total": _Row("Counter", "Times that the source sent nothing for too long."),
    "source_concealed_frames_total": _Row("Counter", "Frames that the decoder patched up."),
    "keyframes_total": _Row("Counter", "Refreshes asked for.", "reason"),
    "answers_total": _Row("Counter", "Answers of the model.", "finish"),
    "alerts_total": _Row("Counter", "Alerts set off."),
    "pictures_sent_total": _Row("Counter", "Pictures sent to clients."),
    "errors_total": _Row("Counter", "Errors, by the name of their kind.", "kind"),
    "stage_seconds": _Row("Histogram", "Time of each stage of a frame.", "stage", _STAGE_SECONDS),
    "frame_seconds": _Row("Histogram", "Time of all stages of a frame.", None, _FRAME_SECONDS),
    "processed_age_seconds": _Row("Histogram", "From capture to the end of processing.", None, _AGE_SECONDS),
    "shown_age_seconds": _Row("Histogram", "From capture to display, as clients tell.", None, _AGE_SECONDS),
    "answer_first_token_seconds": _Row("Histogram", "Time to the first token of an answer.", None, _ANSWER_SECONDS),
    "answer_seconds": _Row("Histogram", "Time of a whole answer.", None, _ANSWER_SECONDS),
    "fps": _Row("Gauge", "Frames processed a second, over the last 5 s."),
    "tokens": _Row("Gauge", "Visual tokens chosen on the newest frame."),
    "confidence_ratio": _Row("Gauge", "Mean trust in carried results, 0 to 1."),
    "quality_level": _Row("Gauge", "Steps by which quality is lowered to hold the frame rate."),
    "queue_frames": _Row("Gauge", "Frames in the queue."),
    "model_cache_bytes": _Row("Gauge", "Key-value cache of the model's memory."),
    "model_memory_tokens": _Row("Gauge", "Tokens in the model's memory."),
}
"""Metrics of a stream; each has the label `stream`, and one more if named."""

_OF_THE_PROCESS: dict[str, str] = {
    "streams": "Streams there are.",
    "clients": "Clients that watch.",
    "resident_memory_bytes": "Memory of this process; its peak where the system does not tell more.",
}


@dataclass(slots=True)
class _Seen:
    """State of a stream: its label, its frame rate, and the last values of external counters."""

    label: str
    counters: dict[str, int] = field(default_factory=dict)
    fps: Rate = field(default_factory=lambda: Rate(_FPS_SECONDS))


class LiveMetrics:
    """All metrics, in an own registry; thread-safe.

    A stream is registered from `consumer` to `remove`; values of other streams are ignored, since late events can
    follow a removal.

    Raises:
        BackendUnavailable: prometheus_client is not installed.
    """

    def __init__(self) -> None:
        import prometheus_client

        self.registry = prometheus_client.CollectorRegistry(auto_describe=True)
        self._lock = threading.RLock()
        self._seen: dict[str, _Seen] = {}
        self._values: dict[str, set[str]] = {}
        self._metrics: dict[str, Any] = {}
        for name, row in _OF_STREAMS.items():
            make = getattr(prometheus_client, row.kind)
            labels = ["stream", *([row.label] if row.label is not None else [])]
            more = {"buckets": row.buckets} if row.buckets else {}
            self._metrics[name] = make(f"arr_stream_{name}", row.help, labels, registry=self.registry, **more)
        for name, text in _OF_THE_PROCESS.items():
            self._metrics[name] = prometheus_client.Gauge(f"arr_stream_{name}", text, registry=self.registry)
        self._metrics["resident_memory_bytes"].set_function(resident_bytes)

    def consumer(self, stream_name: str) -> StreamMetrics:
        """Return a consumer that observes a stream's frames; the name must be unique."""
        with self._lock:
            if stream_name not in self._seen:
                self._add(stream_name)
        return StreamMetrics(self, stream_name)

    def frame(self, stream_name: str, frame: Frame, patches: PatchSet) -> None:
        """Observe one processed frame with its answers."""
        now = time.monotonic()
        with self._lock:
            seen = self._seen.get(stream_name)
            if seen is None:
                return
            seen.fps.add()
            self._count("frames_total", seen)
            if patches.keyframe:
                self._count("keyframes_total", seen, patches.refresh_reason or _OTHER)
            for stage, milliseconds in patches.latency_ms.items():
                if stage != "total":
                    self._child("stage_seconds", seen, stage).observe(milliseconds / 1e3)
            self._child("frame_seconds", seen).observe(total_ms(patches.latency_ms) / 1e3)
            if frame.captured_seconds is not None:
                self._child("processed_age_seconds", seen).observe(max(0.0, now - frame.captured_seconds))
            self._child("tokens", seen).set(patches.tokens)
            self._child("confidence_ratio", seen).set(patches.confidence)
            self._child("quality_level", seen).set(patches.quality)
            if patches.feeding is not None:
                self._child("model_cache_bytes", seen).set(patches.feeding.cache_bytes)
                self._child("model_memory_tokens", seen).set(patches.feeding.memory_tokens)
            for answer in patches.answers:
                self._count("answers_total", seen, answer.finish)
                if answer.finish in ("stop", "length"):
                    self._child("answer_first_token_seconds", seen).observe(answer.prefill_ms / 1e3)
                    self._child("answer_seconds", seen).observe((answer.prefill_ms + answer.decode_ms) / 1e3)

    def source(self, stream_name: str, stats: SourceStats, dropped: int = 0) -> None:
        """Update the counters that the source and its reader keep; both count from their own start."""
        with self._lock:
            seen = self._seen.get(stream_name)
            if seen is None:
                return
            counted = {
                "source_reconnects_total": stats.reconnects,
                "source_stalls_total": stats.stalls,
                "source_concealed_frames_total": stats.concealed_frames,
                "frames_dropped_total": dropped,
            }
            for name, value in counted.items():
                before = seen.counters.get(name, 0)
                # A smaller value means a new source that counts from zero.
                self._child(name, seen).inc(value - before if value >= before else value)
                seen.counters[name] = value

    def alert(self, stream_name: str) -> None:
        self._told("alerts_total", stream_name, lambda child: child.inc())

    def picture_sent(self, stream_name: str) -> None:
        self._told("pictures_sent_total", stream_name, lambda child: child.inc())

    def shown(self, stream_name: str, age_seconds: float) -> None:
        """Observe the time from capture to display of a frame on a client."""
        self._told("shown_age_seconds", stream_name, lambda child: child.observe(max(0.0, age_seconds)))

    def error(self, stream_name: str, error: BaseException) -> None:
        self._told("errors_total", stream_name, lambda child: child.inc(), type(error).__name__)

    def queue(self, stream_name: str, frames: int) -> None:
        self._told("queue_frames", stream_name, lambda child: child.set(frames))

    def clients(self, count: int) -> None:
        self._metrics["clients"].set(count)

    def streams(self, count: int) -> None:
        self._metrics["streams"].set(count)

    def remove(self, stream_name: str) -> None:
        """Forget a stream and all its values."""
        with self._lock:
            seen = self._seen.pop(stream_name, None)
            if seen is None or any(other.label == seen.label for other in self._seen.values()):
                return
            for name in _OF_STREAMS:
                self._metrics[name].remove_by_labels({"stream": seen.label})

    def render(self) -> tuple[bytes, str]:
        """Return all values in Prometheus' text format, and its content type."""
        from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

        return generate_latest(_WithoutCreated(self.registry)), CONTENT_TYPE_PLAIN_0_0_4

    def _told(self, name: str, stream_name: str, change: Callable[[Any], None], value: str | None = None) -> None:
        with self._lock:
            seen = self._seen.get(stream_name)
            if seen is not None:
                change(self._child(name, seen, value))

    def _add(self, name: str) -> None:
        label = redact_url(name)[:_LONGEST_NAME]
        taken = any(other.label == label for other in self._seen.values())
        seen = self._seen[name] = _Seen(_OTHER if taken or len(self._seen) >= _MOST_STREAMS else label)
        if seen.label != _OTHER:
            self._child("fps", seen).set_function(lambda: seen.fps.value)
        for metric in _FROM_THE_START:
            self._child(metric, seen)

    def _count(self, name: str, seen: _Seen, value: str | None = None) -> None:
        self._child(name, seen, value).inc()

    def _child(self, name: str, seen: _Seen, value: str | None = None) -> Any:
        metric = self._metrics[name]
        return metric.labels(seen.label) if value is None else metric.labels(seen.label, self._known(name, value))

    def _known(self, name: str, value: str) -> str:
        """Return a label's value, or `other` beyond the limit."""
        values = self._values.setdefault(name, set())
        if value not in values and len(values) >= _MOST_VALUES:
            return _OTHER
        values.add(value)
        return value[:_LONGEST_NAME]


class _WithoutCreated:
    """Registry without the `_created` series, which double the text and say little."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        for metric in self._registry.collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric


class StreamMetrics:
    """Consumer that observes the frames of one stream; from `LiveMetrics.consumer`."""

    def __init__(self, metrics: LiveMetrics, stream_name: str) -> None:
        self._metrics, self._stream_name = metrics, stream_name

    def consume(self, frame: Frame, patches: PatchSet) -> None:
        self._metrics.frame(self._stream_name, frame, patches)

    def close(self, *, failed: bool = False, outcome: Outcome | None = None) -> None:
        """Do nothing: the values stay until `LiveMetrics.remove`."""


def resident_bytes() -> float:
    """Return the current memory of this process; its peak on systems without /proc."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return float(peak if sys.platform == "darwin" else peak * 1024)
    return float(pages * os.sysconf("SC_PAGE_SIZE"))
