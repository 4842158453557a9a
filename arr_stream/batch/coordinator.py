"""The coordinator of a batch: it hands out files, retries, and records the results."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as replaced
from typing import Any, Literal

from arr_stream.batch.engine import WorkerEngine
from arr_stream.batch.job import Attempt, Done, Event, Job, JobFailed, JobFinished
from arr_stream.batch.journal import Journal
from arr_stream.batch.layout import identity, write_json
from arr_stream.batch.plan import Plan
from arr_stream.errors import ArrStreamError, DiskFull, OutputUnwritable, WorkerLost
from arr_stream.files import writing
from arr_stream.plain_text import redact_url

_POLL_SECONDS = 0.2
_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 30.0
_HOPELESS = {error.__name__: error for error in (DiskFull, OutputUnwritable)}
"""Errors that every other file would hit as well."""

Watch = Callable[[Event], None]
"""Callback for the events of a batch."""


@dataclass(slots=True)
class BatchResult:
    """Result of a run of a batch.

    Args:
        plan: The plan.
        finished: Files finished in this run, in order.
        failed: Files that were given up.
        reason: `finished` (every file was done or given up), `interrupted` (Ctrl-C), or
            `failed` (no further file can be done).
        error: The error that prevents every further file; None otherwise.
        seconds: Duration of the run.
    """

    plan: Plan
    finished: list[JobFinished] = field(default_factory=list)
    failed: list[JobFailed] = field(default_factory=list)
    reason: Literal["finished", "interrupted", "failed"] = "finished"
    error: ArrStreamError | None = None
    seconds: float = 0.0

    @property
    def left(self) -> list[Job]:
        """Files neither done nor given up."""
        events: list[JobFinished | JobFailed] = [*self.finished, *self.failed]
        settled = {event.attempt.job.index for event in events}
        return [job for job in self.plan.to_do if job.index not in settled]

    @property
    def all_done(self) -> list[Done]:
        """All finished files, including those of earlier runs."""
        return [*self.plan.kept, *(event.done for event in self.finished)]

    @property
    def damaged(self) -> dict[str, str]:
        """Damage of the sources that have any, by name; all of them are done."""
        return {done.name: done.damaged for done in self.all_done if done.damaged}

    @property
    def frames(self) -> int:
        """Frames of all finished files."""
        return sum(done.frames for done in self.all_done)

    def summary(self, *, engine: str, jobs: int) -> dict[str, Any]:
        """Return the content of `summary.json`."""
        return {
            "version": 1,
            "files": len(self.plan.files),
            "done": len(self.all_done),
            "done_in_this_run": len(self.finished),
            "damaged": self.damaged,
            "failed": [_told(event) | {"attempts": event.attempt.number} for event in self.failed],
            "left": len(self.left),
            "frames": self.frames,
            "seconds": self.seconds,
            "reason": self.reason,
            "engine": engine,
            "jobs": jobs,
        }


class Coordinator:
    """Dispatcher of files to an engine until all are done or given up, or the run is stopped.

    Args:
        result: The result to fill; its plan lists the files.
        journal: Records every event before it takes effect.
        retries: Further attempts at a file after a retryable error.
        watch: Called with each event.
    """

    def __init__(self, result: BatchResult, journal: Journal, *, retries: int, watch: Watch) -> None:
        self._result = result
        self._journal = journal
        self._retries = retries
        self._watch = watch
        self._due = deque(Attempt(job) for job in result.plan.to_do)
        self._later: list[tuple[float, Attempt]] = []
        self._under_way: dict[int, Attempt] = {}
        self._failures: dict[int, list[JobFailed]] = {}

    def run(self, engine: WorkerEngine, stop: threading.Event) -> None:
        """Process the files; once `stop` is set, begin none and abandon the running ones."""
        began = time.monotonic()
        result = self._result
        try:
            while (self._due or self._later or self._under_way) and result.reason == "finished":
                if stop.is_set():
                    result.reason = "interrupted"
                    break
                self._hand_out(engine)
                for event in engine.poll(_POLL_SECONDS):
                    self._hear(event)
        except ArrStreamError as exc:
            result.reason, result.error = "failed", exc
        result.seconds = round(time.monotonic() - began, 3)

    def _hand_out(self, engine: WorkerEngine) -> None:
        now = time.monotonic()
        self._due.extend(attempt for at, attempt in self._later if at <= now)
        self._later = [(at, attempt) for at, attempt in self._later if at > now]
        while self._due and len(self._under_way) < engine.slots:
            attempt = self._due.popleft()
            self._journal.append("attempt", name=attempt.job.name, number=attempt.number)
            self._under_way[attempt.job.index] = attempt
            engine.submit(attempt)

    def _hear(self, event: Event) -> None:
        # Ignore late messages of an attempt that counts as lost.
        if self._under_way.get(event.attempt.job.index) != event.attempt:
            return
        if isinstance(event, JobFinished | JobFailed):
            del self._under_way[event.attempt.job.index]
        if isinstance(event, JobFailed):
            done = self._done_by_the_lost(event)
            event = self._judged(event) if done is None else JobFinished(event.attempt, done)
        if isinstance(event, JobFinished):
            self._finish(event)
        elif isinstance(event, JobFailed):
            self._fail(event)
        if self._result.error is None:
            self._watch(event)

    def _finish(self, event: JobFinished) -> None:
        self._result.finished.append(event)
        self._journal.add_done(event.done)
        error = self._result.plan.layout.error(event.done.name)
        with writing(error):
            error.unlink(missing_ok=True)

    def _done_by_the_lost(self, event: JobFailed) -> Done | None:
        """Return the committed result of a worker that died before it reported."""
        plan, job = self._result.plan, event.attempt.job
        done = Done.read(plan.layout.done(job.name)) if event.kind == WorkerLost.__name__ else None
        if done is None or not done.attempt <= event.attempt.number:
            return None
        with contextlib.suppress(OSError, ValueError, ArrStreamError):
            if done.fits(job.source, plan.digest, identity(job.source, plan.options.storage)):
                return done
        return None

    def _judged(self, event: JobFailed) -> JobFailed:
        """Set whether another attempt follows."""
        again = event.retryable and event.attempt.number <= self._retries and event.kind not in _HOPELESS
        return replaced(event, again=again)

    def _fail(self, event: JobFailed) -> None:
        attempt, result = event.attempt, self._result
        line = {"kind": event.kind, "message": event.message, "attempt": attempt.number, "again": event.again}
        if (hopeless := _HOPELESS.get(event.kind)) is not None:
            result.reason = "failed"
            result.error = hopeless(event.message, remedy=f"{event.remedy}, then run the same command again")
            # The journal may fail to take another line as well.
            with contextlib.suppress(DiskFull, OutputUnwritable):
                self._journal.append("failed", name=attempt.job.name, **line)
            return
        self._journal.append("failed", name=attempt.job.name, **line)
        failures = self._failures.setdefault(attempt.job.index, [])
        failures.append(event)
        if event.again:
            pause = min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2.0 ** (attempt.number - 1))
            self._later.append((time.monotonic() + pause, Attempt(attempt.job, attempt.number + 1)))
            return
        result.failed.append(event)
        write_json(result.plan.layout.error(attempt.job.name), _error_report(failures))


def _error_report(failures: Sequence[JobFailed]) -> dict[str, Any]:
    """Return the content of `errors/NAME.json`: the last error and every attempt."""
    last = failures[-1]
    attempts = [
        {"number": one.attempt.number, "kind": one.kind, "message": one.message, "frames": one.frames}
        for one in failures
    ]
    return _told(last) | {"remedy": last.remedy, "frames": last.frames, "attempts": attempts}


def _told(event: JobFailed) -> dict[str, Any]:
    """Return the fields that every report of an error has."""
    job = event.attempt.job
    about = {"kind": event.kind, "message": event.message, "exit_code": event.exit_code}
    return {"name": job.name, "source": redact_url(job.source), **about}
