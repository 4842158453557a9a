"""What looks at every frame beside the pictures: the metrics of all streams, and their alerts."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from arr_stream.consumer import Consumer
from arr_stream.draw.views import render
from arr_stream.live.actions import Action, PostJson, RunCommand
from arr_stream.live.alerts import Alert, Alerts
from arr_stream.live.channel import Channel
from arr_stream.live.events import EventHub
from arr_stream.live.metrics import LiveMetrics
from arr_stream.live.pictures import Watching
from arr_stream.live.rules import parse_rule
from arr_stream.live.studio import Studio
from arr_stream.sources.base import SourceStats


@dataclass(frozen=True, slots=True)
class AlertPlan:
    """What to look for in every stream, and what follows.

    Args:
        rules: See `arr_stream.live.rules`; none for no alerts.
        before_seconds, after_seconds: How much of the stream a clip shows around an alert.
        clip_folder: Where clips are written; None for none.
        commands: Command lines to run.
        addresses: Where to POST alerts.

    Raises:
        InvalidSetting: A rule, a command or an address that is none.
    """

    rules: tuple[str, ...] = ()
    before_seconds: float = 3.0
    after_seconds: float = 3.0
    clip_folder: Path | None = None
    commands: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for rule in self.rules:
            parse_rule(rule)
        for action in self.actions():
            action.close()

    def actions(self) -> list[Action]:
        """New ones: each stream has its own."""
        return [*map(RunCommand.parse, self.commands), *map(PostJson, self.addresses)]


class Observer:
    """Makes the further consumers of each stream, and tells what they have counted.

    Args:
        hub: Where alerts are told.
        plan: The alerts.

    Raises:
        BackendUnavailable: prometheus_client is not installed.
    """

    def __init__(self, hub: EventHub, plan: AlertPlan | None = None) -> None:
        self.plan = plan or AlertPlan()
        self._hub = hub
        self._metrics = LiveMetrics()
        self._labels: dict[str, str] = {}
        self._channels: weakref.WeakSet[Channel] = weakref.WeakSet()
        self._lock = threading.Lock()

    def consumers(self, channel: Channel) -> Sequence[Consumer]:
        """Those of one run of a channel."""
        with self._lock:
            self._channels.add(channel)
            there = {each.id for each in self._channels if each.alive}
        # Here too: where nobody asks for the metrics, streams that come and go would pile up.
        self._forget(there)
        made: list[Consumer] = [self._metrics.consumer(self._label(channel))]
        if self.plan.rules:
            made.append(
                Alerts(
                    self.plan.rules,
                    stream_name=channel.name,
                    clip_folder=self.plan.clip_folder,
                    before_seconds=self.plan.before_seconds,
                    after_seconds=self.plan.after_seconds,
                    actions=self.plan.actions(),
                    on_alert=lambda alert: self._alerted(channel, alert),
                    on_notice=channel.publisher.notice,
                    draw=lambda frame, patches: render("patches", frame, patches),
                    video=channel.settings.video,
                )
            )
        return made

    def watch(self, channel: Channel, views: Sequence[str], wake: Callable[[], None], *, cells: bool) -> Watching:
        """Watch a channel's pictures, their ages counted in.

        Raises:
            InvalidSetting: No such view, none, or more than two.
        """
        label = self._label(channel)

        def on_age(seconds: float) -> None:
            channel.publisher.age(seconds)
            self._metrics.shown(label, seconds)

        return channel.room.watch(views, wake, cells=cells, on_age=on_age)

    def picture_sent(self, channel: Channel) -> None:
        self._metrics.picture_sent(self._label(channel))

    def failed(self, channel: Channel, error: Exception) -> None:
        """A run of a stream has ended in an error."""
        self._metrics.error(self._label(channel), error)

    def metrics(self, studio: Studio, clients: int) -> tuple[bytes, str]:
        """Everything in Prometheus' text format, and its content type."""
        channels = studio.channels
        self._forget({channel.id for channel in channels})
        self._metrics.streams(len(channels))
        self._metrics.clients(clients)
        for channel in channels:
            label = self._label(channel)
            self._metrics.queue(label, channel.waiting)
            if stats := channel.stats:
                self._metrics.source(label, SourceStats(**stats), channel.status()["dropped"])
        return self._metrics.render()

    def _alerted(self, channel: Channel, alert: Alert) -> None:
        self._metrics.alert(self._label(channel))
        self._hub.publish(
            {
                "type": "alert",
                "stream": channel.id,
                "rule": alert.rule,
                "message": alert.message,
                "clip": alert.clip,
                "made_unix": round(alert.made_unix, 3),
            }
        )

    def _label(self, channel: Channel) -> str:
        """Under which a stream is counted: the name that it began with, and its id where two have the same."""
        with self._lock:
            label = self._labels.get(channel.id)
            if label is None:
                name = channel.name
                label = f"{name} ({channel.id})" if name in self._labels.values() else name
                self._labels[channel.id] = label
            return label

    def _forget(self, there: set[str]) -> None:
        with self._lock:
            gone = [self._labels.pop(id) for id in list(self._labels) if id not in there]
        for label in gone:
            self._metrics.remove(label)
