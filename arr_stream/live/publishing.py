"""The publisher of a stream: pictures for clients, records of recent frames, and events."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from arr_stream.consumer import Outcome, Rate, Recent, total_ms
from arr_stream.live.events import EventHub
from arr_stream.live.pictures import PictureRoom, Shown
from arr_stream.patch_set import Answer, PatchSet
from arr_stream.plain_text import redact_url
from arr_stream.records.schema import Header, answer_record, frame_record
from arr_stream.types import Frame, Grid

MOST_RECORDS = 900
MOST_ANSWERS = 500

_SUMMARY_SECONDS = 0.25


class Publisher:
    """Consumer that distributes a stream's frames to clients; never blocks.

    Args:
        stream: The stream's id.
        dropped: Returns the number of dropped frames so far.

    Attributes:
        ages_ms: Time from capture to display of the pictures that clients have shown.
        grid: Grid of the first frame since the source was opened.
        answers: The last ones, oldest first, as plain JSON values.
    """

    def __init__(self, stream: str, hub: EventHub, room: PictureRoom, dropped: Callable[[], int]) -> None:
        self.fps = Rate()
        self.latency_ms = Recent()
        self.ages_ms = Recent()
        self.newest: PatchSet | None = None
        self.answers: deque[dict[str, Any]] = deque(maxlen=MOST_ANSWERS)
        self.grid: Grid | None = None
        self.answering = False
        # Keep objects, not JSON values: half a million small objects would slow every garbage collection.
        self._frames: deque[PatchSet] = deque(maxlen=MOST_RECORDS)
        self._stream = stream
        self._hub = hub
        self._room = room
        self._dropped = dropped
        self._points: list[list[Any]] = []
        self._summary_due = 0.0
        self._number = -1
        self._first_number = 0

    def consume(self, frame: Frame, patches: PatchSet) -> None:
        self.fps.add()
        self.latency_ms.add(total_ms(patches.latency_ms))
        self.newest = patches
        self._room.show(Shown(frame, patches, self._dropped(), self.fps.value))
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
