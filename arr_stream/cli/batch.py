"""`arr-stream batch`: many videos into one folder, by several workers, resumable at any point."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from arr_stream.cli import options
from arr_stream.cli.batch_progress import batch_reporting, print_plan, print_summary
from arr_stream.cli.console import INTERRUPTED_EXIT_CODE, err
from arr_stream.cli.running import counted
from arr_stream.config import Settings
from arr_stream.errors import BackendUnavailable, BatchIncomplete, InvalidSetting, SourceNotFound

if TYPE_CHECKING:
    from arr_stream.batch.batch import MakeEngine
    from arr_stream.batch.coordinator import BatchResult, Summary
    from arr_stream.batch.job import Engine, JobOptions

BATCH = "How to go about it"

_FORMATS = ("jsonl", "parquet")
_ENGINES = ("local", "ray")
_OnRay = tuple[str | None, int | None, float | None]
"""Address, cores and GPUs of a worker."""


def batch(
    inputs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[INPUT]...", help="Files, folders, globs, addresses such as s3://..., or @LIST."),
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for everything.", rich_help_panel=options.WRITE)
    ] = Path("batch"),
    lists: Annotated[
        list[str] | None,
        typer.Option("--list", help="File with one input a line; - for standard input.", rich_help_panel=options.READ),
    ] = None,
    recursive: Annotated[
        bool, typer.Option("--recursive", "-r", help="Search folders within folders.", rich_help_panel=options.READ)
    ] = False,
    storage: Annotated[
        list[str] | None,
        typer.Option(help="key=value for fsspec, such as endpoint_url.", rich_help_panel=options.READ),
    ] = None,
    start: options.Start = None,
    end: options.End = None,
    stride: options.Stride = 1,
    max_frames: options.MaxFrames = None,
    query: Annotated[
        list[str] | None,
        typer.Option("--query", "-q", help="What to look for; may be repeated.", rich_help_panel=options.LOOK),
    ] = None,
    region: options.Region = None,
    region_at: options.RegionAt = 0.0,
    example: options.Example = None,
    budget: options.Budget = None,
    formats: Annotated[
        list[str] | None,
        typer.Option("--format", help="Of the records: jsonl, parquet, or both.", rich_help_panel=options.WRITE),
    ] = None,
    video: Annotated[bool, typer.Option(help="Write annotated videos.", rich_help_panel=options.WRITE)] = False,
    view: Annotated[
        str, typer.Option(help="What the videos show, as for `process`.", rich_help_panel=options.WRITE)
    ] = "patches",
    report: Annotated[bool, typer.Option(help="Write reports.", rich_help_panel=options.WRITE)] = False,
    audio: Annotated[bool, typer.Option(help="Keep the sound of the sources.", rich_help_panel=options.WRITE)] = True,
    preset: options.Preset = None,
    overrides: options.Overrides = None,
    clip_model: options.ClipModel = None,
    sam_checkpoint: Annotated[
        Path | None, typer.Option(help="Regions from SAM, with these weights.", rich_help_panel=options.RUN)
    ] = None,
    download: options.Download = False,
    sandbox: options.Sandbox = False,
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs",
            "-j",
            min=1,
            help="Files at once; half of the cores, or what a cluster has.",
            rich_help_panel=BATCH,
        ),
    ] = None,
    engine: Annotated[
        str, typer.Option(help="Who works: local (processes) or ray (a cluster).", rich_help_panel=BATCH)
    ] = "local",
    ray_address: Annotated[
        str | None, typer.Option(help="A Ray cluster, instead of one for this run.", rich_help_panel=BATCH)
    ] = None,
    ray_cpus: Annotated[
        int | None,
        typer.Option(min=1, help="Cores of a worker on Ray; an equal share.", rich_help_panel=BATCH),
    ] = None,
    ray_gpus: Annotated[
        float | None,
        typer.Option(min=0.0, help="GPUs of a worker on Ray, or its share of one.", rich_help_panel=BATCH),
    ] = None,
    retries: Annotated[
        int, typer.Option(min=0, help="Further attempts, where one may go better.", rich_help_panel=BATCH)
    ] = 2,
    stall: Annotated[
        float,
        typer.Option(
            min=0.0,
            help="Seconds without a frame after which a worker is replaced; 0: never.",
            rich_help_panel=BATCH,
        ),
    ] = 0.0,
    resume: Annotated[
        bool | None,
        typer.Option(
            "--resume/--fresh",
            help="Go on with a batch that must be there, or start over; neither: go on if there is one.",
            rich_help_panel=BATCH,
        ),
    ] = None,
    force: Annotated[
        bool,
        typer.Option("--force", "-f", help="Do files again that were done otherwise.", rich_help_panel=BATCH),
    ] = False,
    fail_fast: Annotated[
        bool, typer.Option("--fail-fast", help="End with the first file that fails.", rich_help_panel=BATCH)
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done.", rich_help_panel=BATCH)] = False,
    quiet: options.Quiet = False,
    log_json: options.LogJson = False,
) -> None:
    """Do many videos, several at a time; the same command goes on where it was ended, however it was.

    A file that fails does not stop the others: errors/NAME.json says why, and the exit code is 100.
    """
    settings = _settings(
        preset,
        overrides,
        budget=budget,
        clip_model=clip_model,
        sam_checkpoint=sam_checkpoint,
        download=download,
        sandbox=sandbox,
    )
    from arr_stream.batch.inputs import expand
    from arr_stream.batch.job import JobOptions

    folder = output.absolute()
    asked = JobOptions(
        folder=str(folder),
        settings=settings.model_dump(mode="json"),
        queries=tuple(query or ()),
        region=region,
        region_at_seconds=region_at,
        example=str(example.absolute()) if example is not None else None,
        formats=cast("Any", _formats(formats)),
        video=video,
        view=view,
        report=report,
        audio=audio,
        start_seconds=start,
        end_seconds=end,
        stride=stride,
        max_frames=max_frames,
        storage=_storage(storage),
    )
    _check(asked, engine, (ray_address, ray_cpus, ray_gpus), inputs or lists)
    sources = expand(inputs or [], lists=lists or [], recursive=recursive, storage=asked.storage, leave_out=folder)
    if not sources:
        raise SourceNotFound("no input is left to do", remedy="the output folder is not searched for inputs")
    if dry_run:
        from arr_stream.batch.plan import make_plan

        print_plan(make_plan(sources, asked, resume=resume, force=force))
        return
    _fetch(settings)
    result, summary = _run(
        sources,
        asked,
        _engine_maker(engine, jobs, (ray_address, ray_cpus, ray_gpus), stall),
        engine=engine,
        retries=retries,
        resume=resume,
        force=force,
        fail_fast=fail_fast,
        quiet=quiet,
        log_json=log_json,
    )
    _finish(result, summary, folder)


def _run(
    sources: Sequence[str],
    asked: JobOptions,
    make_engine: MakeEngine,
    *,
    engine: str,
    retries: int,
    resume: bool | None,
    force: bool,
    fail_fast: bool,
    quiet: bool,
    log_json: bool,
) -> tuple[BatchResult, Summary]:
    from arr_stream.batch.batch import opened, run_batch

    with (
        _stopping() as stop,
        opened(sources, asked, resume=resume, force=force) as (plan, lock),
        batch_reporting(plan, quiet=quiet, log_json=log_json) as reporter,
    ):
        for notice in plan.notices:
            reporter.notice(notice)
        result, summary = run_batch(
            plan,
            lock,
            make_engine,
            engine_name=engine,
            retries=retries,
            fail_fast=fail_fast,
            stop=stop,
            watch=reporter,
            fresh=resume is False,
        )
    if not quiet:
        print_summary(summary, plan.layout, log_json=log_json)
    return result, summary


def _finish(result: BatchResult, summary: Summary, folder: Path) -> None:
    """Leave with what the batch came to.

    Raises:
        ArrStreamError: No file can be done any more, or some were given up.
    """
    if result.error is not None:
        raise result.error
    if result.reason == "interrupted":
        err.print("arr-stream: interrupted", markup=False)
        raise typer.Exit(INTERRUPTED_EXIT_CODE)
    if summary.failed:
        raise BatchIncomplete(
            f"{len(summary.failed)} of {counted(summary.files, 'file')} failed",
            remedy=f"see {folder / 'errors'}; the same command tries them again",
        )


def _settings(preset: Path | None, overrides: list[str] | None, **chosen: Any) -> Settings:
    from arr_stream.cli.process import chosen_settings

    return Settings.load(preset, overrides or ()).with_values(chosen_settings(**chosen))


def _formats(given: list[str] | None) -> tuple[str, ...]:
    """Formats of the records, each once.

    Raises:
        InvalidSetting: One that does not exist.
    """
    names = [name.strip().lower() for text in given or ["jsonl"] for name in text.split(",") if name.strip()]
    for name in names:
        if name not in _FORMATS:
            raise InvalidSetting(f"--format {name!r} is not known", remedy=f"choose from {', '.join(_FORMATS)}")
    return tuple(dict.fromkeys(names))


def _storage(given: list[str] | None) -> dict[str, Any]:
    """What fsspec is told.

    Raises:
        InvalidSetting: Not key=value.
    """
    values: dict[str, Any] = {}
    for text in given or ():
        key, sign, value = text.partition("=")
        if not sign or not key.strip():
            raise InvalidSetting(f"--storage {text!r} has no '='", remedy="write --storage key=value")
        values[key.strip()] = value
    return values


def _check(asked: JobOptions, engine: str, on_ray: _OnRay, inputs: Sequence[str] | None) -> None:
    """Say at once, before anything is made, what cannot be.

    Raises:
        ArrStreamError: One of its kinds; see `arr_stream.errors`.
    """
    from arr_stream.cli.running import make_queries

    if not inputs:
        raise SourceNotFound("no input was given", remedy="give files, folders, globs, or --list FILE")
    if engine not in _ENGINES:
        raise InvalidSetting(f"--engine {engine!r} is not known", remedy=f"choose from {', '.join(_ENGINES)}")
    for option, value in zip(("--ray-address", "--ray-cpus", "--ray-gpus"), on_ray, strict=True):
        if value is not None and engine != "ray":
            raise InvalidSetting(f"{option} without --engine ray", remedy="give --engine ray as well")
    if asked.region_at_seconds and asked.region is None:
        raise InvalidSetting("--region-at without --region", remedy="give --region x,y,w,h as well")
    example = Path(asked.example) if asked.example is not None else None
    make_queries(asked.queries, asked.region, asked.region_at_seconds, example)
    if asked.video:
        from arr_stream.draw.views import check_view

        check_view(asked.view)
    if "parquet" in asked.formats:
        _require("pyarrow", "--format parquet", "parquet")
    if engine == "ray":
        _require("ray", "--engine ray", "ray")


def _require(package: str, what: str, extra: str) -> None:
    from importlib.util import find_spec

    if find_spec(package) is None:
        raise BackendUnavailable(f"{what} needs {package}", remedy=f"run `pip install 'arr-stream[{extra}]'`")


def _fetch(settings: Settings) -> None:
    """Bring weights once and here, since every worker would fetch them."""
    if settings.models.download:
        from arr_stream.cli.models import fetch_needed

        fetch_needed(settings)


def _engine_maker(engine: str, jobs: int | None, on_ray: _OnRay, stall_seconds: float) -> MakeEngine:
    def local(asked: JobOptions, files: int, inherited: Sequence[int]) -> Engine:
        from arr_stream.batch.local import LocalEngine, usable_cores

        workers = min(files, jobs or max(1, usable_cores() // 2))

        return LocalEngine(asked, jobs=workers, inherited=inherited, stall_seconds=stall_seconds)

    def ray(asked: JobOptions, files: int, inherited: Sequence[int]) -> Engine:
        from arr_stream.batch.ray_engine import RayEngine

        address, cpus, gpus = on_ray
        return RayEngine(
            asked,
            jobs=jobs,
            files=files,
            address=address,
            cpus_per_worker=cpus,
            gpus_per_worker=gpus,
            stall_seconds=stall_seconds,
        )

    return ray if engine == "ray" else local


@contextmanager
def _stopping() -> Iterator[threading.Event]:
    """An event that the first Ctrl-C, SIGTERM or SIGHUP sets; a second Ctrl-C interrupts at once."""
    stop = threading.Event()

    def handle(number: int, _frame: object) -> None:
        if stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.set()

    numbers = [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
