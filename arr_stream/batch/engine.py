"""The worker engine: it hands files to workers, reports events, and replaces lost workers.

Every engine is this class with a `Crew`: processes of this machine (`local`) or actors of a Ray cluster (`ray_engine`).
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
_LONGEST_DYING_SECONDS = 30.0
_REMEDY = "try it alone with `arr-stream process`; it may need more memory than there is"


@dataclass(frozen=True, slots=True)
class Loaded:
    """Message that a worker's models are loaded; `host` is the name of its machine, "" for this one."""

    process_id: int
    host: str = ""

    def __str__(self) -> str:
        return f"process {self.process_id}{f' on {self.host}' if self.host else ''}"


@dataclass(frozen=True, slots=True)
class Lost:
    """Message that a worker ended; `how` in one line: `was ended by SIGKILL`."""

    how: str


Answer = JobFinished | JobFailed
Message = Loaded | Refused | JobProgress | JobFinished | JobFailed | Lost
Handle = Any
"""A crew's reference to one of its workers."""


class Crew(Protocol):
    """Backend that starts workers, receives their messages and ends them."""

    def spawn(self) -> Handle:
        """Start a worker; it loads its models, then sends `Loaded` or `Refused`."""

    def give(self, worker: Handle, attempt: Attempt) -> None:
        """Assign a file; the worker sends its progress, then `JobFinished` or `JobFailed`."""

    def wait(self, timeout_seconds: float) -> Iterable[tuple[Handle, Message]]:
        """Return new messages; wait up to `timeout_seconds` for the first.

        `Lost` is the last message of an ended worker; after it, the worker can no longer touch the output folder.

        Raises:
            ArrStreamError: These workers can do no further file.
        """

    def kill(self, worker: Handle) -> None:
        """Kill a worker without waiting for its end; `Lost` reports that.

        Raises:
            OutputError: The mark that keeps it from the output folder cannot be written.
        """

    def close(self) -> None:
        """End every worker within seconds; safe to call again."""


@dataclass(eq=False, slots=True)
class _Worker:
    """State of a worker; times are those of `time.monotonic`.

    Args:
        handle: The crew's reference.
        loaded: Its identity, once its models are loaded.
        attempt: Its current file.
        frames: Its progress with that.
        moved_seconds: Time of its last progress.
        killed_seconds: Time at which it was killed; None while it may continue.
    """

    handle: Handle
    loaded: Loaded | None = None
    attempt: Attempt | None = None
    frames: int = 0
    moved_seconds: float = 0.0
    killed_seconds: float | None = None


class WorkerEngine:
    """Engine whose workers process files; each worker loads its models once.

    Args:
        crew: Starts the workers, receives their messages and ends them; closed with the engine.
        slots: Number of workers, started at once.
        stall_seconds: A worker without a new frame for so long is killed, and its file counts as lost; 0: never.
        start_seconds: Give up if no worker has loaded its models after so long; 0: never.
        most_lost: Give up after so many lost workers in a row without a finished file; 0: never.
        remedy: Advice for the user when workers keep ending.
        room: Resources of each worker, in words.

    Raises:
        ArrStreamError: They cannot be started.
    """

    def __init__(
        self,
        crew: Crew,
        slots: int,
        *,
        stall_seconds: float = 0.0,
        start_seconds: float = 0.0,
        most_lost: int = 0,
        remedy: str | None = None,
        room: str = "",
    ) -> None:
        self.slots = slots
        self._crew = crew
        self._stall_seconds, self._start_seconds, self._most_lost = stall_seconds, start_seconds, most_lost
        self._remedy, self._room = remedy, room
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

    def submit(self, attempt: Attempt) -> None:
        """Queue a file for the next free worker; at most `slots` run at a time."""
        self._waiting.append(attempt)

    def poll(self, timeout_seconds: float) -> list[Event]:
        """Return new events; wait up to `timeout_seconds` for the first.

        A lost worker is replaced, and its file is reported as `JobFailed` with kind `WorkerLost`.

        Raises:
            ArrStreamError: Workers refuse to begin, keep ending, get no resources, or cannot be ended.
        """
        events: list[Event] = []
        if self._error is None:
            with self._keeping():
                self._look(timeout_seconds, events)
        # Raise an error only in the next call, so that the events before it are returned.
        if self._error is not None and not events:
            raise self._error
        return events

    def close(self) -> None:
        """End every worker within seconds; safe to call again."""
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
            self._end_stalled()
            self._hand_out(events)
            self._check_begun()

    def _hand_out(self, events: list[Event]) -> None:
        for worker in self._workers:
            free = worker.loaded is not None and worker.attempt is None and worker.killed_seconds is None
            if self._waiting and free:
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
                stopped = f"made no frame for {self._stall_seconds:g} s and was stopped"
                self._replace(worker, message.how if worker.killed_seconds is None else stopped, events)
            case JobProgress():
                # It may belong to the previous file.
                if message.attempt == worker.attempt and message.frames > worker.frames:
                    worker.frames, worker.moved_seconds = message.frames, time.monotonic()
                    events.append(message)
            case JobFailed() if worker.killed_seconds is not None:
                # The kill may have caused it; a success just before the kill counts.
                pass
            case JobFinished() | JobFailed() if message.attempt == worker.attempt:
                self._lost = 0
                worker.attempt = None
                events.append(message)

    def _end_stalled(self) -> None:
        now = time.monotonic()
        for worker in self._workers if self._stall_seconds else ():
            if worker.killed_seconds is not None:
                if now - worker.killed_seconds > _LONGEST_DYING_SECONDS:
                    # It may still commit its file, and must not meet another attempt there.
                    raise WorkerLost(
                        f"{worker.loaded} cannot be ended",
                        remedy="check what the process is blocked on; rerun the command to resume",
                    )
            elif worker.attempt is not None and now - worker.moved_seconds > self._stall_seconds:
                worker.killed_seconds = now
                self._crew.kill(worker.handle)

    def _replace(self, worker: _Worker, how: str, events: list[Event]) -> None:
        """Report the lost worker's file and start another worker."""
        self._workers.remove(worker)
        self._lost += 1
        self._lost_starts += worker.loaded is None
        many = bool(self._most_lost) and self._lost >= self._most_lost
        if many or self._lost_starts >= _MOST_LOST_STARTS:
            times = f"{self._lost} in a row" if many else f"{self._lost_starts} before they could begin"
            raise WorkerLost(f"workers end again and again ({times}): the last one {how}", remedy=self._remedy)
        if worker.attempt is not None:
            message = redact_url(f"{worker.attempt.job.source}: {worker.loaded} {how}")
            kind, code = WorkerLost.__name__, WorkerLost.exit_code
            events.append(JobFailed(worker.attempt, worker.frames, kind, message, _REMEDY, code, retryable=True))
        self._start()

    def _check_begun(self) -> None:
        begun = any(worker.loaded is not None for worker in self._workers)
        if begun or not self._start_seconds:
            self._began_seconds = time.monotonic()
        elif time.monotonic() - self._began_seconds > self._start_seconds:
            raise WorkerLost(
                f"no worker could begin within {self._start_seconds:g} s; each takes {self._room}",
                remedy="let others finish on the cluster, or add nodes",
            )
