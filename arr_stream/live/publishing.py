"""Events of live streams for their subscribers, and the publisher of a stream: events, pictures and recent records."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

from arr_stream.consumer import Outcome, Rate, Recent, total_ms
from arr_stream.live.pictures import Shown
from arr_stream.patch_set import Answer, PatchSet
from arr_stream.plain_text import redact_url
from arr_stream.records.schema import Header, answer_record, frame_record
from arr_stream.types import Frame, Grid

Event = dict[str, Any]
"""Event as plain JSON values; `type` names its kind and `stream` its stream, see docs/api.md."""

_ONLY_WHEN_NAMED = frozenset({"frame"})
_MOST_WAITING = 512

MOST_RECORDS = 900
MOST_ANSWERS = 500

_SUMMARY_SECONDS = 0.25


class Subscription:
    """Queue of events for one subscriber.

    Args:
        wake: Called, from any thread, when there is an event to take; must not block.
        streams: Only events of these; None for all.
        kinds: Only these types; None for all except frame records.
        most_waiting: Queue limit; beyond it, the oldest events are dropped.
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
        self._waiting: deque[Event] = deque(maxlen=most_waiting)
        self._missed = 0
        self._lock = threading.Lock()

    def wants(self, kind: str, stream: str | None) -> bool:
        if self._streams is not None and stream is not None and stream not in self._streams:
            return False
        return kind not in _ONLY_WHEN_NAMED if self._kinds is None else kind in self._kinds

    def put(self, event: Event) -> None:
        with self._lock:
            self._missed += len(self._waiting) == self._waiting.maxlen
            self._waiting.append(event)
        self._wake()

    def drain(self) -> list[Event]:
        """Return the queued events, oldest first; preceded by a `missed` event if some were dropped."""
        with self._lock:
            taken = list(self._waiting)
            self._waiting.clear()
            missed, self._missed = self._missed, 0
        return [{"type": "missed", "count": missed}, *taken] if missed else taken


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


class Publisher:
    """Consumer that distributes a stream's frames to clients; never blocks.

    Args:
        stream: The stream's id.
        dropped: Returns the number of dropped frames so far.

    Attributes:
        shown: The newest frame.
        ages_ms: Time from capture to display of the pictures that clients have shown.
        grid: Grid of the first frame since the source was opened.
        answers: The last ones, oldest first, as plain JSON values.
    """

    def __init__(self, stream: str, hub: EventHub, dropped: Callable[[], int]) -> None:
        self.fps = Rate()
        self.latency_ms = Recent()
        self.ages_ms = Recent()
        self.shown: Shown | None = None
        self.answers: deque[dict[str, Any]] = deque(maxlen=MOST_ANSWERS)
        self.grid: Grid | None = None
        self.answering = False
        # Keep objects, not JSON values: half a million small objects would slow every garbage collection.
        self._frames: deque[PatchSet] = deque(maxlen=MOST_RECORDS)
        self._stream = stream
        self._hub = hub
        self._wakes: tuple[Callable[[], None], ...] = ()
        self._lock = threading.Lock()
        self._dropped = dropped
        self._points: list[list[Any]] = []
        self._summary_due = 0.0
        self._number = -1
        self._first_number = 0

    def consume(self, frame: Frame, patches: PatchSet) -> None:
        self.fps.add()
        self.latency_ms.add(total_ms(patches.latency_ms))
        self.shown = Shown(frame, patches, self._dropped(), self.fps.value)
        for wake in self._wakes:
            wake()
        if self.grid is None or (self._frames and patches.index <= self._frames[-1].index):
            # A reopened source counts from 0, and records are of one run.
            self._frames.clear()
            self.grid, self._first_number = patches.grid, self._number + 1
        self._frames.append(patches.without_texture())
        if self._hub.wanted("frame", self._stream):
            self._hub.publish({**self._record(patches), "stream": self._stream})
        self._summarise(patches)
        for notice in patches.notices:
            self.notice(notice)

    @property
    def newest(self) -> PatchSet | None:
        return self.shown.patches if self.shown is not None else None

    @contextmanager
    def watched(self, wake: Callable[[], None]) -> Iterator[None]:
        """Call `wake`, which must not block, on each new frame until the end of the block."""
        with self._lock:
            self._wakes = (*self._wakes, wake)
        try:
            yield
        finally:
            with self._lock:
                self._wakes = tuple(each for each in self._wakes if each is not wake)

    def records(self, last: int = MOST_RECORDS) -> Iterator[dict[str, Any]]:
        """Yield the last frames of this run, oldest first, as JSON values; one with another grid than `grid` has its
        own.
        """
        return map(self._record, tuple(self._frames)[-last:])

    def answers_of_run(self) -> list[dict[str, Any]]:
        """Return the entries of `answers` about the frames of `records`."""
        return [answer for answer in tuple(self.answers) if answer["answer"] >= self._first_number]

    def _record(self, patches: PatchSet) -> dict[str, Any]:
        assert self.grid is not None
        return frame_record(patches, Header.for_grid(self.grid, source="", query=None, budget_tokens=0, config={}))

    def close(self, *, failed: bool = False, outcome: Outcome | None = None) -> None: ...

    def age(self, seconds: float) -> None:
        """Record the time from capture to display of a picture on a client."""
        self.ages_ms.add(seconds * 1e3)

    def notice(self, text: str) -> None:
        self._publish("notice", text=redact_url(text), made_unix=round(time.time(), 3))

    def asking(self, question: str, pts_seconds: float) -> None:
        self.answering = True
        self._number += 1
        self._publish("asking", answer=self._number, question=redact_url(question), pts_seconds=pts_seconds)

    def text(self, piece: str) -> None:
        self._publish("text", answer=self._number, text=piece)

    def answered(self, answer: Answer) -> None:
        self.answering = False
        record = {**answer_record(answer), "answer": self._number, "made_unix": round(time.time(), 3)}
        self.answers.append(record)
        self._hub.publish({**record, "stream": self._stream})

    def _summarise(self, patches: PatchSet) -> None:
        age_ms = self.ages_ms.median
        pts_seconds, latency_ms = round(patches.pts_seconds, 4), round(total_ms(patches.latency_ms), 2)
        confidence, age_ms = round(patches.confidence, 4), round(age_ms, 1) if age_ms is not None else None
        point = [patches.index, pts_seconds, latency_ms, patches.tokens, confidence, patches.refresh_reason]
        self._points.append([*point, patches.quality, age_ms])
        now = time.monotonic()
        if now >= self._summary_due:
            self._summary_due = now + _SUMMARY_SECONDS
            self._publish("summary", points=self._points)
            self._points = []

    def _publish(self, kind: str, **values: Any) -> None:
        self._hub.publish({"type": kind, "stream": self._stream, **values})
