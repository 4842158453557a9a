"""What the parts of the server share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from arr_stream.errors import ArrStreamError
from arr_stream.live.events import Subscription
from arr_stream.live.runner import StreamRunner
from arr_stream.live.streams import LiveStreams
from arr_stream.web.access import Access
from arr_stream.web.clients import Clients
from arr_stream.web.observers import Observer
from arr_stream.web.source_policy import AllowedSources

if TYPE_CHECKING:
    from arr_stream.web.webrtc import BrowserCameras


class NoSuchThing(ArrStreamError):
    """What was asked for is not here."""


class NotNow(ArrStreamError):
    """It makes sense, and cannot be done as things stand."""


class NotYet(NotNow):
    """There is no picture so far."""


class Forbidden(ArrStreamError):
    """The command line does not allow it."""


@dataclass(slots=True, eq=False)
class Serving:
    """Everything that answers to requests.

    Args:
        streams: The streams.
        access: Who may speak to the server.
        allowed: What the page may open.
        observer: Metrics and alerts.
        presets: Names of presets and what each is for.
        model: Name of the model that may be asked; None without one.
        cameras: Browsers' cameras; made when the server starts, None where they are not allowed.
    """

    streams: LiveStreams
    access: Access
    allowed: AllowedSources
    observer: Observer
    presets: Mapping[str, str] = field(default_factory=dict)
    model: str | None = None
    cameras: BrowserCameras | None = None
    clients: Clients = field(default_factory=Clients)
    drawing: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(2))
    started_seconds: float = field(default_factory=time.monotonic)

    def runner(self, id: str) -> StreamRunner:
        """The stream of that id.

        Raises:
            NoSuchThing: There is none.
        """
        runner = self.streams.get(id)
        if runner is None:
            raise NoSuchThing(f"there is no stream {id[:40]!r}", remedy="GET /api/streams lists them")
        return runner

    def listen(
        self, wake: Callable[[], None], *, streams: Collection[str] | None = None, kinds: Collection[str] | None = None
    ) -> Subscription:
        """Hear of events from now on; see `Subscription`. Whoever listens unsubscribes in the end."""
        return self._subscribed(Subscription(wake, streams, kinds))

    def wake_for(self, wake: Callable[[], None], kind: str) -> Subscription:
        """As `listen`, for those who only want to be woken and never take an event."""
        return self._subscribed(Subscription(wake, kinds={kind}, most_waiting=1))

    def _subscribed(self, subscription: Subscription) -> Subscription:
        self.streams.hub.subscribe(subscription)
        return subscription

    def has(self, runner: StreamRunner) -> bool:
        """It has not been removed."""
        return self.streams.get(runner.id) is runner
