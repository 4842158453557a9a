"""Tiny videos, quick options and an engine without workers, for the tests of batches."""

from __future__ import annotations

import hashlib
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from arr_stream.batch.engine import Loaded, Lost, Message, Worker
from arr_stream.batch.job import Attempt, Done, Job, JobFinished, JobOptions
from arr_stream.config import Settings
from tests.media import moving_frames, write_video

QUICK = {"keyframes.text": "none", "keyframes.clusters": "grid"}


def write_clips(folder: Path, count: int, *, frames: int = 8, size_wh: tuple[int, int] = (96, 64)) -> list[Path]:
    """So many different videos."""
    folder.mkdir(parents=True, exist_ok=True)
    return [
        write_video(folder / f"clip{index:02d}.mp4", moving_frames(frames, size_wh, seed=index))
        for index in range(count)
    ]


def quick_options(folder: Path, *, settings: dict[str, Any] | None = None, **values: Any) -> JobOptions:
    """Options with settings that take little time."""
    chosen = Settings().with_values(QUICK | (settings or {})).model_dump(mode="json")
    return JobOptions(folder=str(folder), settings=chosen, **{"queries": ("red",)} | values)


def attempt(source: Path | str, name: str = "clip", *, index: int = 0, number: int = 1) -> Attempt:
    return Attempt(Job(index, str(source), name), number)


def contents(folder: Path) -> dict[str, tuple[int, str]]:
    """Every file of a folder with its time of change and its hash."""
    return {
        path.relative_to(folder).as_posix(): (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def finished(asked: Attempt) -> JobFinished:
    """A file that goes well."""
    return JobFinished(
        asked, Done(asked.job.name, asked.job.source, {}, "", "0" * 64, 8, 0.1, (), attempt=asked.number)
    )


def well(asked: Attempt) -> list[Message]:
    """The messages about a file that goes well."""
    return [finished(asked)]


def lost(asked: Attempt) -> list[Message]:
    """The messages of a worker that dies."""
    return [Lost("was ended by SIGKILL")]


class FakeEngine:
    """Engine without workers.

    Args:
        answer: The messages that an attempt causes, all at once.
        first: The first message of every worker.

    Attributes:
        started: Every worker, in order.
        attempts: Every attempt that was given, in order.
        most: Most files at a time.
    """

    def __init__(
        self,
        answer: Callable[[Attempt], Iterable[Message]] = well,
        *,
        first: Message | None = None,
        slots: int = 2,
    ) -> None:
        self.slots = slots
        self.started: list[Worker] = []
        self.attempts: list[Attempt] = []
        self.closed = self.most = 0
        self._answer, self._first = answer, first
        self._given: deque[tuple[Worker, Attempt]] = deque()
        self._messages: deque[tuple[Worker, Message]] = deque()

    def start(self) -> Worker:
        self.started.append(worker := Worker())
        self.send(worker, self._first or Loaded(f"process {100 + len(self.started)}"))
        return worker

    def give(self, worker: Worker, attempt: Attempt) -> None:
        self.attempts.append(attempt)
        self._given.append((worker, attempt))
        self.most = max(self.most, len(self._given))

    def receive(self, timeout_seconds: float) -> Iterator[tuple[Worker, Message]]:
        if not self._messages and self._given:
            worker, attempt = self._given.popleft()
            self.send(worker, *self._answer(attempt))
        if not self._messages:
            threading.Event().wait(min(timeout_seconds, 0.01))
        while self._messages:
            yield self._messages.popleft()

    def close(self) -> None:
        self.closed += 1

    def send(self, worker: Worker, *messages: Message) -> None:
        self._messages.extend((worker, message) for message in messages)
