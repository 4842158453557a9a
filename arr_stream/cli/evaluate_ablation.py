"""`arr-stream eval ablation`: does each part earn its cost?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from arr_stream.cli.console import err, out
from arr_stream.cli.where import on_cpu
from arr_stream.config import Settings


def ablation(
    data: Annotated[
        Path | None,
        typer.Argument(help="Folder with frames/SEQ and masks/SEQ, or clips with truth files; generated without it."),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option("--only", help="A part by its name in the report; repeat it for several.")
    ] = None,
    frames: Annotated[int | None, typer.Option(min=2, help="Frames of each sequence; all without it.")] = None,
    preset: Annotated[Path | None, typer.Option("--preset", help="Settings from a TOML file.")] = None,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="key=value, over the preset.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Switch each part off, or exchange it, in turn: coverage, context, stability and time beside the default."""
    settings = Settings.load(preset, overrides or ())
    on_cpu(settings, "eval ablation")

    from benchmarks.ablation import ablation_tables, evaluate_ablation

    def progress(what: str) -> None:
        if err.is_terminal:
            err.print(what, style="dim", markup=False)

    rows = evaluate_ablation(
        data, only=tuple(dict.fromkeys(only or ())), settings=settings, most_frames=frames, progress=progress
    )
    tables = ablation_tables(rows, data.name if data is not None else "generated clips")
    if as_json:
        out.print_json(json.dumps({"tables": [table.as_json() for table in tables]}))
        return
    for table in tables:
        out.print(table.rich())
