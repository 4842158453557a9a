"""`arr-stream cameras`: the cameras of this machine."""

from __future__ import annotations

import json
from dataclasses import asdict

import typer
from rich.table import Table

from arr_stream.cli.console import out
from arr_stream.errors import CameraNotFound


def cameras(as_json: bool = typer.Option(False, "--json", help="Print JSON.")) -> None:
    """List the cameras of this machine, and what to give to open each."""
    from arr_stream.sources.live import list_cameras

    found = list_cameras()
    if as_json:
        out.print_json(json.dumps([asdict(camera) for camera in found]))
    if not found:
        raise CameraNotFound(
            "there is no camera on this machine",
            remedy="plug one in or allow its use, or try `arr-stream stream lavfi:testsrc2`",
        )
    if as_json:
        return
    table = Table("camera", "name", "opened by")
    for camera in found:
        table.add_row(str(camera.index), camera.name, f"arr-stream webcam {camera.index}")
    out.print(table)
