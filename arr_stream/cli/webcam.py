"""`arr-stream webcam`: a camera of this machine, in a window."""

from __future__ import annotations

from typing import Annotated

import typer

from arr_stream.cli import live_options as live
from arr_stream.cli import options
from arr_stream.cli.live_options import LiveOptions


def webcam(
    source: Annotated[
        str, typer.Argument(metavar="CAMERA", help="Its number, device or name (`arr-stream cameras`).")
    ] = "0",
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
    """Watch a camera: choose the cells of every frame as it comes, show, record and ask.

    In the window: h shows the keys, / asks for something else, a drag marks a region.
    """
    given = LiveOptions(**(locals() | {"source": camera_source(source)}))
    if given.serve:
        from arr_stream.cli.live_serving import serve_live

        serve_live(given)
        return
    from arr_stream.cli.live_running import run_live

    run_live(given)


def camera_source(camera: str) -> str:
    """A camera's number, device or name as a source."""
    from arr_stream.sources.live import is_live_spec

    return camera if is_live_spec(camera) and not camera.isdecimal() else f"camera:{camera}"
