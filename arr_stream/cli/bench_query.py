"""`arr-stream bench query`: what an answer in plain words costs, against the plain ways to get it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from arr_stream.cli.console import err, out, parse_size
from arr_stream.cli.where import on_cpu
from arr_stream.config import Settings

if TYPE_CHECKING:
    from benchmarks.query import RelevanceReport


def bench_query(
    clip_model: Annotated[
        str, typer.Option("--clip-model", help="As for process; NAME:random times an architecture without weights.")
    ] = "tiny",
    size: Annotated[str, typer.Option(help="Frame size, WIDTHxHEIGHT.")] = "864x480",
    repeats: Annotated[int, typer.Option(min=1, help="Rounds; medians are over all.")] = 5,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="key=value.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Time a query: from the texture, by a dense pass on every frame, by encoding a crop for every cell."""
    settings = Settings.load(None, overrides or ()).with_values(
        {"clip.model": clip_model, "keyframes.embeddings": "clip"}
    )
    on_cpu(settings, "bench query")
    size_wh = parse_size(size)

    from benchmarks.query import bench_relevance

    def progress(what: str) -> None:
        if err.is_terminal:
            err.print(what, style="dim", markup=False)

    report = bench_relevance(settings, size_wh=size_wh, repeats=repeats, progress=progress)
    if as_json:
        out.print_json(json.dumps(report.as_json()))
    else:
        _print(report)


def _print(report: RelevanceReport) -> None:
    from benchmarks.query import CROPS

    width, height = report.size_wh
    table = Table(
        "",
        title=f"One query, {report.model}, {width}x{height}, {report.cells} cells; median ms",
        title_justify="left",
    )
    table.add_column("ms", justify="right")
    for what, milliseconds in (
        (f"encoding {CROPS} crops", report.crops_ms),
        ("one dense pass", report.dense_ms),
        ("relevance on a frame between keyframes", report.relevance_ms),
        (f"  (of it: reading {CROPS} places of a texture)", report.sample_ms),
        (f"amortised over {report.interval} frames", report.amortised_ms),
        ("encoding a new query", report.text_ms),
        ("  what it costs beside that, on its first frame", report.query_ms),
    ):
        table.add_row(what, f"{milliseconds:.3f}")
    out.print(table)
    for name, ratio in report.ratios.items():
        out.print(f"{name}: {ratio:.1f}")
