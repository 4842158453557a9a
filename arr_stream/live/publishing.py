"""Events of live streams for their subscribers, and the publisher of a stream: events, pictures and recent records.

Each view of a frame is drawn once, on demand, for all clients.
"""

from __future__ import annotations

import json
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import cv2

from arr_stream.consumer import Outcome, Rate, Recent, total_ms
from arr_stream.draw.views import check_view, render
from arr_stream.errors import InvalidSetting
from arr_stream.patch_set import Answer, PatchSet
from arr_stream.plain_text import redact_url
from arr_stream.records.schema import Header, answer_record, frame_record
from arr_stream.types import ByteArray, Frame, Grid

Event = dict[str, Any]
"""Event as plain JSON values; `type` names its kind and `stream` its stream, see docs/api.md."""

_ONLY_WHEN_NAMED = frozenset({"frame"})
_MOST_WAITING = 512

MOST_RECORDS = 900
MOST_ANSWERS = 500

_SUMMARY_SECONDS = 0.25

_MOST_VIEWS = 2
_LONGEST_SIDE_PX = 1280
_JPEG_QUALITY = 80


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


@dataclass(frozen=True, slots=True, eq=False)
class Shown:
    """Processed frame for display, with the number of frames `dropped` so far and the `fps` processed."""

    frame: Frame
    patches: PatchSet
    dropped: int
    fps: float
    _jpegs: dict[str, bytes] = field(default_factory=dict)
    _drawing: threading.Lock = field(default_factory=threading.Lock)

    @property
    def captured_seconds(self) -> float:
        """Capture time, on the clock of `time.monotonic`."""
        return self.frame.captured_seconds or 0.0

    def jpeg(self, view: str) -> bytes:
        """Return a view as JPEG; callable from any thread."""
        with self._drawing:
            if view not in self._jpegs:
                self._jpegs[view] = encode(render(view, self.frame, self.patches))
            return self._jpegs[view]


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

    def consume(self, frame: Frame, patches: PatchSet) -> None:
        self.fps.add()
        self.latency_ms.add(total_ms(patches.latency_ms))
        self.shown = Shown(frame, patches, self._dropped(), self.fps.value)
        for wake in self._wakes:
            wake()
        if self.grid is None or (self._frames and patches.index <= self._frames[-1].index):
            # A reopened source counts from 0, and records are of one run.
            self._frames.clear()
            self.grid = patches.grid
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


def checked_views(views: Sequence[str]) -> tuple[str, ...]:
    """Return the views after a check.

    Raises:
        InvalidSetting: An unknown view, none, or more than two.
    """
    if not 1 <= len(views) <= _MOST_VIEWS:
        raise InvalidSetting(f"{len(views)} views", remedy="request one or two")
    return tuple(check_view(view) for view in views)


def encode(rgb: ByteArray, *, quality: int = _JPEG_QUALITY) -> bytes:
    """Encode a picture `[H, W, 3]` as JPEG, scaled down if a side is longer than 1280 pixels."""
    height, width = rgb.shape[:2]
    scale = _LONGEST_SIDE_PX / max(height, width)
    if scale < 1:
        size_wh = max(1, round(width * scale)), max(1, round(height * scale))
        rgb = cv2.resize(rgb, size_wh, interpolation=cv2.INTER_AREA)
    bgr = cv2.cvtColor(rgb, cv2.COLOR_RGB2BGR)
    done, jpeg = cv2.imencode(".jpg", bgr, [cv2.IMWRITE_JPEG_QUALITY, quality])
    if not done:
        raise ValueError(f"a picture of {width}x{height} does not become a JPEG")
    return jpeg.tobytes()


def message(shown: Shown, views: Sequence[str], sequence: int, cells: bool) -> bytes:
    """Draw the views into a binary message: 4-byte little-endian length, so many bytes of JSON, then each JPEG.

    See docs/api.md; `cells` adds the cells and their reasons.
    """
    jpegs = [(view, shown.jpeg(view)) for view in views]
    patches, age_seconds = shown.patches, time.monotonic() - shown.captured_seconds
    header = {
        "seq": sequence,
        "index": patches.index,
        "pts_seconds": round(patches.pts_seconds, 6),
        "captured_unix": round(time.time() - age_seconds, 4),
        "sent_age_ms": round(age_seconds * 1e3, 2),
        "size_wh": list(shown.frame.size_wh),
        "grid_hw": [patches.grid.rows, patches.grid.columns],
        "pictures": [{"view": view, "bytes": len(jpeg)} for view, jpeg in jpegs],
        "latency_ms": round(total_ms(patches.latency_ms), 3),
        "stages": {stage: round(float(ms), 3) for stage, ms in patches.latency_ms.items()},
        "tokens": patches.tokens,
        "confidence": round(patches.confidence, 4),
        "keyframe": patches.keyframe,
        "refresh_reason": patches.refresh_reason,
        "keyframe_age": patches.keyframe_age,
        "quality": patches.quality,
        "dropped": shown.dropped,
        "fps": round(shown.fps, 2),
        "query_scores": [round(float(score), 4) for score in patches.query_scores],
        "region": [round(share, 4) for share in patches.region] if patches.region is not None else None,
        "notices": [redact_url(notice) for notice in patches.notices],
    }
    if cells:
        record = frame_record(patches)
        header |= {"cells": record["cells"], "reasons": record["reasons"]}
    text = json.dumps(header, ensure_ascii=False).encode()
    return b"".join([struct.pack("<I", len(text)), text, *(jpeg for _, jpeg in jpegs)])
