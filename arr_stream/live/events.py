"""Events of live streams, passed from their threads to subscribers; a slow subscriber misses some and gets a count."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection
from typing import Any

Event = dict[str, Any]
"""Event as plain JSON values; `type` names its kind and `stream` its stream, see docs/api.md."""

_EXPENDABLE = frozenset({"frame", "summary"})
_ONLY_WHEN_NAMED = frozenset({"frame"})
_MOST_WAITING = 512


class Subscription:
    """Queue of events for one subscriber.

    Args:
        wake: Called, from any thread, when there is an event to take; must not block.
        streams: Only events of these; None for all.
        kinds: Only these types; None for all except frame records.
        most_waiting: Queue limit; beyond it, frames and summaries are dropped first, then the oldest event.
    """

    def __init__(
        self,
        wake: Callable[[], None],
        streams: Collection[str] | None = None,
        kinds: Collection[str] | None = None,
        most_waiting: int = _MOST_WAITING,
    ) -> None:
        self._wake = wake
        self._streams = frozenset(streams) if streams is not None else None
        self._kinds = frozenset(kinds) if kinds is not None else None
        self._most = most_waiting
        self._waiting: deque[Event] = deque()
        self._missed = 0
        self._lock = threading.Lock()

    def wants(self, kind: str, stream: str | None) -> bool:
        if self._streams is not None and stream is not None and stream not in self._streams:
            return False
        return kind not in _ONLY_WHEN_NAMED if self._kinds is None else kind in self._kinds

    def put(self, event: Event) -> None:
        with self._lock:
            if len(self._waiting) >= self._most:
                self._make_room()
            self._waiting.append(event)
        self._wake()

    def drain(self) -> list[Event]:
        """Return the queued events, oldest first; preceded by a `missed` event if some were dropped."""
        with self._lock:
            taken = list(self._waiting)
            self._waiting.clear()
            missed, self._missed = self._missed, 0
        return [{"type": "missed", "count": missed}, *taken] if missed else taken

    def _make_room(self) -> None:
        kept = [event for event in self._waiting if event["type"] not in _EXPENDABLE]
        if len(kept) == len(self._waiting):
            kept = kept[1:]
        self._missed += len(self._waiting) - len(kept)
        self._waiting = deque(kept)


class EventHub:
    """Hub that passes each event to its subscribers. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._subscriptions: tuple[Subscription, ...] = ()
        self._lock = threading.Lock()

    def subscribe(self, subscription: Subscription) -> None:
        with self._lock:
            self._subscriptions = (*self._subscriptions, subscription)

    def unsubscribe(self, subscription: Subscription) -> None:
        with self._lock:
            self._subscriptions = tuple(each for each in self._subscriptions if each is not subscription)

    def wanted(self, kind: str, stream: str | None = None) -> bool:
        """Return whether anybody subscribes, to skip events that are costly to make."""
        return any(each.wants(kind, stream) for each in self._subscriptions)

    def publish(self, event: Event) -> None:
        for each in self._subscriptions:
            if each.wants(event["type"], event.get("stream")):
                each.put(event)
