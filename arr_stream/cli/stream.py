"""`arr-stream stream`: any live source, in a window."""

from __future__ import annotations

from typing import Annotated

import typer

from arr_stream.cli import live_options as live
from arr_stream.cli import options
from arr_stream.cli.live_options import LiveOptions


def stream(
    source: Annotated[
        str,
        typer.Argument(help="rtsp://, http://, udp:// ... address, lavfi:GRAPH, loop:FILE, a camera, or a file."),
    ],
    query: live.Query = None,
    region: live.Region = None,
    example: options.Example = None,
    budget: options.Budget = None,
    size: live.Size = None,
    fps: live.Fps = None,
    policy: live.Policy = None,
    duration: live.Duration = None,
    max_frames: live.MaxFrames = None,
    view: live.View = "patches",
    headless: live.Headless = False,
    serve: live.Serve = False,
    port: live.Port = None,
    record: live.Record = None,
    patches: live.Patches = None,
    report: options.Report = None,
    force: options.Force = False,
    model: live.Model = None,
    endpoint: live.Endpoint = None,
    question: live.Question = None,
    every: live.Every = None,
    watch: live.Watch = False,
    when: live.When = None,
    clips: live.Clips = None,
    before: live.Before = 3.0,
    after: live.After = 3.0,
    run: live.Run = None,
    post: live.Post = None,
    preset: options.Preset = None,
    overrides: options.Overrides = None,
    clip_model: options.ClipModel = None,
    download: options.Download = False,
    quiet: options.Quiet = False,
    log_json: options.LogJson = False,
) -> None:
    """Watch a live source: choose the cells of every frame as it comes, show, record and ask.

    A source that breaks off is opened again. In the window: h shows the keys, / asks for something else, a drag
    marks a region.
    """
    given = LiveOptions(**locals())
    if given.serve:
        from arr_stream.cli.live_serving import serve_live

        serve_live(given)
        return
    from arr_stream.cli.live_running import run_live

    run_live(given)
