"""`arr-stream batch`: many videos into one folder, by several workers, resumable at any point."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from arr_stream.cli.batch_progress import batch_reporting, print_plan, print_summary
from arr_stream.cli.console import counted, interrupted
from arr_stream.cli.options import (
    READ,
    WRITE,
    But,
    Group,
    LookOptions,
    ReadOptions,
    SettingsOptions,
    TellOptions,
    grouped,
    needs,
)
from arr_stream.cli.running import stop_on_signals
from arr_stream.errors import BatchIncomplete, InvalidSetting, SourceDamaged, SourceNotFound
from arr_stream.extras import need

if TYPE_CHECKING:
    from arr_stream.batch.coordinator import BatchResult
    from arr_stream.batch.engine import WorkerEngine
    from arr_stream.batch.job import JobOptions
    from arr_stream.config import Settings

BATCH = "How to go about it"

_ENGINES = ("local", "ray")


@dataclass(frozen=True)
class InputOptions(Group):
    """Options for the inputs."""

    panel: ClassVar = READ
    lists: Annotated[
        list[str] | None, typer.Option("--list", help="File with one input a line; - for standard input.")
    ] = None
    recursive: Annotated[bool, typer.Option("--recursive", "-r", help="Search folders within folders.")] = False
    storage: Annotated[list[str] | None, typer.Option(help="key=value for fsspec, such as endpoint_url.")] = None

    def for_fsspec(self) -> dict[str, Any]:
        """Return the storage options for fsspec.

        Raises:
            InvalidSetting: An option is not key=value.
        """
        values: dict[str, Any] = {}
        for text in self.storage or ():
            key, sign, value = text.partition("=")
            if not sign or not key.strip():
                raise InvalidSetting(f"--storage {text!r} has no '='", remedy="write --storage key=value")
            values[key.strip()] = value
        return values


@dataclass(frozen=True)
class OutputOptions(Group):
    """Options for the files written for every input."""

    panel: ClassVar = WRITE
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for everything.")] = Path("batch")
    video: Annotated[bool, typer.Option(help="Write annotated videos.")] = False
    view: Annotated[str, typer.Option(help="What the videos show, as for `process`.")] = "patches"
    report: Annotated[bool, typer.Option(help="Write reports.")] = False
    audio: Annotated[bool, typer.Option(help="Keep the sound of the sources.")] = True

    def check(self) -> None:
        """Check the options before anything is made.

        Raises:
            InvalidSetting: There is no such view.
        """
        if self.video:
            from arr_stream.draw.views import check_view

            check_view(self.view)


@dataclass(frozen=True)
class EngineOptions(Group):
    """Options for the workers and their engine."""

    panel: ClassVar = BATCH
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", "-j", min=1, help="Files at once; half of the cores, or what a cluster has."),
    ] = None
    engine: Annotated[str, typer.Option(help="Who works: local (processes) or ray (a cluster).")] = "local"
    ray_address: Annotated[str | None, typer.Option(help="A Ray cluster, instead of one for this run.")] = None
    ray_cpus: Annotated[int | None, typer.Option(min=1, help="Cores of a worker on Ray; an equal share.")] = None
    ray_gpus: Annotated[float | None, typer.Option(min=0.0, help="GPUs of a worker on Ray, or its share of one.")] = (
        None
    )
    stall: Annotated[
        float,
        typer.Option(min=0.0, help="Seconds without a frame after which a worker is replaced; 0: never."),
    ] = 0.0

    def __post_init__(self) -> None:
        if self.engine not in _ENGINES:
            raise InvalidSetting(f"--engine {self.engine!r} is not known", remedy=f"choose from {', '.join(_ENGINES)}")
        if self.engine != "ray":
            on_ray = {"--ray-address": self.ray_address, "--ray-cpus": self.ray_cpus, "--ray-gpus": self.ray_gpus}
            needs("--engine ray", {option: value is not None for option, value in on_ray.items()})

    def make(self, asked: JobOptions, files: int, inherited: Sequence[int]) -> WorkerEngine:
        """Return the engine; the signature is that of `MakeEngine`."""
        if self.engine == "ray":
            from arr_stream.batch.ray_engine import RayEngine

            return RayEngine(
                asked,
                jobs=self.jobs,
                files=files,
                address=self.ray_address,
                cpus_per_worker=self.ray_cpus,
                gpus_per_worker=self.ray_gpus,
                stall_seconds=self.stall,
            )
        from arr_stream.batch.local import LocalEngine
        from arr_stream.processes import usable_cores

        workers = min(files, self.jobs or max(1, usable_cores() // 2))
        return LocalEngine(asked, jobs=workers, inherited=inherited, stall_seconds=self.stall)


@dataclass(frozen=True)
class BatchOptions(Group):
    """Options for resuming a batch and for failures."""

    panel: ClassVar = BATCH
    retries: Annotated[int, typer.Option(min=0, help="Further attempts, where one may go better.")] = 2
    resume: Annotated[
        bool | None,
        typer.Option(
            "--resume/--fresh",
            help="Go on with a batch that must be there, or start over; neither: go on if there is one.",
        ),
    ] = None
    force: Annotated[bool, typer.Option("--force", "-f", help="Do files again that were done otherwise.")] = False
    fail_fast: Annotated[bool, typer.Option("--fail-fast", help="End with the first file that fails.")] = False
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done.")] = False


@grouped
def batch(
    given: InputOptions,
    read: Annotated[ReadOptions, But("video_stream")],
    look: Annotated[LookOptions, But("gaze", "mask")],
    write: OutputOptions,
    chosen: SettingsOptions,
    workers: EngineOptions,
    how: BatchOptions,
    tell: TellOptions,
    inputs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[INPUT]...", help="Files, folders, globs, addresses such as s3://..., or @LIST."),
    ] = None,
) -> None:
    """Process many videos in parallel; run the same command again to resume.

    A file that fails does not stop the others: errors/NAME.json says why, and the exit code is 100. It is 15 if all are
    done, but some are damaged.
    """
    settings = chosen.load(look)
    from arr_stream.batch.inputs import describe_passed_over, expand

    asked = _job_options(given, read, look, write, settings)
    if not (inputs or given.lists):
        raise SourceNotFound("no input was given", remedy="give files, folders, globs, or --list FILE")
    look.queries()
    write.check()
    if workers.engine == "ray":
        need("ray", "--engine ray")
    passed_over: list[Path] = []
    sources = expand(
        inputs or [],
        lists=given.lists or [],
        recursive=given.recursive,
        storage=asked.storage,
        leave_out=Path(asked.folder),
        passed_over=passed_over,
    )
    if not sources:
        raise SourceNotFound("no input is left to do", remedy="the output folder is not searched for inputs")
    notices = [f"not processed: {describe_passed_over(passed_over)}; name such files by a glob"] if passed_over else []
    if how.dry_run:
        from arr_stream.batch.plan import make_plan

        print_plan(make_plan(sources, asked, resume=how.resume, force=how.force), notices)
        return
    if settings.models.download:
        # Here, once: otherwise every worker would download them.
        from arr_stream.cli.models import fetch_needed

        fetch_needed(settings)
    _finish(_run(sources, asked, workers, how, tell, notices))


def _job_options(
    given: InputOptions, read: ReadOptions, look: LookOptions, write: OutputOptions, settings: Settings
) -> JobOptions:
    from arr_stream.batch.job import JobOptions

    return JobOptions(
        folder=str(write.output.absolute()),
        settings=settings.model_dump(mode="json"),
        queries=tuple(look.query or ()),
        region=look.region,
        region_at_seconds=look.region_at,
        example=str(look.example.absolute()) if look.example is not None else None,
        video=write.video,
        view=write.view,
        report=write.report,
        audio=write.audio,
        storage=given.for_fsspec(),
        **read.span,
    )


def _run(
    sources: Sequence[str],
    asked: JobOptions,
    workers: EngineOptions,
    how: BatchOptions,
    tell: TellOptions,
    notices: Sequence[str],
) -> BatchResult:
    from arr_stream.batch.batch import opened, run_batch

    with (
        stop_on_signals(hangup=True) as stop,
        opened(sources, asked, resume=how.resume, force=how.force) as (plan, lock),
        batch_reporting(len(plan.to_do), quiet=tell.quiet, log_json=tell.log_json) as reporter,
    ):
        for notice in (*notices, *plan.notices):
            reporter.notice(notice)
        result = run_batch(
            plan,
            lock,
            workers.make,
            engine_name=workers.engine,
            retries=how.retries,
            fail_fast=how.fail_fast,
            stop=stop,
            watch=reporter.hear,
        )
    if not tell.quiet:
        print_summary(result, log_json=tell.log_json)
    return result


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
            frames_read=result.frames,
            remedy=f"what could be read is kept; see {result.plan.layout.summary}",
        )
