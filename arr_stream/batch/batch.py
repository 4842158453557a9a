"""A batch from beginning to end: lock, journal, engine, summary."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from arr_stream.batch.coordinator import BatchResult, BatchWatcher, Coordinator
from arr_stream.batch.job import Engine, JobOptions
from arr_stream.batch.journal import FolderLock, Journal, read_journal, read_past
from arr_stream.batch.layout import Layout, write_json
from arr_stream.batch.options import public_options
from arr_stream.batch.plan import Plan, clear_work, find_past, make_plan, start_over, versions
from arr_stream.batch.summary import Summary
from arr_stream.consumers.base import redact_url
from arr_stream.errors import BatchDiffers, OutputError

MakeEngine = Callable[[JobOptions, int, Sequence[int]], Engine]
"""Makes an engine for options, the number of files to do, and open files that its workers are to inherit."""


@contextlib.contextmanager
def opened(
    sources: Sequence[str], options: JobOptions, *, resume: bool | None = None, force: bool = False
) -> Iterator[tuple[Plan, Journal, FolderLock]]:
    """The output folder, locked, with what is to be done there; the journal knows of every file.

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
        if resume is False:
            start_over(layout, _names(layout))
        clear_work(layout)
        plan = make_plan(sources, options, resume=resume, force=force)
        journal = Journal(layout.manifest)
        try:
            _write_down(plan, journal)
            yield plan, journal, lock
        finally:
            journal.close()
            clear_work(layout)


def run_batch(
    plan: Plan,
    journal: Journal,
    lock: FolderLock,
    make_engine: MakeEngine,
    *,
    engine_name: str,
    retries: int,
    fail_fast: bool,
    stop: threading.Event,
    watch: BatchWatcher,
) -> tuple[BatchResult, Summary]:
    """Do what is to be done, and write down what it came to; the engine is closed in any case.

    Raises:
        ArrStreamError: No engine can be had.
    """
    to_do = plan.to_do
    jobs = 0
    coordinator = Coordinator(plan.layout, journal, retries=retries, fail_fast=fail_fast, watch=watch)
    if to_do:
        engine = make_engine(plan.options, len(to_do), (lock.descriptor,))
        try:
            jobs = engine.slots
            journal.append("run", engine=engine_name, jobs=jobs, files=len(plan.files), to_do=len(to_do))
            result = coordinator.run(engine, to_do, stop)
        finally:
            engine.close()
    else:
        result = BatchResult()
    summary = Summary.of(plan, result)
    try:
        journal.append("ended", reason=result.reason)
        write_json(plan.layout.summary, summary.as_json(engine=engine_name, jobs=jobs))
    except OutputError as exc:
        result.error = result.error or exc
    return result, summary


def _names(layout: Layout) -> list[str]:
    """Names that the journal knows, as far as it can be read."""
    try:
        return list(read_past(layout.manifest).names.values())
    except BatchDiffers:
        return []


def _write_down(plan: Plan, journal: Journal) -> None:
    """Let the journal know what is asked, of which files, and what it missed of earlier runs."""
    if not plan.same_options:
        journal.begin(plan.public, plan.digest, versions())
    names = [
        (source, file.job.name) for file in plan.files if (source := redact_url(file.job.source)) not in plan.past.names
    ]
    journal.add_jobs(names)
    told = {line.get("name") for line in read_journal(journal.path) if line.get("type") == "finished"}
    for file in plan.kept:
        if file.done is not None and file.job.name not in told:
            done = file.done
            journal.append(
                "finished",
                name=done.name,
                frames=done.frames,
                seconds=done.seconds,
                digest=done.digest,
                attempt=done.attempt,
                found=True,
            )
