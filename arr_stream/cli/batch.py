"""`arr-stream batch`: many videos into one folder, by several workers, resumable at any point."""

from __future__ import annotations

import os
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from arr_stream.cli import options
from arr_stream.cli.console import Log, Reporter, counted, interrupted, print_line, reporting, say_json
from arr_stream.cli.running import stop_on_signals
from arr_stream.errors import BatchIncomplete, InvalidSetting, SourceDamaged, SourceNotFound
from arr_stream.extras import need

if TYPE_CHECKING:
    from arr_stream.batch.batch import BatchResult
    from arr_stream.batch.engine import WorkerEngine
    from arr_stream.batch.job import Event

_BATCH = "Workers"
"""Panel of the help."""


class Engine(StrEnum):
    """Values of `--engine`."""

    LOCAL, RAY = "local", "ray"


def batch(
    inputs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[INPUT]...",
            help="Files, folders, globs ('FOLDER/**/*.mp4' for all below a folder), addresses such as s3://..., or "
            "@LIST, a file with one a line (@- for standard input).",
        ),
    ] = None,
    query: options.Query = None,
    region: Annotated[
        str | None, options.option("Box x,y,w,h in pixels of each first frame, or x,y,w,h@SECONDS.", options.LOOK)
    ] = None,
    example: options.Example = None,
    budget: options.Budget = None,
    storage: Annotated[
        list[str] | None, options.option("key=value for fsspec, such as endpoint_url.", options.READ)
    ] = None,
    start: options.Start = None,
    end: options.End = None,
    max_frames: options.MaxFrames = None,
    output: Annotated[Path, options.option("Output folder.", options.WRITE, "--output", "-o")] = Path("batch"),
    video: Annotated[bool, options.option("Write annotated videos.", options.WRITE, "--video")] = False,
    report: Annotated[bool, options.option("Write reports.", options.WRITE, "--report")] = False,
    force: Annotated[
        bool, options.option("Reprocess files that were processed with other settings.", options.WRITE, "--force", "-f")
    ] = False,
    jobs: Annotated[
        int | None,
        options.option(
            "Files in parallel; by default half of the cores, or all of a cluster.", _BATCH, "--jobs", "-j", min=1
        ),
    ] = None,
    engine: Annotated[
        Engine,
        options.option("Processes of this machine, or Ray (the cluster of RAY_ADDRESS, if set).", _BATCH),
    ] = Engine.LOCAL,
    retries: Annotated[
        int, options.option("Further attempts after a failure that may be temporary.", _BATCH, min=0)
    ] = 2,
    preset: options.Preset = None,
    overrides: options.Overrides = None,
    log: options.LogOption = Log.TEXT,
) -> None:
    """Process many videos in parallel; run the same command again to resume.

    A file that fails does not stop the others: errors/NAME.json says why, and the exit code is 100. It is 15 if all are
    done, but some are damaged.
    """
    settings = options.load_settings(preset, overrides, budget=budget)

    from arr_stream.batch.job import JobOptions
    from arr_stream.batch.plan import expand
    from arr_stream.relevance.query import make_queries

    asked = JobOptions(
        folder=str(output.absolute()),
        settings=settings.model_dump(mode="json"),
        queries=tuple(query or ()),
        region=region,
        example=str(example.absolute()) if example is not None else None,
        video=video,
        report=report,
        storage=_for_fsspec(storage or ()),
        start_seconds=start,
        end_seconds=end,
        max_frames=max_frames,
    )
    if not inputs:
        raise SourceNotFound("no input was given", remedy="give files, folders, globs, or @LIST")
    make_queries(asked.queries, region, example)  # refuses malformed ones before the first job
    if video:
        from arr_stream.draw.views import check_view

        check_view(settings.video.view)
    if engine is Engine.RAY:
        need("ray", "--engine ray")
    sources = expand(inputs, storage=asked.storage, leave_out=Path(asked.folder))
    if not sources:
        raise SourceNotFound("no input is left to do", remedy="the output folder is not searched for inputs")
    if settings.models.download:
        # Here, once: otherwise every worker would download them.
        from arr_stream.cli.models import fetch_needed

        fetch_needed(settings)

    from arr_stream.batch.batch import opened, run_batch

    def make_engine(files: int, inherited: Sequence[int]) -> WorkerEngine:
        if engine is Engine.RAY:
            from arr_stream.batch.ray_engine import RayEngine

            return RayEngine(asked, jobs=jobs, files=files, address=os.environ.get("RAY_ADDRESS") or None)
        from arr_stream.batch.engine import LocalEngine
        from arr_stream.processes import usable_cores

        return LocalEngine(asked, jobs=min(files, jobs or max(1, usable_cores() // 2)), inherited=inherited)

    with (
        stop_on_signals(hangup=True) as stop,
        opened(sources, asked, force=force) as (plan, lock),
        reporting(len(plan.to_do), log) as reporter,
    ):
        for notice in plan.notices:
            reporter.notice(notice)
        result = run_batch(
            plan,
            lock,
            make_engine,
            engine_name=engine.value,
            retries=retries,
            stop=stop,
            watch=BatchReporter(reporter, len(plan.to_do)).hear,
        )
    if log is not Log.QUIET:
        _print_summary(result, log)
    _finish(result)


def _for_fsspec(storage: Sequence[str]) -> dict[str, Any]:
    """Return the storage options for fsspec.

    Raises:
        InvalidSetting: An option is not key=value.
    """
    values: dict[str, Any] = {}
    for text in storage:
        key, sign, value = text.partition("=")
        if not sign or not key.strip():
            raise InvalidSetting(f"--storage {text!r} has no '='", remedy="write --storage key=value")
        values[key.strip()] = value
    return values


def _finish(result: BatchResult) -> None:
    """Exit with the outcome of the batch.

    Raises:
        ArrStreamError: No file can be processed any more, the batch gave some files up, or some are damaged.
    """
    if result.error is not None:
        raise result.error
    if result.reason == "interrupted":
        raise interrupted()
    files, damaged = counted(len(result.plan.files), "file"), len(result.damaged)
    if result.failed:
        raise BatchIncomplete(
            f"{len(result.failed)} of {files} failed" + (f", and {damaged} are damaged" if damaged else ""),
            remedy=f"see {result.plan.layout.folder / 'errors'}; the same command tries them again",
        )
    if damaged:
        raise SourceDamaged(
            f"{damaged} of {files} {'is' if damaged == 1 else 'are'} damaged",
            remedy=f"the decodable frames are kept; see {result.plan.layout.summary}",
        )


class BatchReporter:
    """Listener of a batch that reports each finished file, with the total.

    Args:
        reporter: Prints the lines.
        to_do: Number of files.
    """

    def __init__(self, reporter: Reporter, to_do: int) -> None:
        self._reporter, self._to_do = reporter, to_do
        self._settled = 0

    def hear(self, event: Event) -> None:
        """Report an event of a file; text has lines for settled files only."""
        from arr_stream.batch.job import JobFailed, JobFinished, JobStarted

        reporter, name = self._reporter, event.attempt.job.name
        match event:
            case JobStarted() if reporter.log is Log.JSON:
                say_json(event="started", name=name, attempt=event.attempt.number, worker=event.worker)
            case JobFinished(done=done):
                figures = {"frames": done.frames, "seconds": done.seconds}
                fields = {**figures, "notices": list(done.notices), "damaged": done.damaged}
                line = self._settle(f"{name}: {counted(done.frames, 'frame')} in {done.seconds:.1f} s")
                reporter.tell(line, "finished", name=name, **fields)
                if reporter.log is not Log.JSON:
                    for notice in done.notices:
                        reporter.notice(f"{name}: {notice}")
                    if done.damaged is not None:
                        reporter.warning(f"{name}: damaged: {done.damaged}")
            case JobFailed():
                if event.again:
                    line = f"note: {name}: {event.kind}, another attempt follows: {event.message}"
                else:
                    line = self._settle(f"{name}: failed: {event.message}")
                reporter.tell(line, "failed", name=name, kind=event.kind, text=event.message, again=event.again)

    def _settle(self, line: str) -> str:
        """Count a file as done, and return the line about it."""
        self._settled += 1
        place = f"{self._settled}/{self._to_do}"
        self._reporter.move_bar(f"{place} files", self._settled, self._to_do)
        return f"{place} {line}{self._reporter.left(self._settled, self._to_do)}"


def _print_summary(result: BatchResult, log: Log) -> None:
    """Print the summary of a run to standard output, or log it as a JSON line."""
    counts = {
        "done": len(result.finished),
        "kept": len(result.plan.kept),
        "damaged": len(result.damaged),
        "failed": len(result.failed),
        "left": len(result.left),
        "frames": result.frames,
    }
    files = len(result.plan.files)
    if log is Log.JSON:
        say_json(event="done", reason=result.reason, files=files, **counts)
        return
    shown = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    print_line(f"{counted(files, 'file')}: {shown}; {result.seconds:.1f} s")
