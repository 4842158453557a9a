"""`arr-stream stream` and `arr-stream webcam`: a live source in a window, with files, alerts and a model."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Annotated

import typer

from arr_stream.cli import options
from arr_stream.cli.console import Log
from arr_stream.cli.running import Outputs
from arr_stream.errors import EmptyQuery, InvalidSetting


def stream(
    ctx: typer.Context,
    source: Annotated[
        str,
        typer.Argument(
            help="Camera (its number, or for `webcam` its device or name), rtsp://, http://, udp:// ... address, "
            "lavfi:GRAPH, loop:FILE, or a file."
        ),
    ] = "0",
    query: options.Query = None,
    region: options.Region = None,
    example: options.Example = None,
    budget: options.Budget = None,
    duration: Annotated[float | None, options.option("Stop after this time, in seconds.", options.READ)] = None,
    max_frames: options.MaxFrames = None,
    headless: Annotated[bool, options.option("Run without a window.", options.RUN, "--headless")] = False,
    output: options.Video = None,
    patches: options.Patches = None,
    report: options.Report = None,
    force: options.Force = False,
    question: Annotated[str | None, options.option("Question to the model.", options.ASK)] = None,
    every: options.Every = None,
    watch: options.Watch = False,
    model: options.Model = None,
    endpoint: options.Endpoint = None,
    when: options.When = None,
    post: options.Post = None,
    preset: options.Preset = None,
    overrides: options.Overrides = None,
    log: options.LogOption = Log.TEXT,
) -> None:
    """Process a live source: choose the cells of each frame, show and record them, and ask a model.

    An interrupted source is reopened. In the window, / sets another query, and a drag marks a region.
    """
    if duration is not None and not 0 < duration < threading.TIMEOUT_MAX:
        raise InvalidSetting(f"--duration {duration:g}", remedy="give seconds above 0, or leave it out")
    if question is None:
        given = {"--every": every, "--watch": watch, "--model": model, "--endpoint": endpoint}
        options.needs("--question", given)
    elif not question.strip():
        raise EmptyQuery("the question is empty", remedy='ask something: --question "what is on the table?"')
    if not when:
        options.needs("--when", {"--post": post}, 'say when: --when "relevance > 0.6 for 2s"')
    plan = None if question is None else options.make_plan(question, every, watch, otherwise="change")
    settings = options.load_settings(preset, overrides, budget=budget, model=model, endpoint=endpoint).for_live()

    from arr_stream.cli.live_run import run_live
    from arr_stream.relevance.query import make_queries
    from arr_stream.relevance.question import sought
    from arr_stream.vlm import answering

    texts: Sequence[str] = query or ()
    if question is not None:
        settings = answering(settings)
        texts = sought(question) if query is None else query
    queries = make_queries(texts, region, example)
    run_live(
        camera_source(source) if ctx.info_name == "webcam" or source.isdecimal() else source,
        settings,
        queries,
        Outputs(output, patches, report, force, settings.video.view, live=True),
        plan=plan,
        rules=options.alert_rules(when, settings, queries),
        post=post or (),
        headless=headless,
        duration=duration,
        max_frames=max_frames,
        log=log,
    )


def camera_source(camera: str) -> str:
    """Return the source for a camera's number, device or name."""
    from arr_stream.sources.live import is_live_spec

    return camera if is_live_spec(camera) and not camera.isdecimal() else f"camera:{camera}"
