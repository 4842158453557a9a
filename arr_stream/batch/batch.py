"""A run of a batch: it gives files to workers, retries, replaces lost workers, and records the results."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from arr_stream.batch.engine import Loaded, Lost, Message, Worker, WorkerEngine
from arr_stream.batch.folder import DONE, Layout, folder_lock, write_json
from arr_stream.batch.job import (
    Attempt,
    Done,
    Event,
    Job,
    JobFailed,
    JobFinished,
    JobOptions,
    JobStarted,
    public_options,
)
from arr_stream.batch.plan import Plan, check_options, identity, make_plan
from arr_stream.errors import ArrStreamError, DiskFull, OutputError, OutputUnwritable, WorkerLost
from arr_stream.files import writing
from arr_stream.plain_text import redact_url
from arr_stream.processes import Refused

_POLL_SECONDS = 0.2
_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 30.0
_MOST_LOST_STARTS = 3
"""Workers in a row that end before their models are loaded."""
_END_BATCH = {error.__name__: error for error in (DiskFull, OutputUnwritable)}
"""Errors that every other file would hit as well."""
_LOST_REMEDY = "try it alone with `arr-stream process`; it may need more memory than there is"

MakeEngine = Callable[[int, Sequence[int]], WorkerEngine]
"""Factory of an engine from the number of files to do, and open files that its workers inherit."""


@dataclass(slots=True)
class BatchResult:
    """Result of a run of a batch.

    Args:
        plan: The plan.
        finished: Files finished in this run, in order.
        failed: Files that were given up.
        reason: `finished` (every file was done or given up), `interrupted` (Ctrl-C), or `failed` (no further file can
            be done).
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
            "failed": [_error(event) for event in self.failed],
            "left": len(self.left),
            "frames": self.frames,
            "seconds": self.seconds,
            "reason": self.reason,
            "engine": engine,
            "jobs": jobs,
        }


@contextlib.contextmanager
def opened(sources: Sequence[str], options: JobOptions, *, force: bool = False) -> Iterator[tuple[Plan, int]]:
    """Lock the output folder and plan the work there; yield the plan and the lock's descriptor.

    Raises:
        BatchBusy: Another batch works there.
        BatchDiffers: See `plan.make_plan`.
        OutputError: The folder cannot be written to.
    """
    layout = Layout(Path(options.folder))
    # Check first, so that no lock is left in a foreign folder.
    check_options(layout, public_options(options), force=force)
    with folder_lock(layout.lock) as lock:
        # Remove the files of interrupted attempts.
        shutil.rmtree(layout.work, ignore_errors=True)
        try:
            yield make_plan(sources, options, force=force), lock
        finally:
            shutil.rmtree(layout.work, ignore_errors=True)


def run_batch(
    plan: Plan,
    lock: int,
    make_engine: MakeEngine,
    *,
    engine_name: str,
    retries: int,
    stop: threading.Event,
    watch: Callable[[Event], None],
) -> BatchResult:
    """Run the plan and write the options and the summary; the engine is closed in any case.

    Args:
        plan, lock: From `opened`.
        make_engine: Creates the engine.
        engine_name: Its name in the summary.
        retries: Further attempts at a file after a retryable error.
        stop: Once set, no further file begins, and the running ones are abandoned.
        watch: Called with each event.

    Raises:
        ArrStreamError: The engine cannot start.
    """
    result, jobs = BatchResult(plan), 0
    with contextlib.ExitStack() as stack:
        engine = make_engine(len(plan.to_do), (lock,)) if plan.to_do else None
        if engine is not None:
            stack.callback(engine.close)
        write_json(plan.layout.options, {"version": 1, "options": plan.public})
        for done in plan.kept:
            # The process that ran the batch may have been killed between a worker's last step and its own.
            plan.layout.error(done.name).unlink(missing_ok=True)
        if engine is not None:
            jobs = engine.slots
            began = time.monotonic()
            try:
                _Dispatcher(result, engine, retries, watch).run(stop)
            except ArrStreamError as exc:
                result.reason, result.error = "failed", exc
            result.seconds = round(time.monotonic() - began, 3)
            engine.close()
        try:
            write_json(plan.layout.summary, result.summary(engine=engine_name, jobs=jobs))
        except OutputError as exc:
            result.error = result.error or exc
    return result


class _Dispatcher:
    """Loop that gives files to workers until all are done or given up, and fills the result."""

    def __init__(self, result: BatchResult, engine: WorkerEngine, retries: int, watch: Callable[[Event], None]) -> None:
        self._result, self._engine, self._retries, self._watch = result, engine, retries, watch
        self._workers: list[Worker] = []
        self._lost_starts = 0
        # With the time before which an attempt must not begin.
        self._waiting = deque((0.0, Attempt(job)) for job in result.plan.to_do)

    def run(self, stop: threading.Event) -> None:
        """Process the files; once `stop` is set, begin none and abandon the running ones.

        Raises:
            ArrStreamError: No further file can be done.
        """
        self._workers += [self._engine.start() for _ in range(self._engine.slots)]
        while self._waiting or any(worker.attempt for worker in self._workers):
            if stop.is_set():
                self._result.reason = "interrupted"
                return
            self._assign()
            for worker, message in self._engine.receive(_POLL_SECONDS):
                if worker in self._workers:
                    self._handle(worker, message)

    def _assign(self) -> None:
        now = time.monotonic()
        for worker in self._workers:
            idle = worker.name and worker.attempt is None
            due = next((item for item in self._waiting if item[0] <= now), None)
            if not idle or due is None:
                continue
            self._waiting.remove(due)
            attempt = due[1]
            worker.attempt = attempt
            self._engine.give(worker, attempt)
            self._watch(JobStarted(attempt, worker.name))

    def _handle(self, worker: Worker, message: Message) -> None:
        match message:
            case Loaded():
                self._lost_starts, worker.name = 0, message.name
            case Refused():
                refused = WorkerLost(f"a worker could not begin: {message.error}: {message.message}")
                raise message.as_error() or refused
            case Lost():
                self._replace(worker, message.how)
            case JobFinished() | JobFailed() if message.attempt == worker.attempt:
                worker.attempt = None
                self._settle(message)

    def _replace(self, worker: Worker, how: str) -> None:
        """Settle the lost worker's file and start another worker."""
        self._workers.remove(worker)
        self._lost_starts += not worker.name
        if self._lost_starts >= _MOST_LOST_STARTS:
            raise WorkerLost(
                f"{self._lost_starts} workers in a row ended before they could begin: the last one {how}",
                remedy="see that their machines have enough memory, and the same packages",
            )
        if worker.attempt is not None:
            message = redact_url(f"{worker.attempt.job.source}: {worker.name} {how}")
            kind, code = WorkerLost.__name__, WorkerLost.exit_code
            lost = JobFailed(worker.attempt, kind, message, _LOST_REMEDY, code, retryable=True)
            done = self._done_by_lost(worker.attempt)
            self._settle(lost if done is None else JobFinished(worker.attempt, done))
        self._workers.append(self._engine.start())

    def _done_by_lost(self, attempt: Attempt) -> Done | None:
        """Return the committed result of a worker that died before it reported."""
        plan, job = self._result.plan, attempt.job
        done = Done.read(plan.layout.video(job.name) / DONE)
        with contextlib.suppress(OSError, ValueError, ArrStreamError):
            if done is not None and done.fits(job.source, plan.digest, identity(job.source, plan.options.storage)):
                return done
        return None

    def _settle(self, event: JobFinished | JobFailed) -> None:
        if isinstance(event, JobFinished):
            self._result.finished.append(event)
            error = self._result.plan.layout.error(event.done.name)
            with writing(error):
                error.unlink(missing_ok=True)
        elif event.kind in _END_BATCH:
            remedy = f"{event.remedy}, then run the same command again"
            raise _END_BATCH[event.kind](event.message, remedy=remedy)
        else:
            event = replace(event, again=event.retryable and event.attempt.number <= self._retries)
            self._fail(event)
        self._watch(event)

    def _fail(self, event: JobFailed) -> None:
        name, number = event.attempt.job.name, event.attempt.number
        if event.again:
            pause = min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2.0 ** (number - 1))
            self._waiting.append((time.monotonic() + pause, Attempt(event.attempt.job, number + 1)))
            return
        self._result.failed.append(event)
        write_json(self._result.plan.layout.error(name), _error(event) | {"remedy": event.remedy})


def _error(event: JobFailed) -> dict[str, Any]:
    """Return the fields that every report of an error has."""
    job = event.attempt.job
    about = {"kind": event.kind, "message": event.message, "exit_code": event.exit_code}
    return {"name": job.name, "source": redact_url(job.source), "attempts": event.attempt.number, **about}
