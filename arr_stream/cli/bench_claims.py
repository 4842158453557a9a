"""`arr-stream bench claims`: what the design promised, and what is measured here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from arr_stream.cli.console import err, out, parse_size
from arr_stream.cli.where import on_cpu
from arr_stream.config import Settings

QUICK_SIZE = "512x512"


def bench_claims(
    part: Annotated[
        list[str] | None,
        typer.Option("--part", help="video, projection, texture or regions; repeat it for several. All of them."),
    ] = None,
    clip_model: Annotated[
        list[str] | None,
        typer.Option("--clip-model", help="Model to time, NAME:random without weights (ViT-B-16:random and tiny)."),
    ] = None,
    size: Annotated[
        str | None,
        typer.Option(help="Frame size, WIDTHxHEIGHT; 1024x1024, as claimed, and for video 864x480 beside it."),
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds; medians are over all.")] = 5,
    threads: Annotated[int | None, typer.Option(min=1, help="Of torch; as many as there are cores.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help=f"Frames of {QUICK_SIZE}, the tiny model, few rounds and scenes.")
    ] = False,
    preset: Annotated[Path | None, typer.Option(help="Settings from a TOML file.")] = None,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="key=value, over the preset.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure every claim of the design: what was claimed, what is measured, how, and whether it holds."""
    settings = Settings.load(preset, overrides or ())
    on_cpu(settings, "bench claims")
    size_wh = parse_size(size or (QUICK_SIZE if quick else "1024x1024"))

    from arr_stream.evaluation.machine import cores
    from benchmarks.claims.base import ClaimsPlan
    from benchmarks.claims.run import PARTS, bench_claims

    def progress(what: str) -> None:
        if err.is_terminal:
            err.print(what, style="dim", markup=False)

    plan = ClaimsPlan(
        settings,
        tuple(dict.fromkeys(clip_model or (("tiny",) if quick else ("ViT-B-16:random", "tiny")))),
        size_wh,
        (size_wh,) if size or quick else ((864, 480), size_wh),
        rounds=min(repeats, 2) if quick else repeats,
        between=4 if quick else 10,
        scenes=3 if quick else 10,
        threads=threads or cores(),
        progress=progress,
    )
    report = bench_claims(tuple(dict.fromkeys(part or PARTS)), plan)
    if as_json:
        out.print_json(json.dumps(report.as_json()))
        return
    for table in report.tables:
        out.print(table.rich())
