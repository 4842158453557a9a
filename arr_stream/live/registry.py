"""Several live streams side by side, which can be added and removed at any time."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from arr_stream.config import Settings
from arr_stream.errors import InvalidSetting
from arr_stream.live.publishing import EventHub
from arr_stream.live.runner import Opener, RunnerParts, StreamRunner
from arr_stream.plain_text import redact_url
from arr_stream.relevance.query import Query, parse_text
from arr_stream.sources.live import open_live

_METRICS = {
    "frames_total": ("Processed frames.", "frames", 1.0),
    "frames_dropped_total": ("Frames dropped for a newer one.", "dropped", 1.0),
    "source_reconnects_total": ("Times that the source was reopened.", "reconnects", 1.0),
    "source_stalls_total": ("Times that the source sent nothing for too long.", "stalls", 1.0),
    "source_concealed_frames_total": ("Frames that the decoder concealed.", "concealed", 1.0),
    "frame_seconds": ("Median time of a frame.", "latency_ms", 1e-3),
    "shown_age_seconds": ("Median time from capture to display, as clients report it.", "age_ms", 1e-3),
    "tokens": ("Visual tokens chosen on the newest frame.", "tokens", 1.0),
    "confidence_ratio": ("Mean confidence of propagated results, 0 to 1.", "confidence", 1.0),
    "quality_level": ("Steps by which quality is lowered to hold the frame rate.", "quality", 1.0),
}
"""Metrics of a stream: help text, and the entry of its status with its factor."""


class TooManyStreams(InvalidSetting):
    """Error for a stream beyond the limit."""


class LiveStreams:
    """Collection of live streams, at most `most_streams`.

    Args:
        settings: Settings of a stream without a preset.
        presets: Settings by name.
        parts: Shared parts of the runners; its hub also publishes when a stream is added or removed.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        presets: Mapping[str, Settings] | None = None,
        parts: RunnerParts | None = None,
        most_streams: int = 8,
    ) -> None:
        self.settings = settings
        self.presets = dict(presets or {})
        self.most_streams = most_streams
        self.parts = parts or RunnerParts(EventHub())
        self.hub = self.parts.hub
        self._runners: dict[str, StreamRunner] = {}
        self._numbers = itertools.count(1)
        self._closed = False
        self._lock = threading.Lock()

    @property
    def runners(self) -> tuple[StreamRunner, ...]:
        """All runners, in the order in which they were added."""
        return tuple(self._runners.values())

    def get(self, id: str) -> StreamRunner | None:
        return self._runners.get(id)

    def add(
        self,
        source: str,
        *,
        opener: Opener | None = None,
        name: str | None = None,
        query: Sequence[str | Query] = (),
        preset: str | None = None,
        settings: Mapping[str, Any] | None = None,
        once: bool = False,
    ) -> StreamRunner:
        """Add a stream and start it; its source opens in the background.

        Args:
            source: The source; see `arr_stream.sources.live.open_live`.
            opener: Opens another kind of source, such as a browser's camera; `source` is then its public name.
            settings: Dotted keys, applied over the preset.
            once: The source cannot be opened again.

        Raises:
            TooManyStreams, QueryError, SettingsError: Too many streams, an unknown preset, and so on.
        """
        values = self.preset(preset) if preset is not None else self.settings
        if settings:
            values = values.with_values(settings)
        queries = tuple(parse_text(text) if isinstance(text, str) else text for text in query)
        with self._lock:
            if self._closed or len(self._runners) >= self.most_streams:
                raise TooManyStreams(
                    f"{len(self._runners)} streams run already",
                    remedy=f"remove one; {self.most_streams} is the limit",
                )
            public = redact_url(source)
            runner = StreamRunner(
                f"s{next(self._numbers)}",
                (name or "").strip()[:80] or public[:80],
                public,
                opener
                or (lambda settings, told, interrupt: open_live(source, settings, on_state=told, interrupt=interrupt)),
                self.parts,
                values,
                queries,
                preset=preset,
                on_end=self.remove if once else None,
            )
            self._runners[runner.id] = runner
        runner.start()
        self._tell()
        return runner

    def remove(self, id: str) -> bool:
        """Stop a stream and forget it; return False if there is no such stream."""
        with self._lock:
            runner = self._runners.pop(id, None)
        if runner is None:
            return False
        runner.close()
        self._tell()
        return True

    def preset(self, name: str) -> Settings:
        """Return the settings of that preset; raise `InvalidSetting` if it is unknown."""
        if name not in self.presets:
            raise InvalidSetting(f"preset {name!r} is not known", remedy=f"choose one of {', '.join(self.presets)}")
        return self.presets[name]

    def statuses(self) -> list[dict[str, Any]]:
        return [runner.status() for runner in self.runners]

    def metrics(self, clients: int) -> tuple[bytes, str]:
        """Return all metrics in Prometheus' text format, and their content type; `clients` are connected."""
        from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector, disable_created_metrics
        from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

        disable_created_metrics()  # type: ignore[no-untyped-call]
        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        statuses = self.statuses()
        for name, (text, key, unit) in _METRICS.items():
            make = Counter if name.endswith("_total") else Gauge
            metric = make(f"arr_stream_{name}", text, ["stream"], registry=registry)
            for status in statuses:
                if status[key] is not None:
                    metric.labels(status["id"]).inc(status[key] * unit)
        Gauge("arr_stream_streams", "Streams.", registry=registry).set(len(statuses))
        Gauge("arr_stream_clients", "Connected clients.", registry=registry).set(clients)
        return generate_latest(registry), CONTENT_TYPE_PLAIN_0_0_4

    def _tell(self) -> None:
        self.hub.publish({"type": "streams", "streams": self.statuses()})

    def close(self) -> None:
        """Close all streams in parallel."""
        with self._lock:
            self._closed = True
            runners = self.runners
        closing = [threading.Thread(target=runner.close, daemon=True) for runner in runners]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join()
