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
_LONGEST_DYING_SECONDS = 30.0
_REMEDY = "try it alone with `arr-stream process`; it may need more memory than there is"


@dataclass(frozen=True, slots=True)
class Loaded:
    """A worker's models are loaded; `host` is the name of its machine, "" for this one."""

    process_id: int
    host: str = ""

    def __str__(self) -> str:
        return f"process {self.process_id}{f' on {self.host}' if self.host else ''}"


@dataclass(frozen=True, slots=True)
class Lost:
    """A worker is no more; `how` in one line: `was ended by SIGKILL`."""

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
        """What was said since, waiting up to so long for the first word.

        Of a worker that has ended, `Lost` comes last, once nothing of it can reach the output folder any more.

        Raises:
            ArrStreamError: Nothing more can be done with these workers.
        """

    def kill(self, worker: Handle) -> None:
        """End a worker, whatever it does, without waiting until it has: `Lost` tells of that.

        Raises:
            OutputError: What keeps it from the output folder cannot be written.
        """

    def close(self) -> None:
        """End every worker within seconds; safe to call again."""


@dataclass(eq=False, slots=True)
class _Worker:
    """What is known of a worker; times are those of `time.monotonic`.

    Args:
        handle: What the crew calls it.
        loaded: Who it is, once its models are loaded.
        attempt: What it is doing.
        frames: How far it is with that.
        moved_seconds: When it was last seen to be further.
        killed_seconds: When it was killed; None while it may go on.
    """

    handle: Handle
    loaded: Loaded | None = None
    attempt: Attempt | None = None
    frames: int = 0
    moved_seconds: float = 0.0
    killed_seconds: float | None = None


class WorkerEngine:
    """Workers that do files; each loads its models once.

    Args:
        crew: Starts, hears and ends them; closed with the engine.
        slots: How many there are, started at once.
        stall_seconds: A worker that makes no frame for so long is ended, and its file counts as lost; 0: never.
        start_seconds: Give up where no worker has begun for so long; 0: never.
        most_lost: Give up when so many workers end in a row, none of them having done a file; 0: never.
        remedy: What to do when workers end again and again.
        room: What each worker takes, in words.

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

    @property
    def begun(self) -> bool:
        """A worker has loaded its models."""
        return any(worker.loaded is not None for worker in self._workers)

    def submit(self, attempt: Attempt) -> None:
        """Give a file to the next free worker; at most `slots` are under way at a time."""
        self._waiting.append(attempt)

    def poll(self, timeout_seconds: float) -> list[Event]:
        """What happened since, waiting up to so long for the first event.

        A worker that died is replaced, and its file is told as `JobFailed` with kind `WorkerLost`.

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
        """End every worker within seconds, whatever it does; safe to call again."""
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
                # It may be about the file before.
                if message.attempt == worker.attempt and message.frames > worker.frames:
                    worker.frames, worker.moved_seconds = message.frames, time.monotonic()
                    events.append(message)
            case JobFailed() if worker.killed_seconds is not None:
                # It may come of its being killed; what was done just before that is believed.
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
                    # It may yet bring its file to its place, and another attempt must not meet it there.
                    raise WorkerLost(
                        f"{worker.loaded} cannot be ended",
                        remedy="see what it waits for; the same command goes on then",
                    )
            elif worker.attempt is not None and now - worker.moved_seconds > self._stall_seconds:
                worker.killed_seconds = now
                self._crew.kill(worker.handle)

    def _replace(self, worker: _Worker, how: str, events: list[Event]) -> None:
        """Tell what the end of a worker cost, and start another."""
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
        if self.begun or not self._start_seconds:
            self._began_seconds = time.monotonic()
        elif time.monotonic() - self._began_seconds > self._start_seconds:
            raise WorkerLost(
                f"no worker could begin within {self._start_seconds:g} s; each takes {self._room}",
                remedy="let others finish on the cluster, or add nodes",
            )
