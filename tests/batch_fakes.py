"""What the tests of batches have in common: tiny videos, quick options, and an engine without workers."""

from __future__ import annotations

import hashlib
import threading
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from arr_stream.batch.engine import Loaded, Lost, Message, WorkerEngine
from arr_stream.batch.job import Attempt, Done, Job, JobFinished, JobOptions, JobProgress
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
    """What a worker tells of a file that goes well."""
    return JobFinished(
        asked, Done(asked.job.name, asked.job.source, {}, "", "0" * 64, 8, 0.1, (), attempt=asked.number)
    )


class FakeCrew:
    """Workers by their numbers; what they say is said by the test, or by `answer`.

    Args:
        answer: What comes of an attempt; then workers load by themselves, and do every file at once.

    Attributes:
        given: What each worker was given, in order.
        killed: Which workers were.
        most: Most files that were under way.
    """

    def __init__(self, answer: Callable[[Attempt], Iterable[Message]] | None = None) -> None:
        self.given: list[list[Attempt]] = []
        self.killed: list[int] = []
        self.said: deque[tuple[int, Message]] = deque()
        self.closed = self.most = 0
        self._answer = answer
        self._waiting: deque[tuple[int, Attempt]] = deque()

    @property
    def attempts(self) -> list[Attempt]:
        return [attempt for given in self.given for attempt in given]

    def spawn(self) -> int:
        self.given.append([])
        if self._answer is not None:
            self.load(len(self.given) - 1)
        return len(self.given) - 1

    def give(self, worker: int, attempt: Attempt) -> None:
        self.given[worker].append(attempt)
        self._waiting.append((worker, attempt))
        self.most = max(self.most, len(self._waiting))

    def wait(self, timeout_seconds: float) -> list[tuple[int, Message]]:
        if not self.said and self._waiting and self._answer is not None:
            worker, attempt = self._waiting.popleft()
            self.say(worker, *self._answer(attempt))
        if not self.said:
            threading.Event().wait(min(timeout_seconds, 0.02))
        said, self.said = list(self.said), deque()
        return said

    def kill(self, worker: int) -> None:
        self.killed.append(worker)

    def close(self) -> None:
        self.closed += 1

    def load(self, *numbers: int) -> None:
        self.said += [(number, Loaded(100 + number, "node")) for number in numbers]

    def say(self, number: int, *messages: Message) -> None:
        self.said += [(number, message) for message in messages]


def well(asked: Attempt) -> list[Message]:
    """A file that goes well."""
    return [JobProgress(asked, 3, 8), finished(asked)]


def lost(asked: Attempt) -> list[Message]:
    """A worker that dies."""
    return [JobProgress(asked, 3, 8), Lost("was ended by SIGKILL")]


def fake_engine(answer: Callable[[Attempt], Iterable[Message]] = well, slots: int = 2) -> tuple[WorkerEngine, FakeCrew]:
    """An engine whose workers do every file at once, as a function says."""
    crew = FakeCrew(answer)
    return WorkerEngine(crew, slots), crew


def silent_worker(_: object) -> Callable[[Attempt, Callable[[Any], None]], None]:
    """In a process of its own: begins a file, and makes no more frames."""

    def answer(asked: Attempt, reply: Callable[[Any], None]) -> None:
        reply(JobProgress(asked, 1, None))
        threading.Event().wait()

    return answer
