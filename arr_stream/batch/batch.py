"""A batch from beginning to end: lock, journal, engine, summary."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from arr_stream.batch.coordinator import BatchResult, BatchWatcher, Coordinator, Summary
from arr_stream.batch.job import Engine, JobOptions, public_options
from arr_stream.batch.journal import FolderLock, Journal, leave_out_broken, read_journal, read_past, source_key
from arr_stream.batch.layout import Layout, write_json
from arr_stream.batch.plan import Plan, clear_work, find_past, make_plan, start_over, versions
from arr_stream.errors import BatchDiffers, OutputError

_POLL_SECONDS = 0.2

MakeEngine = Callable[[JobOptions, int, Sequence[int]], Engine]
"""Makes an engine for options, the number of files to do, and open files that its workers are to inherit."""


@contextlib.contextmanager
def opened(
    sources: Sequence[str], options: JobOptions, *, resume: bool | None = None, force: bool = False
) -> Iterator[tuple[Plan, FolderLock]]:
    """The output folder, locked, with what is to be done there.

    Args:
        sources: As `inputs.expand` gives them.
        options, resume, force: See `plan.make_plan`.

    Raises:
        BatchBusy: Another batch works there.
        BatchDiffers: See `plan.make_plan`.
        OutputError: It cannot be written to.
    """
    layout = Layout(Path(options.folder))
    # Before a lock or anything else is left in a folder that is none of ours.
    find_past(layout, public_options(options), resume=resume, force=force)
    with FolderLock(layout.lock) as lock:
        clear_work(layout)
        plan = make_plan(sources, options, resume=resume, force=force)
        try:
            yield plan, lock
        finally:
            clear_work(layout)


def run_batch(
    plan: Plan,
    lock: FolderLock,
    make_engine: MakeEngine,
    *,
    engine_name: str,
    retries: int,
    fail_fast: bool,
    stop: threading.Event,
    watch: BatchWatcher,
    fresh: bool = False,
) -> tuple[BatchResult, Summary]:
    """Do what is to be done, and write down what it came to; the engine is closed in any case.

    Args:
        plan, lock: As `opened` gives them.
        make_engine: Makes who works.
        engine_name: What it is called in the journal.
        retries, fail_fast, watch: As for `Coordinator`.
        stop: Begin nothing more once set.
        fresh: Take away what was done before, as soon as a worker has begun: until then all of it stays.

    Raises:
        ArrStreamError: No engine can be had, or no worker can begin to do what is to be done afresh.
    """
    to_do = plan.to_do
    with contextlib.ExitStack() as stack:
        journal = None if fresh else stack.enter_context(_journal(plan))
        if not to_do:
            return _ended(plan, journal or stack.enter_context(_journal(plan)), BatchResult(), engine_name, 0)
        engine = make_engine(plan.options, len(to_do), (lock.descriptor,))
        stack.callback(engine.close)
        if journal is None:
            if not _begun(engine, stop):
                result = BatchResult(left=to_do, reason="interrupted")
                return result, Summary.of(plan, result)
            start_over(plan.layout, _names(plan.layout))
            journal = stack.enter_context(_journal(plan))
        journal.append("run", engine=engine_name, jobs=engine.slots, files=len(plan.files), to_do=len(to_do))
        coordinator = Coordinator(
            plan.layout, journal, retries=retries, fail_fast=fail_fast, options=plan.options, watch=watch
        )
        result = coordinator.run(engine, to_do, stop)
        engine.close()
        return _ended(plan, journal, result, engine_name, engine.slots)


def _ended(
    plan: Plan, journal: Journal, result: BatchResult, engine_name: str, jobs: int
) -> tuple[BatchResult, Summary]:
    summary = Summary.of(plan, result)
    try:
        journal.append("ended", reason=result.reason)
        write_json(plan.layout.summary, summary.as_json(engine=engine_name, jobs=jobs))
    except OutputError as exc:
        result.error = result.error or exc
    return result, summary


def _begun(engine: Engine, stop: threading.Event) -> bool:
    """Wait until a worker has begun; False when told to stop before.

    Raises:
        ArrStreamError: None can.
    """
    while not engine.begun:
        if stop.is_set():
            return False
        engine.poll(_POLL_SECONDS)
    return not stop.is_set()


@contextlib.contextmanager
def _journal(plan: Plan) -> Iterator[Journal]:
    """The journal, which knows of every file."""
    if plan.past.broken:
        leave_out_broken(plan.layout.manifest)
    journal = Journal(plan.layout.manifest)
    try:
        _write_down(plan, journal)
        yield journal
    finally:
        journal.close()


def _names(layout: Layout) -> list[str]:
    """Names that the journal knows, as far as it can be read."""
    try:
        return list(read_past(layout.manifest, skip_broken=True).names.values())
    except BatchDiffers:
        return []


def _write_down(plan: Plan, journal: Journal) -> None:
    """Let the journal know what is asked, of which files, and what it missed of earlier runs."""
    if not plan.same_options:
        journal.begin(plan.public, plan.digest, versions())
    names = [(key, file.job.name) for file in plan.files if (key := source_key(file.job.source)) not in plan.past.names]
    journal.add_jobs(names)
    told = _told(journal)
    for file in plan.kept:
        done = file.done
        if done is not None and (done.name, done.digest, str(done.attempt)) not in told:
            journal.append(
                "finished",
                name=done.name,
                frames=done.frames,
                seconds=done.seconds,
                digest=done.digest,
                attempt=done.attempt,
                found=True,
            )


def _told(journal: Journal) -> set[tuple[str, ...]]:
    """Name, digest and attempt of every file that was finished since the options were last written down."""
    told: set[tuple[str, ...]] = set()
    for line in read_journal(journal.path):
        if line.get("type") == "batch":
            told.clear()
        elif line.get("type") == "finished":
            told.add(tuple(str(line.get(key)) for key in ("name", "digest", "attempt")))
    return told
