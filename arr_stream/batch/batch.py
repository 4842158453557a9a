"""A complete batch run: lock, journal, engine, summary."""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from arr_stream.batch.coordinator import BatchResult, Coordinator, Watch
from arr_stream.batch.engine import WorkerEngine
from arr_stream.batch.job import JobOptions, public_options
from arr_stream.batch.journal import FolderLock, Journal, leave_out_broken, read_journal, source_key
from arr_stream.batch.layout import Layout, write_json
from arr_stream.batch.plan import Plan, find_past, make_plan, versions
from arr_stream.errors import OutputError

_POLL_SECONDS = 0.2

MakeEngine = Callable[[JobOptions, int, Sequence[int]], WorkerEngine]
"""Factory of an engine from options, the number of files to do, and open files that its workers inherit."""


@contextlib.contextmanager
def opened(sources: Sequence[str], options: JobOptions, *, force: bool = False) -> Iterator[tuple[Plan, FolderLock]]:
    """Lock the output folder and plan the work there; see `plan.make_plan`.

    Raises:
        BatchBusy: Another batch works there.
        BatchDiffers: See `plan.make_plan`.
        OutputError: The folder cannot be written to.
    """
    layout = Layout(Path(options.folder))
    # Check first, so that no lock is left in a foreign folder.
    find_past(layout, public_options(options), force=force)
    with FolderLock(layout.lock) as lock:
        # Remove the files of interrupted attempts.
        shutil.rmtree(layout.work, ignore_errors=True)
        plan = make_plan(sources, options, force=force)
        try:
            yield plan, lock
        finally:
            shutil.rmtree(layout.work, ignore_errors=True)


def run_batch(
    plan: Plan,
    lock: FolderLock,
    make_engine: MakeEngine,
    *,
    engine_name: str,
    retries: int,
    stop: threading.Event,
    watch: Watch,
) -> BatchResult:
    """Run the plan and write the journal and the summary; the engine is closed in any case.

    Args:
        plan, lock: From `opened`.
        make_engine: Creates the engine.
        engine_name: Its name in the journal.
        retries, watch: As for `Coordinator`.
        stop: Once set, no further file begins.

    Raises:
        ArrStreamError: The engine cannot start.
    """
    result, engine = BatchResult(plan), None
    with contextlib.ExitStack() as stack:
        if plan.to_do:
            engine = make_engine(plan.options, len(plan.to_do), (lock.descriptor,))
            stack.callback(engine.close)
        journal = stack.enter_context(_journal(plan))
        jobs = 0 if engine is None else engine.slots
        if engine is not None:
            journal.append("run", engine=engine_name, jobs=jobs, files=len(plan.files), to_do=len(plan.to_do))
            Coordinator(result, journal, retries=retries, watch=watch).run(engine, stop)
            engine.close()
        try:
            journal.append("ended", reason=result.reason)
            write_json(plan.layout.summary, result.summary(engine=engine_name, jobs=jobs))
        except OutputError as exc:
            result.error = result.error or exc
    return result


@contextlib.contextmanager
def _journal(plan: Plan) -> Iterator[Journal]:
    """Open the journal and add the options, the new files, and finished files that earlier runs did not record."""
    if plan.past.broken:
        leave_out_broken(plan.layout.manifest)
    with contextlib.closing(Journal(plan.layout.manifest)) as journal:
        if not plan.same_options:
            journal.begin(plan.public, versions())
        keys = [(source_key(file.job.source), file.job.name) for file in plan.files]
        journal.add_jobs([pair for pair in keys if pair[0] not in plan.past.names])
        told = _told(journal)
        for done in plan.kept:
            if (done.name, done.digest, str(done.attempt)) not in told:
                journal.add_done(done, found=True)
            # The process that ran the batch may have been killed between a worker's last step and its own.
            plan.layout.error(done.name).unlink(missing_ok=True)
        yield journal


def _told(journal: Journal) -> set[tuple[str, ...]]:
    """Return name, digest and attempt of every file finished since the options were last recorded."""
    told: set[tuple[str, ...]] = set()
    for line in read_journal(journal.path):
        if line.get("type") == "batch":
            told.clear()
        elif line.get("type") == "finished":
            told.add(tuple(str(line.get(key)) for key in ("name", "digest", "attempt")))
    return told
