"""`arr-stream webcam` and `arr-stream stream`: a live source in a window, with files, alerts and a model."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from arr_stream.cli.live_options import LiveOptions
from arr_stream.cli.options import given_values, grouped


@grouped
def webcam(
    options: LiveOptions,
    source: Annotated[
        str, typer.Argument(metavar="CAMERA", help="Its number, device or name (`arr-stream cameras`).")
    ] = "0",
) -> None:
    """Watch a camera: choose the cells of every frame as it comes, show, record and ask.

    In the window: h shows the keys, / asks for something else, a drag marks a region.
    """
    _show(camera_source(source), options)


@grouped
def stream(
    source: Annotated[
        str,
        typer.Argument(help="rtsp://, http://, udp:// ... address, lavfi:GRAPH, loop:FILE, a camera, or a file."),
    ],
    options: LiveOptions,
) -> None:
    """Watch a live source: choose the cells of every frame as it comes, show, record and ask.

    A source that breaks off is opened again. In the window: h shows the keys, / asks for something else, a drag
    marks a region.
    """
    _show(source, options)


def camera_source(camera: str) -> str:
    """Return the source for a camera's number, device or name."""
    from arr_stream.sources.live import is_live_spec

    return camera if is_live_spec(camera) and not camera.isdecimal() else f"camera:{camera}"


def _show(source: str, options: LiveOptions) -> None:
    if options.show.serve:
        _serve(source, options)
    else:
        from arr_stream.cli.live_run import run_live

        run_live(source, options)


def _serve(source: str, options: LiveOptions) -> None:
    """Hand a source over to `serve`, as if the user had called that command."""
    from arr_stream.cli.serve import TOKEN_VARIABLE, AccessOptions, ServerOptions, serve_sources

    chosen, port = options.chosen, options.show.port
    serve_sources(
        [source],
        ServerOptions() if port is None else ServerOptions(port=port),
        AccessOptions(token=os.environ.get(TOKEN_VARIABLE) or None),
        options.alerts,
        options.tell,
        query=options.look.query or (),
        presets=[] if chosen.preset is None else [str(chosen.preset)],
        overrides=chosen.overrides or (),
        values=given_values(options.look, options.capture, options.model, chosen),
    )
