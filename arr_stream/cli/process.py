"""`arr-stream process`: a video in, an annotated video, records and a report out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from arr_stream.cli import options
from arr_stream.cli.console import reporting
from arr_stream.cli.models import fetch_needed
from arr_stream.cli.running import (
    Amortised,
    check_outputs,
    finish,
    last_word,
    make_consumers,
    make_queries,
    run_reported,
)
from arr_stream.config import Settings
from arr_stream.errors import InvalidSetting


def process(
    source: options.Source,
    query: Annotated[
        list[str] | None,
        typer.Option("--query", "-q", help="What to look for; may be repeated.", rich_help_panel=options.LOOK),
    ] = None,
    region: options.Region = None,
    region_at: options.RegionAt = 0.0,
    example: options.Example = None,
    gaze: Annotated[
        Path | None, typer.Option(help="CSV of gaze samples: pts_seconds,x,y.", rich_help_panel=options.LOOK)
    ] = None,
    budget: options.Budget = None,
    output: options.Output = None,
    view: Annotated[
        str,
        typer.Option(
            help="What the video shows: patches, relevance, clusters, flow, text or channel:NAME.",
            rich_help_panel=options.WRITE,
        ),
    ] = "patches",
    patches: Annotated[
        Path | None, typer.Option(help="Records, one JSON line a frame.", rich_help_panel=options.WRITE)
    ] = None,
    report: options.Report = None,
    audio: Annotated[bool, typer.Option(help="Keep the source's sound.", rich_help_panel=options.WRITE)] = True,
    force: options.Force = False,
    video_stream: options.VideoStream = None,
    start: options.Start = None,
    end: options.End = None,
    stride: options.Stride = 1,
    max_frames: options.MaxFrames = None,
    sandbox: options.Sandbox = False,
    preset: options.Preset = None,
    overrides: options.Overrides = None,
    clip_model: options.ClipModel = None,
    sam_checkpoint: Annotated[
        Path | None, typer.Option(help="Regions from SAM, with these weights.", rich_help_panel=options.RUN)
    ] = None,
    download: options.Download = False,
    realtime: options.Realtime = False,
    quiet: options.Quiet = False,
    log_json: options.LogJson = False,
) -> None:
    """Choose the cells of every frame and write what was asked for.

    Precedence of settings: options and --set, then the preset, then the defaults (`arr-stream settings`).
    A name that begins with a dash goes after `--`.
    """
    settings = Settings.load(preset, overrides or ()).with_values(
        chosen_settings(
            budget=budget,
            clip_model=clip_model,
            sam_checkpoint=sam_checkpoint,
            download=download,
            sandbox=sandbox,
        )
    )
    if region_at and region is None:
        raise InvalidSetting("--region-at without --region", remedy="give --region x,y,w,h as well")

    import arr_stream
    from arr_stream.run import stop_on_signals

    check_outputs(source, output=output, patches=patches, view=view, force=force)
    fetch_needed(settings)
    stream = arr_stream.open(
        source,
        queries=make_queries(query or [], region, region_at, example),
        settings=settings,
        gaze_csv=gaze,
        realtime=realtime,
        video_stream=video_stream,
        start_seconds=start,
        end_seconds=end,
        stride=stride,
        max_frames=max_frames,
    )
    with stream, reporting(stream.source.info.num_frames, quiet=quiet, log_json=log_json) as reporter:
        for notice in stream.notices:
            reporter.notice(notice)
        consumers = make_consumers(
            stream, output=output, report=report, patches=patches, view=view, audio=audio, force=force
        )
        amortised = Amortised()
        with stop_on_signals() as stop:
            result = run_reported(stream, consumers, reporter, amortised, stop=stop)
        written = [path for path in (output, patches, report) if path is not None and path.exists()]
        if result.frames:
            hint = "" if written else "; nothing written (see -o, --patches)"
            reporter.done(last_word(result, written, amortised) + hint)
    finish(result)


def chosen_settings(
    *, budget: str | None, clip_model: str | None, sam_checkpoint: Path | None, download: bool, sandbox: bool
) -> dict[str, object]:
    """The settings behind the options that were given."""
    values: dict[str, object] = {}
    if budget is not None:
        values["selection.budget"] = budget
    if clip_model is not None:
        values |= {"keyframes.embeddings": "clip", "clip.model": clip_model}
    if sam_checkpoint is not None:
        values |= {"keyframes.clusters": "sam", "sam.checkpoint": str(sam_checkpoint)}
    if download:
        values["models.download"] = True
    if sandbox:
        values["source.sandbox"] = True
    return values
