"""`arr-stream eval interval`: how seldom may keyframes be?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from arr_stream.cli.console import err, out
from arr_stream.cli.pictures import check_picture, write_picture
from arr_stream.cli.where import on_cpu
from arr_stream.config import Settings


def interval(
    data: Annotated[
        Path | None,
        typer.Argument(help="Folder with frames/SEQ and masks/SEQ, or clips with truth files; generated without it."),
    ] = None,
    every: Annotated[
        list[int] | None, typer.Option("--every", min=1, help="Frames from keyframe to keyframe; 1 to 120 without it.")
    ] = None,
    frames: Annotated[int | None, typer.Option(min=2, help="Frames of each sequence; all without it.")] = None,
    clips: Annotated[int, typer.Option(min=1, help="Generated clips that texts are asked of.")] = 4,
    preset: Annotated[Path | None, typer.Option("--preset", help="Settings from a TOML file.")] = None,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="key=value, over the preset.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    plot: Annotated[Path | None, typer.Option("--plot", help="Write a picture.")] = None,
    force: Annotated[bool, typer.Option("--force", "-f", help="Overwrite the picture.")] = False,
) -> None:
    """Keyframe intervals against quality and cost, and the knee of the one over the other."""
    settings = Settings.load(preset, overrides or ())
    on_cpu(settings, "eval interval")
    check_picture(plot, force=force)

    from arr_stream.errors import InvalidSetting
    from benchmarks.interval import INTERVALS, evaluate_interval, interval_table, plot_interval

    def progress(what: str) -> None:
        if err.is_terminal:
            err.print(what, style="dim", markup=False)

    if every is not None and len(set(every)) < 2:
        raise InvalidSetting(f"--every {every[0]} alone is no curve", remedy="name at least two intervals")
    report = evaluate_interval(
        data, intervals=every or INTERVALS, settings=settings, most_frames=frames, clips=clips, progress=progress
    )
    table = interval_table(report, data.name if data is not None else "generated clips")
    if as_json:
        out.print_json(json.dumps({"tables": [table.as_json()], "knee": report.knee, "sufficient": report.sufficient}))
    else:
        out.print(table.rich())
    write_picture(plot, lambda path: plot_interval(report, path), force=force)
