"""`arr-stream bench batch`: what an engine costs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from arr_stream.cli.console import err, out, parse_size
from arr_stream.config import Settings


def bench_batch(
    source: Annotated[
        list[str] | None, typer.Argument(help="Files, folders or globs; clips are made where there are none.")
    ] = None,
    files: Annotated[int, typer.Option(min=1, help="Clips to make.")] = 20,
    frames: Annotated[int, typer.Option(min=1, help="Frames of a clip.")] = 150,
    size: Annotated[str, typer.Option(help="Size of their frames, WIDTHxHEIGHT.")] = "640x352",
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Files at once.")] = 2,
    engine: Annotated[
        list[str] | None, typer.Option(help="local or ray; repeat it. The others are compared with the first.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds; medians are over all.")] = 3,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="key=value of a setting.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure a batch by each engine in turns: startup, steady work and closing, and the ratio of total times."""
    # Refused here rather than by every process that is measured.
    Settings.load(None, overrides or ())
    size_wh = parse_size(size)

    from benchmarks.batch import BatchPlan, bench_batch

    def progress(what: str) -> None:
        if err.is_terminal:
            err.print(what, style="dim", markup=False)

    report = bench_batch(
        BatchPlan(
            tuple(str(Path(name).absolute()) if Path(name).exists() else name for name in source or ()),
            files=files,
            frames=frames,
            size_wh=size_wh,
            jobs=jobs,
            engines=tuple(dict.fromkeys(engine or ("local", "ray"))),
            rounds=repeats,
            overrides=tuple(overrides or ()),
            progress=progress,
        )
    )
    if as_json:
        out.print_json(json.dumps(report.as_json()))
    else:
        out.print(report.table.rich())
