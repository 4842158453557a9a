"""Runs a batch: hands out files, tries again what may go better, writes down what happened and what it came to."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from arr_stream.batch.job import (
    Attempt,
    Engine,
    Event,
    Job,
    JobFailed,
    JobFinished,
    JobOptions,
    JobProgress,
    JobStarted,
    options_digest,
    public_options,
)
from arr_stream.batch.journal import Journal
from arr_stream.batch.layout import Done, Layout, identity, write_json
from arr_stream.batch.plan import Plan
from arr_stream.errors import ArrStreamError, DiskFull, OutputUnwritable, WorkerLost
from arr_stream.files import writing
from arr_stream.plain_text import redact_url

_POLL_SECONDS = 0.2
_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 30.0
_HOPELESS = {error.__name__: error for error in (DiskFull, OutputUnwritable)}
"""What would befall every other file as well."""

Reason = Literal["finished", "interrupted", "stopped", "failed"]


class BatchWatcher(Protocol):
    """Hears how a batch goes."""

    def started(self, event: JobStarted) -> None:
        """A worker has begun on a file."""

    def progress(self, event: JobProgress) -> None:
        """A worker has come so far."""

    def finished(self, event: JobFinished) -> None:
        """A file is done."""

    def failed(self, event: JobFailed, *, again: bool) -> None:
        """An attempt failed; `again`: another will be made."""


@dataclass(slots=True)
class BatchResult:
    """How a run of a batch ended.

    Args:
        finished: Files that were done in this run, in that order.
        failed: Files that were given up.
        left: Files that were not done, nor given up.
        reason: `finished` (every file was done or given up), `interrupted` (Ctrl-C), `stopped` (by `--fail-fast`) or
            `failed` (nothing can be done any more).
        error: What no file can be done for; None otherwise.
        seconds: How long it took.
    """

    finished: list[JobFinished] = field(default_factory=list)
    failed: list[JobFailed] = field(default_factory=list)
    left: list[Job] = field(default_factory=list)
    reason: Reason = "finished"
    error: ArrStreamError | None = None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Summary:
    """Counts over all files of a batch, those that earlier runs did among them.

    Args:
        files: How many there are.
        done: Done in this run.
        kept: Done before.
        failed: Given up in this run.
        left: Neither done nor given up.
        damaged: Sources that broke off and what is wrong with each, by name; all of them are done.
        frames: Of all files that are done.
        seconds: Of this run.
        reason: As `BatchResult.reason`.
    """

    files: int
    done: int
    kept: int
    failed: tuple[JobFailed, ...]
    left: int
    damaged: dict[str, str]
    frames: int
    seconds: float
    reason: str

    @classmethod
    def of(cls, plan: Plan, result: BatchResult) -> Summary:
        """Of a run that has ended."""
        damaged = {file.job.name: file.done.damaged for file in plan.kept if file.done and file.done.damaged}
        damaged |= {event.attempt.job.name: event.damaged for event in result.finished if event.damaged}
        frames = sum(file.done.frames for file in plan.kept if file.done is not None)
        return cls(
            files=len(plan.files),
            done=len(result.finished),
            kept=len(plan.kept),
            failed=tuple(result.failed),
            left=len(result.left),
            damaged=damaged,
            frames=frames + sum(event.frames for event in result.finished),
            seconds=result.seconds,
            reason=result.reason,
        )

    def as_json(self, *, engine: str, jobs: int) -> dict[str, Any]:
        """What stands in `summary.json`."""
        return {
            "version": 1,
            "files": self.files,
            "done": self.done + self.kept,
            "done_in_this_run": self.done,
            "damaged": self.damaged,
            "failed": [
                {
                    "name": event.attempt.job.name,
                    "source": redact_url(event.attempt.job.source),
                    "kind": event.kind,
                    "message": event.message,
                    "exit_code": event.exit_code,
                    "attempts": event.attempt.number,
                }
                for event in self.failed
            ],
            "left": self.left,
            "frames": self.frames,
            "seconds": self.seconds,
            "reason": self.reason,
            "engine": engine,
            "jobs": jobs,
        }


class Coordinator:
    """Hands files to an engine until all are done, given up, or the run is stopped.

    Args:
        layout: Of the output folder.
        journal: Told of everything before it matters.
        retries: Further attempts at a file, where one may go better.
        fail_fast: Give up everything with the first file that is given up.
        options: What the workers do with every file: by this, what one has done and could not tell any more is known.
            None: such a file is done again.
        watch: Hears how it goes.
    """

    def __init__(
        self,
        layout: Layout,
        journal: Journal,
        *,
        retries: int = 2,
        fail_fast: bool = False,
        options: JobOptions | None = None,
        watch: BatchWatcher,
    ) -> None:
        self._layout = layout
        self._options = options
        self._journal = journal
        self._retries = retries
        self._fail_fast = fail_fast
        self._watch = watch
        self._result = BatchResult()
        self._due: deque[Attempt] = deque()
        self._later: list[tuple[float, Attempt]] = []
        self._under_way: dict[int, Attempt] = {}
        self._failures: dict[int, list[JobFailed]] = {}

    def run(self, engine: Engine, jobs: Sequence[Job], stop: threading.Event) -> BatchResult:
        """Do the files.

        Args:
            engine: Does them; not closed.
            jobs: Which.
            stop: Begin nothing more, and leave what is under way undone, once set.
        """
        began = time.monotonic()
        result = self._result
        self._due.extend(Attempt(job) for job in jobs)
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
        settled = {event.attempt.job.index for event in result.finished}
        settled |= {event.attempt.job.index for event in result.failed}
        result.left = [job for job in jobs if job.index not in settled]
        result.seconds = round(time.monotonic() - began, 3)
        return result

    def _hand_out(self, engine: Engine) -> None:
        now = time.monotonic()
        self._due.extend(attempt for at, attempt in self._later if at <= now)
        self._later = [(at, attempt) for at, attempt in self._later if at > now]
        while self._due and len(self._under_way) < engine.slots:
            attempt = self._due.popleft()
            self._journal.append("attempt", name=attempt.job.name, number=attempt.number)
            self._under_way[attempt.job.index] = attempt
            engine.submit(attempt)

    def _hear(self, event: Event) -> None:
        # What comes of an attempt that was given up for lost is of no account.
        if self._under_way.get(event.attempt.job.index) != event.attempt:
            return
        match event:
            case JobStarted():
                self._watch.started(event)
            case JobProgress():
                self._watch.progress(event)
            case JobFinished():
                del self._under_way[event.attempt.job.index]
                self._finish(event)
            case JobFailed():
                del self._under_way[event.attempt.job.index]
                self._fail(event)

    def _finish(self, event: JobFinished) -> None:
        name = event.attempt.job.name
        self._result.finished.append(event)
        self._journal.append(
            "finished",
            name=name,
            frames=event.frames,
            seconds=event.seconds,
            digest=event.digest,
            attempt=event.attempt.number,
        )
        with writing(self._layout.error(name)):
            self._layout.error(name).unlink(missing_ok=True)
        self._watch.finished(event)

    def _done_by_the_lost(self, event: JobFailed) -> JobFinished | None:
        """What a worker brought to its place before it died without a word of it."""
        if event.kind != WorkerLost.__name__ or self._options is None:
            return None
        job = event.attempt.job
        done = Done.read(self._layout.done(job.name))
        if done is None or not done.attempt <= event.attempt.number:
            return None
        try:
            now = identity(job.source, self._options.storage)
        except (OSError, ValueError, ArrStreamError):
            return None
        digest = options_digest(public_options(self._options))
        return done.told(event.attempt) if done.fits(job.source, digest, now) else None

    def _fail(self, event: JobFailed) -> None:
        if (finished := self._done_by_the_lost(event)) is not None:
            self._finish(finished)
            return
        hopeless = _HOPELESS.get(event.kind)
        again = event.retryable and event.attempt.number <= self._retries and hopeless is None
        failures = self._failures.setdefault(event.attempt.job.index, [])
        failures.append(event)
        if hopeless is not None:
            # First, since the journal may not be able to take another line either.
            self._result.reason = "failed"
            self._result.error = hopeless(event.message, remedy=f"{event.remedy}, then run the same command again")
        with _perhaps_unwritten(hopeless is not None):
            self._journal.append(
                "failed",
                name=event.attempt.job.name,
                kind=event.kind,
                message=event.message,
                attempt=event.attempt.number,
                again=again,
            )
        if hopeless is not None:
            return
        self._watch.failed(event, again=again)
        if again:
            pause = min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2.0 ** (event.attempt.number - 1))
            self._later.append((time.monotonic() + pause, Attempt(event.attempt.job, event.attempt.number + 1)))
            return
        self._result.failed.append(event)
        write_json(self._layout.error(event.attempt.job.name), error_report(failures))
        if self._fail_fast:
            self._result.reason = "stopped"


@contextlib.contextmanager
def _perhaps_unwritten(known: bool) -> Iterator[None]:
    """Let what cannot be written pass where it is `known` that nothing can."""
    with contextlib.suppress(*((DiskFull, OutputUnwritable) if known else ())):
        yield


def error_report(failures: Sequence[JobFailed]) -> dict[str, Any]:
    """What stands in `errors/NAME.json`: the last error, and every attempt before it."""
    last = failures[-1]
    return {
        "name": last.attempt.job.name,
        "source": redact_url(last.attempt.job.source),
        "kind": last.kind,
        "message": last.message,
        "remedy": last.remedy,
        "exit_code": last.exit_code,
        "frames": last.frames,
        "attempts": [
            {"number": one.attempt.number, "kind": one.kind, "message": one.message, "frames": one.frames}
            for one in failures
        ],
    }
