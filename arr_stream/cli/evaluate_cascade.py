"""`arr-stream eval cascade`: what does looking at regions first save, and what does it lose?"""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from arr_stream.cli.console import out
from arr_stream.config import Settings

HALF_CELLS_LEVEL = 4


def cascade(
    data: Annotated[
        Path | None, typer.Argument(help="Folder with frames/SEQ and masks/SEQ; generated scenes alone without it.")
    ] = None,
    budget: Annotated[list[int] | None, typer.Option(min=1, help="Tokens a frame (40, 101 and 273).")] = None,
    scenes: Annotated[int, typer.Option(min=1, help="Generated scenes.")] = 20,
    frames: Annotated[int, typer.Option(min=1, help="Frames of each sequence.")] = 2,
    side: Annotated[int, typer.Option(min=64, help="Side of the square pictures in pixels.")] = 2048,
    half_cells: Annotated[bool, typer.Option("--half-cells", help="Places of 16 px in place of cells.")] = False,
    preset: Annotated[Path | None, typer.Option("--preset", help="Settings from a TOML file.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="key=value, such as keyframes.clusters=merge.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Score every cell, or regions first: places scored, and coverage of the object by the chosen ones."""
    settings = Settings.load(preset, overrides or ())

    from arr_stream.evaluation.davis import load_sequences
    from arr_stream.keyframes.clusters import make_clusterer
    from arr_stream.keyframes.embeddings import make_embedder
    from arr_stream.texture.array import CELL_LEVEL
    from benchmarks.cascade import evaluate_cascade, footage_cases, generated_cases

    footage = [] if data is None else load_sequences(data)
    cases = chain(generated_cases(scenes, side_px=side), footage_cases(footage, frames, side_px=side))
    level = HALF_CELLS_LEVEL if half_cells else CELL_LEVEL
    embedder = make_embedder(settings) if settings.keyframes.clusters == "features" else None
    clusterer = make_clusterer(settings, embedder, at_once=True)
    report = evaluate_cascade(cases, budget or [40, 101, 273], clusterer, level=level)
    if as_json:
        out.print_json(json.dumps(report.as_json()))
        return
    table = Table("asked", "tokens", "scored", "fewer", "all", "cascade", "lost", padding=(0, 1, 0, 0))
    table.title = f"Coverage by scoring all {report.rows[0].places} places, and by the cascade" if report.rows else None
    for row in report.rows:
        figures = (f"{row.coverage_all:.3f}", f"{row.coverage_cascade:.3f}", f"{row.lost:.1%}")
        table.add_row(row.kind, str(row.tokens), str(row.scored_most), f"{row.saving:.1f}x", *figures)
    out.print(table)
