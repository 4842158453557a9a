"""`arr-stream ask`: a question about a video, answered by a model that sees only the chosen cells."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated, Literal

import typer

from arr_stream.cli import options
from arr_stream.cli.answering import AnswerPrinter
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
    without_skipping,
)
from arr_stream.config import Settings
from arr_stream.errors import EmptyQuery, InvalidSetting

_ASK, _MODEL = "What to ask", "Which model"


def ask(
    source: options.Source,
    question: Annotated[str, typer.Argument(help="The question, in words.")],
    model: Annotated[
        str | None,
        typer.Option(help="Qwen3-VL: a hub name or a folder; with --endpoint its name there.", rich_help_panel=_MODEL),
    ] = None,
    endpoint: Annotated[
        str | None,
        typer.Option(help="An OpenAI-compatible server, such as http://127.0.0.1:8000/v1.", rich_help_panel=_MODEL),
    ] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda.", rich_help_panel=_MODEL)] = None,
    dtype: Annotated[
        str | None, typer.Option(help="auto, float32, bfloat16 or float16.", rich_help_panel=_MODEL)
    ] = None,
    quantize: Annotated[str | None, typer.Option(help="none, int8 or int4.", rich_help_panel=_MODEL)] = None,
    mode: Annotated[
        str | None, typer.Option(help="sparse, prune, halo or weight (docs/qwen3_vl.md).", rich_help_panel=_MODEL)
    ] = None,
    download: options.Download = False,
    every: Annotated[
        float | None, typer.Option(help="Answer every so many seconds of the video.", rich_help_panel=_ASK)
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Answer at the start and when the scene changes.", rich_help_panel=_ASK)
    ] = False,
    keep_dialogue: Annotated[
        bool, typer.Option("--keep-dialogue", help="Let the model remember its answers.", rich_help_panel=_ASK)
    ] = False,
    query: Annotated[
        list[str] | None,
        typer.Option("--query", "-q", help="What to look for, if not the question.", rich_help_panel=options.LOOK),
    ] = None,
    region: options.Region = None,
    region_at: options.RegionAt = 0.0,
    example: options.Example = None,
    budget: options.Budget = None,
    fps: Annotated[
        float | None, typer.Option(help="Frames a second that the model is shown.", rich_help_panel=_ASK)
    ] = None,
    output: options.Output = None,
    patches: Annotated[
        Path | None, typer.Option(help="Records, one JSON line a frame and an answer.", rich_help_panel=options.WRITE)
    ] = None,
    report: options.Report = None,
    force: options.Force = False,
    last: Annotated[
        float | None,
        typer.Option(help="Only the last so many seconds (of a pipe, the next).", rich_help_panel=options.READ),
    ] = None,
    video_stream: options.VideoStream = None,
    start: options.Start = None,
    end: options.End = None,
    stride: options.Stride = 1,
    max_frames: options.MaxFrames = None,
    sandbox: options.Sandbox = False,
    preset: options.Preset = None,
    overrides: options.Overrides = None,
    clip_model: options.ClipModel = None,
    realtime: options.Realtime = False,
    quiet: options.Quiet = False,
    log_json: options.LogJson = False,
) -> None:
    """Show a video to a model and ask it, at the end, every so often, or when the scene changes.

    The model sees the cells that the question makes relevant. Answers go to standard output.
    """
    _check_question(question)
    if every is not None and watch:
        raise InvalidSetting("--every and --watch", remedy="choose one of them")
    if region_at and region is None:
        raise InvalidSetting("--region-at without --region", remedy="give --region x,y,w,h as well")
    settings = Settings.load(preset, overrides or ()).with_values(
        _chosen(
            {
                "vlm.model": model,
                "vlm.endpoint": endpoint,
                "vlm.device": device,
                "vlm.dtype": dtype,
                "vlm.quantize": quantize,
                "vlm.mode": mode,
                "vlm.fps": fps,
                "vlm.keep_dialogue": keep_dialogue or None,
                "selection.budget": budget,
                "models.download": download or None,
                "source.sandbox": sandbox or None,
                "keyframes.embeddings": "clip" if clip_model is not None else None,
                "clip.model": clip_model,
            }
        )
    )
    settings, notices = without_skipping(settings)

    if settings.vlm.endpoint:
        _refuse_beside_a_server(device, dtype, quantize, mode, keep_dialogue, download)

    import arr_stream
    from arr_stream.plain_text import redact_url
    from arr_stream.records.provenance import Question
    from arr_stream.run import stop_on_signals
    from arr_stream.vlm import make_viewer
    from arr_stream.vlm.live_watcher import LiveWatcher
    from arr_stream.vlm.watcher import Plan, Watcher

    when: Literal["end", "every", "change"] = "every" if every is not None else "change" if watch else "end"
    plan = Plan(question, when) if every is None else Plan(question, when, every)
    check_outputs(source, output=output, patches=patches, view="patches", force=force)
    span = _span(source, settings, last=last, video_stream=video_stream, start=start, end=end)
    queries = make_queries([question] if query is None else query, region, region_at, example)
    fetch_needed(settings)
    with contextlib.ExitStack() as stack:
        stream = stack.enter_context(
            arr_stream.open(
                source,
                queries=queries,
                settings=settings,
                realtime=realtime,
                video_stream=video_stream,
                start_seconds=span[0],
                end_seconds=span[1],
                stride=stride,
                max_frames=max_frames,
            )
        )
        consumers = make_consumers(
            stream,
            output=output,
            report=report,
            patches=patches,
            view="patches",
            audio=True,
            force=force,
            question=Question(text=redact_url(question), when=when, every_seconds=every),
        )
        # Last, since it takes longest: whatever else is wrong has been said by now, and Ctrl-C still ends at once.
        viewer = make_viewer(settings)
        stack.callback(viewer.close)
        reporter = stack.enter_context(reporting(stream.source.info.num_frames, quiet=quiet, log_json=log_json))
        stop = stack.enter_context(stop_on_signals())
        for notice in (*notices, *stream.notices):
            reporter.notice(notice)
        printer = AnswerPrinter(reporter, with_time=when != "end")
        attend = stream.pipeline.attend if settings.vlm.feedback else None
        asking = Watcher(
            viewer,
            plan,
            fps=settings.vlm.fps,
            attend=None if realtime else attend,
            on_ask=printer.begin,
            on_text=printer.piece,
            on_answer=printer.answer,
            stop=stop,
        )
        live = LiveWatcher(asking, follow=stream.pipeline.follow, attend=attend) if realtime else None
        amortised = Amortised()
        result = run_reported(stream, consumers, reporter, amortised, stop=stop, watcher=live or asking)
        written = [path for path in (output, patches, report) if path is not None and path.exists()]
        if result.frames:
            reporter.done(last_word(result, written, amortised))
    finish(result)
    if asking.failure is not None and not asking.answered:
        raise asking.failure


def _chosen(values: dict[str, object]) -> dict[str, object]:
    """The settings behind the options that were given."""
    return {key: value for key, value in values.items() if value is not None}


def _check_question(question: str) -> None:
    if not question.strip():
        raise EmptyQuery("the question is empty", remedy='ask something: arr-stream ask VIDEO "question"')
    try:
        question.encode()
    except UnicodeEncodeError as exc:
        raise InvalidSetting("the question is not valid UTF-8", remedy="check the terminal's encoding") from exc


def _refuse_beside_a_server(*given: object) -> None:
    names = ("--device", "--dtype", "--quantize", "--mode", "--keep-dialogue", "--download")
    useless = [name for name, value in zip(names, given, strict=True) if value]
    if useless:
        raise InvalidSetting(f"{', '.join(useless)} beside --endpoint", remedy="leave it out: the server decides")


def _span(
    source: str,
    settings: Settings,
    *,
    last: float | None,
    video_stream: int | None,
    start: float | None,
    end: float | None,
) -> tuple[float | None, float | None]:
    """Start and end in seconds, with `--last` counted back from the end of the source.

    A pipe has no end to count from: its next seconds are taken instead.
    """
    if last is None:
        return start, end
    if not last > 0:
        raise InvalidSetting(f"--last {last:g}", remedy="give seconds above 0")
    if start is not None or end is not None:
        raise InvalidSetting("--last beside --start or --end", remedy="give one or the other")
    path = Path(source)
    if path.exists() and not path.is_file() and not path.is_dir():
        return None, last
    from arr_stream.sources import open_source

    opened = open_source(
        source,
        video_stream=video_stream,
        max_pixels=settings.source.max_pixels,
        sandbox=settings.sandbox if settings.source.sandbox else None,
    )
    with contextlib.closing(opened):
        duration = opened.info.duration_seconds
    if duration is None:
        raise InvalidSetting(f"--last: {opened.info.name} does not say how long it is", remedy="give --start or --end")
    return max(0.0, duration - last), None
