"""What the tests of batches have in common: tiny videos, quick options, and an engine without workers."""

from __future__ import annotations

import hashlib
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

from arr_stream.batch.job import Attempt, Event, Job, JobFailed, JobFinished, JobOptions, JobProgress, JobStarted
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


def quick_options(folder: Path, **values: object) -> JobOptions:
    """Options with settings that take little time."""
    settings = Settings().with_values(QUICK).model_dump(mode="json")
    return JobOptions(folder=str(folder), settings=settings, queries=("red",), **values)  # type: ignore[arg-type]


def attempt(source: Path | str, name: str = "clip", *, index: int = 0, number: int = 1) -> Attempt:
    return Attempt(Job(index, str(source), name), number)


def contents(folder: Path) -> dict[str, tuple[int, str]]:
    """Every file of a folder with its time of change and its hash."""
    return {
        path.relative_to(folder).as_posix(): (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def finished(asked: Attempt) -> list[Event]:
    """What an engine tells of a file that goes well."""
    return [JobStarted(asked, "fake"), JobProgress(asked, 3, 8), JobFinished(asked, 8, 0.1, "0" * 64, ())]


def lost(asked: Attempt) -> list[Event]:
    """What an engine tells of a worker that died."""
    return [JobStarted(asked, "fake"), JobFailed(asked, 3, "WorkerLost", "gone", retryable=True)]


class FakeEngine:
    """Does every file at once, as a function says.

    Args:
        answer: What comes of an attempt.
        slots: Files at once.

    Attributes:
        attempts: What it was given, in order.
        most: Most files that were under way.
    """

    def __init__(self, answer: Callable[[Attempt], list[Event]] = finished, slots: int = 2) -> None:
        self.slots = slots
        self.attempts: list[Attempt] = []
        self.most = 0
        self._answer = answer
        self._waiting: deque[Attempt] = deque()

    def submit(self, asked: Attempt) -> None:
        self.attempts.append(asked)
        self._waiting.append(asked)
        self.most = max(self.most, len(self._waiting))

    def poll(self, timeout_seconds: float) -> list[Event]:
        if not self._waiting:
            threading.Event().wait(min(timeout_seconds, 0.02))
            return []
        return self._answer(self._waiting.popleft())

    def close(self) -> None: ...


class Heard:
    """A watcher that keeps what it hears."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def started(self, event: JobStarted) -> None:
        self.events.append(event)

    def progress(self, event: JobProgress) -> None:
        self.events.append(event)

    def finished(self, event: JobFinished) -> None:
        self.events.append(event)

    def failed(self, event: JobFailed, *, again: bool) -> None:
        self.events.append(event)
