"""Observers of every frame besides the pictures: the metrics of all streams, and their alerts."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence

from arr_stream.consumer import Consumer
from arr_stream.live.alerts import Alerts
from arr_stream.live.events import EventHub
from arr_stream.live.metrics import LiveMetrics, StreamMetrics
from arr_stream.live.pictures import Watching
from arr_stream.live.registry import LiveStreams
from arr_stream.live.runner import StreamRunner
from arr_stream.live.webhook import Alert, Webhook
from arr_stream.plain_text import redact_url
from arr_stream.sources.base import SourceStats


class Observer:
    """Factory of each stream's further consumers, which reports alerts to the hub and collects metrics.

    Args:
        make_webhooks: Makes the webhooks that the alerts of one run of a stream go to.

    Raises:
        BackendUnavailable: prometheus_client is not installed.
    """

    def __init__(self, hub: EventHub, make_webhooks: Callable[[], Sequence[Webhook]] = tuple) -> None:
        self._hub = hub
        self._make_webhooks = make_webhooks
        self._metrics = LiveMetrics()
        self._labels: dict[str, str] = {}
        self._runners: weakref.WeakSet[StreamRunner] = weakref.WeakSet()
        self._lock = threading.Lock()

    def consumers(self, runner: StreamRunner) -> Sequence[Consumer]:
        """Return the consumers of one run of a stream."""
        with self._lock:
            self._runners.add(runner)
            there = {each.id for each in self._runners if each.alive}
        # Here too: if no client requests the metrics, data of removed streams would pile up.
        self._forget(there)
        alerts = Alerts(
            runner.rules,
            stream_name=runner.name,
            webhooks=self._make_webhooks(),
            on_alert=lambda alert: self._alerted(runner, alert),
            on_notice=runner.publisher.notice,
        )
        return [StreamMetrics(self._metrics, self._label(runner)), alerts]

    def watch(self, runner: StreamRunner, views: Sequence[str], wake: Callable[[], None], *, cells: bool) -> Watching:
        """Watch a stream's pictures, and measure their ages; see `PictureRoom.watch`."""
        label = self._label(runner)

        def on_age(seconds: float) -> None:
            runner.publisher.age(seconds)
            self._metrics.observe(label, "shown_age_seconds", seconds)

        return runner.room.watch(views, wake, cells=cells, on_age=on_age)

    def picture_sent(self, runner: StreamRunner) -> None:
        self._metrics.count(self._label(runner), "pictures_sent_total")

    def failed(self, runner: StreamRunner, error: Exception) -> None:
        """Handle a run that ended in an error, perhaps before its first frame."""
        with self._lock:
            self._runners.add(runner)
        self._metrics.add(self._label(runner))
        self._metrics.count(self._label(runner), "errors_total", type(error).__name__)

    def metrics(self, streams: LiveStreams, clients: int) -> tuple[bytes, str]:
        """Return all metrics in Prometheus' text format, and their content type."""
        runners = streams.runners
        self._forget({runner.id for runner in runners})
        for runner in runners:
            label = self._label(runner)
            self._metrics.set(label, "queue_frames", runner.waiting)
            if stats := runner.stats:
                self._metrics.source(label, SourceStats(**stats), runner.status()["dropped"])
        return self._metrics.render(len(runners), clients)

    def _alerted(self, runner: StreamRunner, alert: Alert) -> None:
        self._metrics.count(self._label(runner), "alerts_total")
        self._hub.publish({**alert.record(), "type": "alert", "stream": runner.id})

    def _label(self, runner: StreamRunner) -> str:
        """Return a stream's label: its first name, with its id if two streams have the same."""
        with self._lock:
            label = self._labels.get(runner.id)
            if label is None:
                name = redact_url(runner.name)[:80]
                label = f"{name} ({runner.id})" if name in self._labels.values() else name
                self._labels[runner.id] = label
            return label

    def _forget(self, there: set[str]) -> None:
        with self._lock:
            gone = [self._labels.pop(id) for id in list(self._labels) if id not in there]
        for label in gone:
            self._metrics.remove(label)
