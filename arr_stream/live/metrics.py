"""Prometheus metrics of running streams.

Names and labels follow its conventions: base units (seconds, bytes), `_total` at the end of counters. The label
`stream` is the id of a stream.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any

from arr_stream.consumer import Outcome, total_ms
from arr_stream.patch_set import PatchSet
from arr_stream.sources.base import SourceStats
from arr_stream.types import Frame

_STAGE_SECONDS = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5)
_FRAME_SECONDS = (0.002, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.033, 0.05, 0.1, 0.2, 0.5, 1.0)
_AGE_SECONDS = (0.005, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.5, 1.0, 2.0, 5.0)
_ANSWER_SECONDS = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0)
"""Upper bounds of the histograms' buckets."""

_FROM_THE_START = ("frames_total", "frames_dropped_total", "alerts_total", "pictures_sent_total")
"""Counters exported as 0 from the start, so that rates are right from the first event."""


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
    "tokens": _Row("Gauge", "Visual tokens chosen on the newest frame."),
    "confidence_ratio": _Row("Gauge", "Mean trust in carried results, 0 to 1."),
    "quality_level": _Row("Gauge", "Steps by which quality is lowered to hold the frame rate."),
    "queue_frames": _Row("Gauge", "Frames in the queue."),
    "model_cache_bytes": _Row("Gauge", "Key-value cache of the model's memory."),
    "model_memory_tokens": _Row("Gauge", "Tokens in the model's memory."),
}
"""Metrics of a stream; each has the label `stream`, and one more if named."""

_OF_THE_SERVER = {"streams": "Streams there are.", "clients": "Clients that watch."}


class LiveMetrics:
    """All metrics, in an own registry; thread-safe.

    A stream has values from `add` to `remove`; those of other streams are ignored, since late events can follow a
    removal.
    """

    def __init__(self) -> None:
        import prometheus_client

        # They double the text and say little.
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = prometheus_client.CollectorRegistry(auto_describe=True)
        prometheus_client.ProcessCollector(registry=self.registry)
        self._lock = threading.RLock()
        self._streams: set[str] = set()
        self._source_counters: dict[tuple[str, str], int] = {}
        self._metrics: dict[str, Any] = {}
        for name, row in _OF_STREAMS.items():
            make = getattr(prometheus_client, row.kind)
            labels = ["stream", *([row.label] if row.label is not None else [])]
            more = {"buckets": row.buckets} if row.buckets else {}
            self._metrics[name] = make(f"arr_stream_{name}", row.help, labels, registry=self.registry, **more)
        for name, text in _OF_THE_SERVER.items():
            self._metrics[name] = prometheus_client.Gauge(f"arr_stream_{name}", text, registry=self.registry)

    def add(self, stream: str) -> None:
        """Begin to take values of a stream; safe to call again."""
        with self._lock:
            self._streams.add(stream)
            for name in _FROM_THE_START:
                self._metrics[name].labels(stream)

    def remove(self, stream: str) -> None:
        """Forget a stream and all its values."""
        with self._lock:
            if stream in self._streams:
                self._streams.remove(stream)
                for name in _OF_STREAMS:
                    self._source_counters.pop((stream, name), None)
                    self._metrics[name].remove_by_labels({"stream": stream})

    def count(self, stream: str, name: str, *labels: str, by: int = 1) -> None:
        """Add to a counter."""
        with self._lock:
            if stream in self._streams:
                self._metrics[name].labels(stream, *labels).inc(by)

    def observe(self, stream: str, name: str, seconds: float, *labels: str) -> None:
        """Add a time to a histogram."""
        with self._lock:
            if stream in self._streams:
                self._metrics[name].labels(stream, *labels).observe(max(0.0, seconds))

    def set(self, stream: str, name: str, value: float) -> None:
        """Set a gauge."""
        with self._lock:
            if stream in self._streams:
                self._metrics[name].labels(stream).set(value)

    def source(self, stream: str, stats: SourceStats, dropped: int = 0) -> None:
        """Update the counters that the source and its reader keep; both count from their own start."""
        counted = {
            "source_reconnects_total": stats.reconnects,
            "source_stalls_total": stats.stalls,
            "source_concealed_frames_total": stats.concealed_frames,
            "frames_dropped_total": dropped,
        }
        with self._lock:
            for name, value in counted.items():
                before = self._source_counters.get((stream, name), 0)
                # A smaller value means a new source that counts from zero.
                self.count(stream, name, by=value - before if value >= before else value)
                self._source_counters[stream, name] = value

    def render(self, streams: int, clients: int) -> tuple[bytes, str]:
        """Return all values in Prometheus' text format, and its content type."""
        from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

        self._metrics["streams"].set(streams)
        self._metrics["clients"].set(clients)
        return generate_latest(self.registry), CONTENT_TYPE_PLAIN_0_0_4


class StreamMetrics:
    """Consumer that observes the frames of one stream."""

    def __init__(self, metrics: LiveMetrics, stream: str) -> None:
        self._metrics, self._stream = metrics, stream

    def consume(self, frame: Frame, patches: PatchSet) -> None:
        """Observe one processed frame with its answers."""
        metrics, stream = self._metrics, self._stream
        metrics.count(stream, "frames_total")
        if patches.keyframe:
            metrics.count(stream, "keyframes_total", patches.refresh_reason or "other")
        for stage, milliseconds in patches.latency_ms.items():
            if stage != "total":
                metrics.observe(stream, "stage_seconds", milliseconds / 1e3, stage)
        metrics.observe(stream, "frame_seconds", total_ms(patches.latency_ms) / 1e3)
        if frame.captured_seconds is not None:
            metrics.observe(stream, "processed_age_seconds", time.monotonic() - frame.captured_seconds)
        metrics.set(stream, "tokens", patches.tokens)
        metrics.set(stream, "confidence_ratio", patches.confidence)
        metrics.set(stream, "quality_level", patches.quality)
        if patches.feeding is not None:
            metrics.set(stream, "model_cache_bytes", patches.feeding.cache_bytes)
            metrics.set(stream, "model_memory_tokens", patches.feeding.memory_tokens)
        for answer in patches.answers:
            metrics.count(stream, "answers_total", answer.finish)
            if answer.finish in ("stop", "length"):
                metrics.observe(stream, "answer_first_token_seconds", answer.prefill_ms / 1e3)
                metrics.observe(stream, "answer_seconds", (answer.prefill_ms + answer.decode_ms) / 1e3)

    def close(self, *, failed: bool = False, outcome: Outcome | None = None) -> None:
        """Do nothing; `LiveMetrics.remove` ends the stream's values."""
