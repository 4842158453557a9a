"""`arr-stream ask`: a question about a video, answered by a model that sees only the chosen cells."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from arr_stream.cli.models import fetch_needed
from arr_stream.cli.options import (
    READ,
    But,
    LookOptions,
    OwnModelOptions,
    ReadOptions,
    Realtime,
    SettingsOptions,
    Source,
    TellOptions,
    WhenOptions,
    WriteOptions,
    grouped,
    without_skipping,
)
from arr_stream.cli.running import Figures, finish, last_word, make_watcher, run_told, stop_on_signals
from arr_stream.errors import EmptyQuery, InvalidSetting

if TYPE_CHECKING:
    from arr_stream.config import Settings


@dataclass(frozen=True)
class FeedOptions(WhenOptions):
    """Options for when the question is asked and which frames the model sees."""

    keep_dialogue: Annotated[bool, typer.Option("--keep-dialogue", help="Let the model remember its answers.")] = False
    fps: Annotated[float | None, typer.Option(help="Frames a second that the model is shown.")] = None

    def values(self) -> dict[str, object]:
        return {"vlm.fps": self.fps, "vlm.keep_dialogue": self.keep_dialogue or None}


@grouped
def ask(
    source: Source,
    question: Annotated[str, typer.Argument(help="The question, in words.")],
    model: OwnModelOptions,
    timing: FeedOptions,
    look: Annotated[LookOptions, But("gaze", query="What to look for, if not the question.")],
    write: Annotated[
        WriteOptions,
        But("view", "audio", patches="Records, one JSON line a frame and an answer; - for standard output."),
    ],
    read: ReadOptions,
    chosen: Annotated[SettingsOptions, But("sam_checkpoint")],
    tell: TellOptions,
    last: Annotated[
        float | None, typer.Option(help="Only the last so many seconds (of a pipe, the next).", rich_help_panel=READ)
    ] = None,
    realtime: Realtime = False,
) -> None:
    """Show a video to a model and ask it, at the end, every so often, or when the scene changes.

    The model sees the cells that the question makes relevant. Answers go to standard output.
    """
    _check_question(question)
    if not os.path.lexists(source) and os.path.lexists(question):
        raise InvalidSetting(
            f"{question}: the video comes first, then the question", remedy=f'arr-stream ask {question} "{source}"'
        )

    from arr_stream.config import TINY
    from arr_stream.vlm import TINY_LIMITS, answering, make_viewer

    settings, notices = without_skipping(answering(chosen.load(model, timing, look)))
    model.check(settings, {"--keep-dialogue": timing.keep_dialogue, "--download": chosen.download})

    import arr_stream
    from arr_stream.plain_text import redact_url
    from arr_stream.records.provenance import Question

    plan = timing.plan(question, "end")
    write.check(source)
    read = _counted_back(read, last, source, settings)
    queries = look.queries(question)
    fetch_needed(settings)
    with contextlib.ExitStack() as stack:
        stream = arr_stream.open(
            source,
            queries=queries,
            settings=settings,
            realtime=realtime,
            video_stream=read.video_stream,
            **read.span,
        )
        stack.enter_context(stream)
        asked = Question(text=redact_url(question), when=plan.when, every_seconds=timing.every)
        consumers = write.consumers(stream, asked)
        # Last, since loading takes longest: every other error is reported before, and Ctrl-C still ends at once.
        viewer = stack.enter_context(contextlib.closing(make_viewer(settings)))
        reporter = stack.enter_context(tell.reporting(stream.source.info.num_frames))
        stop = stack.enter_context(stop_on_signals())
        for notice in notices:
            reporter.notice(notice)
        if settings.vlm.model == TINY and not settings.vlm.endpoint:
            reporter.warning(TINY_LIMITS)
        watcher, live = make_watcher(viewer, plan, stream, reporter=reporter, stop=stop, beside=realtime)
        figures = Figures()
        result = run_told(stream, consumers, reporter, figures, stop=stop, watcher=live or watcher)
        if result.frames:
            reporter.done(last_word(result, figures, write.written))
    finish(result)
    if watcher.failure is not None and not watcher.answered:
        raise watcher.failure


def _check_question(question: str) -> None:
    if not question.strip():
        raise EmptyQuery("the question is empty", remedy='ask something: arr-stream ask VIDEO "question"')
    try:
        question.encode()
    except UnicodeEncodeError as exc:
        raise InvalidSetting("the question is not valid UTF-8", remedy="check the terminal's encoding") from exc


def _counted_back(read: ReadOptions, last: float | None, source: str, settings: Settings) -> ReadOptions:
    """Return the reading options with `--last` counted back from the end of the source.

    A pipe has no known end: its next seconds are read instead.
    """
    if last is None:
        return read
    if not last > 0:
        raise InvalidSetting(f"--last {last:g}", remedy="give seconds above 0")
    if read.start is not None or read.end is not None:
        raise InvalidSetting("--last beside --start or --end", remedy="give one or the other")
    path = Path(source)
    if path.exists() and not path.is_file() and not path.is_dir():
        return replace(read, end=last)
    from arr_stream.sources import open_source

    opened = open_source(source, video_stream=read.video_stream, max_pixels=settings.source.max_pixels)
    with contextlib.closing(opened):
        duration = opened.info.duration_seconds
    if duration is None:
        raise InvalidSetting(f"--last: {opened.info.name} does not say how long it is", remedy="give --start or --end")
    return replace(read, start=max(0.0, duration - last))
