"""`arr-stream ask`: a question about a video, answered by a model that sees only the chosen cells."""

from __future__ import annotations

import contextlib
import os
from typing import Annotated

import typer

from arr_stream.cli import options
from arr_stream.cli.console import Log, reporting
from arr_stream.cli.models import fetch_needed
from arr_stream.cli.running import Figures, Outputs, finish, last_word, make_watcher, run_told, stop_on_signals
from arr_stream.errors import EmptyQuery, InvalidSetting


def ask(
    source: options.Source,
    question: Annotated[str, typer.Argument(help="The question, in words.")],
    model: options.Model = None,
    endpoint: options.Endpoint = None,
    download: options.Download = False,
    every: options.Every = None,
    watch: options.Watch = False,
    query: options.Query = None,
    region: options.Region = None,
    example: options.Example = None,
    budget: options.Budget = None,
    output: options.Video = None,
    patches: options.Patches = None,
    report: options.Report = None,
    force: options.Force = False,
    start: options.Start = None,
    end: options.End = None,
    preset: options.Preset = None,
    overrides: options.Overrides = None,
    log: options.LogOption = Log.TEXT,
) -> None:
    """Show a video to a model and ask it a question, at the end, at an interval, or when the scene changes.

    The model sees the cells that --query, or else the question, makes relevant. Answers go to standard output.
    """
    if not question.strip():
        raise EmptyQuery("the question is empty", remedy='ask something: arr-stream ask VIDEO "question"')
    try:
        question.encode()
    except UnicodeEncodeError as exc:
        raise InvalidSetting("the question is not valid UTF-8", remedy="check the terminal's encoding") from exc
    if not os.path.lexists(source) and os.path.lexists(question):
        raise InvalidSetting(
            f"{question}: the video comes first, then the question", remedy=f'arr-stream ask {question} "{source}"'
        )
    plan = options.make_plan(question, every, watch, otherwise="end")

    from arr_stream.config import TINY
    from arr_stream.vlm import TINY_LIMITS, answering, make_session

    loaded = options.load_settings(preset, overrides, budget=budget, model=model, endpoint=endpoint, download=download)
    settings = answering(loaded).for_memory()

    import arr_stream
    from arr_stream.plain_text import redact_url
    from arr_stream.records.provenance import Question
    from arr_stream.relevance.query import make_queries
    from arr_stream.relevance.question import sought

    write = Outputs(output, patches, report, force, settings.video.view)
    write.check(source)
    queries = make_queries(sought(question) if query is None else query, region, example)
    fetch_needed(settings)
    with contextlib.ExitStack() as stack:
        stream = arr_stream.open(source, queries=queries, settings=settings, start_seconds=start, end_seconds=end)
        stack.enter_context(stream)
        consumers = write.consumers(stream, Question(text=redact_url(question), when=plan.when, every_seconds=every))
        # Last, since loading takes longest: every other error is reported before, and Ctrl-C still ends at once.
        session = stack.enter_context(contextlib.closing(make_session(settings)))
        reporter = stack.enter_context(reporting(stream.source.info.num_frames, log))
        stop = stack.enter_context(stop_on_signals())
        if settings.vlm.model == TINY and not settings.vlm.endpoint:
            reporter.warning(TINY_LIMITS)
        watcher = make_watcher(session, plan, stream, reporter=reporter, stop=stop)
        figures = Figures()
        result = run_told(stream, consumers, reporter, figures, stop=stop, watcher=watcher)
        if result.frames:
            reporter.done(last_word(result, figures, write.written))
    finish(result)
    if watcher.failure is not None and not watcher.answered:
        raise watcher.failure
