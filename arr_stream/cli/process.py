"""`arr-stream process`: a video in, an annotated video, records and a report out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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

_ASK, _READ, _WRITE, _RUN = "What to look for", "What to read", "What to write", "How to run"


def process(
    source: Annotated[str, typer.Argument(help="A video file, a folder or glob of pictures, or an animated GIF.")],
    query: Annotated[
        list[str] | None, typer.Option("--query", "-q", help="What to look for; may be repeated.", rich_help_panel=_ASK)
    ] = None,
    region: Annotated[
        str | None, typer.Option(help="Box x,y,w,h in pixels of the first frame.", rich_help_panel=_ASK)
    ] = None,
    region_at: Annotated[
        float, typer.Option(help="Time in seconds of the frame the box belongs to.", rich_help_panel=_ASK)
    ] = 0.0,
    example: Annotated[Path | None, typer.Option(help="Picture of what to look for.", rich_help_panel=_ASK)] = None,
    gaze: Annotated[
        Path | None, typer.Option(help="CSV of gaze samples: pts_seconds,x,y.", rich_help_panel=_ASK)
    ] = None,
    budget: Annotated[
        str | None, typer.Option(help="Tokens a frame, or a share of the grid such as 10%.", rich_help_panel=_ASK)
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Annotated video (MP4).", rich_help_panel=_WRITE)
    ] = None,
    view: Annotated[
        str,
        typer.Option(
            help="What the video shows: patches, relevance, clusters, flow, text or channel:NAME.",
            rich_help_panel=_WRITE,
        ),
    ] = "patches",
    patches: Annotated[
        Path | None, typer.Option(help="Records, one JSON line a frame.", rich_help_panel=_WRITE)
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="Folder for contact sheet, latency plot and summary.", rich_help_panel=_WRITE)
    ] = None,
    audio: Annotated[bool, typer.Option(help="Keep the source's sound.", rich_help_panel=_WRITE)] = True,
    force: Annotated[bool, typer.Option("--force", "-f", help="Overwrite files.", rich_help_panel=_WRITE)] = False,
    video_stream: Annotated[
        int | None, typer.Option(help="Which of several video streams, from 0.", rich_help_panel=_READ)
    ] = None,
    start: Annotated[float | None, typer.Option(help="Start at this second.", rich_help_panel=_READ)] = None,
    end: Annotated[float | None, typer.Option(help="End before this second.", rich_help_panel=_READ)] = None,
    stride: Annotated[int, typer.Option(min=1, help="Take every Nth frame.", rich_help_panel=_READ)] = 1,
    max_frames: Annotated[int | None, typer.Option(min=1, help="Stop after N frames.", rich_help_panel=_READ)] = None,
    preset: Annotated[Path | None, typer.Option(help="Settings from a TOML file.", rich_help_panel=_RUN)] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="key=value, over the preset.", rich_help_panel=_RUN)
    ] = None,
    clip_model: Annotated[
        str | None,
        typer.Option(
            help="Understand words with CLIP: `tiny`, NAME:PRETRAINED or a checkpoint (`arr-stream models list`).",
            rich_help_panel=_RUN,
        ),
    ] = None,
    sam_checkpoint: Annotated[
        Path | None, typer.Option(help="Regions from SAM, with these weights.", rich_help_panel=_RUN)
    ] = None,
    download: Annotated[
        bool, typer.Option("--download", help="Fetch weights that are missing.", rich_help_panel=_RUN)
    ] = False,
    realtime: Annotated[
        bool, typer.Option("--realtime", help="Play at the source's own speed.", rich_help_panel=_RUN)
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Say nothing but errors.", rich_help_panel=_RUN)] = False,
    log_json: Annotated[bool, typer.Option("--log-json", help="Progress as JSON lines.", rich_help_panel=_RUN)] = False,
) -> None:
    """Choose the cells of every frame and write what was asked for.

    Precedence of settings: options and --set, then the preset, then the defaults (`arr-stream settings`).
    A name that begins with a dash goes after `--`.
    """
    settings = Settings.load(preset, overrides or ()).with_values(
        _chosen(budget=budget, clip_model=clip_model, sam_checkpoint=sam_checkpoint, download=download)
    )
    if region_at and region is None:
        raise InvalidSetting("--region-at without --region", remedy="give --region x,y,w,h as well")

    import arr_stream
    from arr_stream.runtime import stop_on_signals

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


def _chosen(
    *, budget: str | None, clip_model: str | None, sam_checkpoint: Path | None, download: bool
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
    return values
