"""Hands files to workers, tells what becomes of them, and replaces workers that are lost; the same for every engine.

An engine is this with a `Crew`: processes of this machine (`local`) or actors of a Ray cluster (`ray_engine`).
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from arr_stream.batch.job import Attempt, Event, JobFailed, JobFinished, JobProgress, JobStarted
from arr_stream.errors import WorkerLost
from arr_stream.plain_text import redact_url
from arr_stream.processes import Refused

_MOST_LOST_STARTS = 3
"""Workers in a row that end before they have begun."""
_REMEDY = "try it alone with `arr-stream process`; it may need more memory than there is"


@dataclass(frozen=True, slots=True)
class Loaded:
    """A worker's models are loaded.

    Args:
        process_id: Of the worker.
        host: Name of its machine; "" for this one.
    """

    process_id: int
    host: str = ""

    def __str__(self) -> str:
        return f"process {self.process_id}{f' on {self.host}' if self.host else ''}"


@dataclass(frozen=True, slots=True)
class Lost:
    """A worker is no more.

    Args:
        how: What befell it, in one line: `was ended by SIGKILL`.
    """

    how: str


Answer = JobFinished | JobFailed
Message = Loaded | Refused | JobProgress | JobFinished | JobFailed | Lost
Handle = Any
"""What a crew calls one of its workers."""


class Crew(Protocol):
    """Starts workers, hears them and ends them."""

    def spawn(self) -> Handle:
        """Start a worker; it loads its models, and says `Loaded` or `Refused`."""

    def give(self, worker: Handle, attempt: Attempt) -> None:
        """Let it do a file; it says `JobFinished` or `JobFailed`, and before that how far it is."""

    def wait(self, timeout_seconds: float) -> Iterable[tuple[Handle, Message]]:
        """What was said since, waiting up to so long for the first word; of a worker that has ended, `Lost` at last.

        Raises:
            ArrStreamError: Nothing more can be done with these workers.
        """

    def discard(self, worker: Handle) -> Answer | None:
        """End a worker at once, whatever it does, so that nothing of it can reach the output folder any more.

        Returns:
            What it had to say of its file just before.

        Raises:
            ArrStreamError: It cannot be ended.
        """

    def close(self) -> None:
        """End every worker within seconds; safe to call again."""


@dataclass(frozen=True, slots=True)
class Patience:
    """When an engine gives up; 0 for never.

    Args:
        stall_seconds: A worker that makes no frame for so long is ended, and its file counts as lost.
        start_seconds: The batch, where no worker has begun for so long.
        lost: The batch, when so many workers end in a row, none of them having done a file.
        remedy: What to do when workers end again and again.
        room: What each worker takes, in words.
    """

    stall_seconds: float = 0.0
    start_seconds: float = 0.0
    lost: int = 0
    remedy: str | None = None
    room: str = ""


@dataclass(eq=False, slots=True)
class _Worker:
    """What is known of a worker.

    Args:
        handle: What the crew calls it.
        loaded: Who it is, once its models are loaded.
        attempt: What it is doing.
        frames: How far it is with that.
        moved_seconds: When it was last seen to be further, on the clock of `time.monotonic`.
    """

    handle: Handle
    loaded: Loaded | None = None
    attempt: Attempt | None = None
    frames: int = 0
    moved_seconds: float = 0.0


class WorkerEngine:
    """Workers that do files; each loads its models once.

    Args:
        crew: Starts, hears and ends them; closed with the engine.
        slots: How many there are, started at once.
        patience: When to give up.

    Raises:
        ArrStreamError: They cannot be started.

    Attributes:
        slots: How many files are done at once.
    """

    def __init__(self, crew: Crew, slots: int, patience: Patience) -> None:
        self.slots = slots
        self._crew = crew
        self._patience = patience
        self._waiting: deque[Attempt] = deque()
        self._workers: list[_Worker] = []
        self._lost_starts = self._lost = 0
        self._error: Exception | None = None
        self._closed = False
        self._began_seconds = time.monotonic()
        try:
            for _ in range(slots):
                self._start()
        except BaseException:
            self.close()
            raise

    @property
    def begun(self) -> bool:
        """A worker has loaded its models."""
        return any(worker.loaded is not None for worker in self._workers)

    def submit(self, attempt: Attempt) -> None:
        """Give a file to the next free worker; see `Engine.submit`."""
        self._waiting.append(attempt)

    def poll(self, timeout_seconds: float) -> list[Event]:
        """What happened since; see `Engine.poll`.

        Raises:
            ArrStreamError: Workers refuse to begin, end again and again, find no room, or cannot be ended.
        """
        events: list[Event] = []
        if self._error is None:
            with self._keeping():
                self._look(timeout_seconds, events)
        # An error waits for the next call, so that what happened before it is heard.
        if self._error is not None and not events:
            raise self._error
        return events

    def close(self) -> None:
        """End every worker, whatever it does; safe to call again."""
        self._workers.clear()
        if not self._closed:
            self._closed = True
            self._crew.close()

    @contextlib.contextmanager
    def _keeping(self) -> Iterator[None]:
        """Keep the first error for later."""
        try:
            yield
        except Exception as exc:
            self._error = self._error or exc

    def _start(self) -> None:
        self._workers.append(_Worker(self._crew.spawn()))

    def _look(self, timeout_seconds: float, events: list[Event]) -> None:
        self._hand_out(events)
        for handle, message in self._crew.wait(0.0 if events else timeout_seconds):
            worker = next((worker for worker in self._workers if worker.handle is handle), None)
            if worker is not None:
                with self._keeping():
                    self._hear(worker, message, events)
        if self._error is None:
            self._end_stalled(events)
            self._hand_out(events)
            self._check_begun()

    def _hand_out(self, events: list[Event]) -> None:
        for worker in self._workers:
            if self._waiting and worker.loaded is not None and worker.attempt is None:
                worker.attempt, worker.frames, worker.moved_seconds = self._waiting.popleft(), 0, time.monotonic()
                self._crew.give(worker.handle, worker.attempt)
                events.append(JobStarted(worker.attempt, str(worker.loaded)))

    def _hear(self, worker: _Worker, message: Message, events: list[Event]) -> None:
        match message:
            case Refused():
                refused = WorkerLost(f"a worker could not begin: {message.error}: {message.message}")
                raise message.as_error() or refused
            case Loaded():
                self._lost_starts = 0
                worker.loaded = message
            case Lost():
                self._replace(worker, message.how, events)
            case JobProgress():
                # It may be about the file before.
                if message.attempt == worker.attempt and message.frames > worker.frames:
                    worker.frames, worker.moved_seconds = message.frames, time.monotonic()
                    events.append(message)
            case JobFinished() | JobFailed() if message.attempt == worker.attempt:
                self._lost = 0
                worker.attempt = None
                events.append(message)

    def _end_stalled(self, events: list[Event]) -> None:
        stall = self._patience.stall_seconds
        for worker in list(self._workers) if stall else ():
            if worker.attempt is not None and time.monotonic() - worker.moved_seconds > stall:
                told = self._crew.discard(worker.handle)
                # It may have been done just then; a failure may come of its being ended.
                if isinstance(told, JobFinished):
                    self._hear(worker, told, events)
                self._replace(worker, f"made no frame for {stall:g} s and was stopped", events)

    def _replace(self, worker: _Worker, how: str, events: list[Event]) -> None:
        """Tell what the end of a worker cost, and start another."""
        self._workers.remove(worker)
        self._lost += 1
        self._lost_starts += worker.loaded is None
        many = bool(self._patience.lost) and self._lost >= self._patience.lost
        if many or self._lost_starts >= _MOST_LOST_STARTS:
            times = f"{self._lost} in a row" if many else f"{self._lost_starts} before they could begin"
            raise WorkerLost(f"workers end again and again ({times}): the last one {how}", remedy=self._patience.remedy)
        if worker.attempt is not None:
            message = redact_url(f"{worker.attempt.job.source}: {worker.loaded} {how}")
            kind, code = WorkerLost.__name__, WorkerLost.exit_code
            events.append(JobFailed(worker.attempt, worker.frames, kind, message, _REMEDY, code, retryable=True))
        self._start()

    def _check_begun(self) -> None:
        """Raises:
        WorkerLost: There is no room for even one worker.
        """
        longest = self._patience.start_seconds
        if self.begun or not longest:
            self._began_seconds = time.monotonic()
        elif time.monotonic() - self._began_seconds > longest:
            raise WorkerLost(
                f"no worker could begin within {longest:g} s; each takes {self._patience.room}",
                remedy="let others finish on the cluster, or add nodes",
            )
