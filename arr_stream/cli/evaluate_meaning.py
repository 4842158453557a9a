"""`arr-stream eval meaning`: what becomes of a model's answer when it is carried and projected."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.table import Table

from arr_stream.cli.console import err, out
from arr_stream.config import Settings


def meaning(
    clip_model: Annotated[str, typer.Option("--model", help="As for process.")] = "tiny",
    clips: Annotated[int, typer.Option(min=1, help="Generated clips to carry answers through.")] = 12,
    interval: Annotated[int, typer.Option(min=2, help="Frames from keyframe to keyframe.")] = 30,
    scenes: Annotated[int, typer.Option(min=1, help="Generated scenes to project.")] = 10,
    chosen: Annotated[int, typer.Option(min=1, help="Cells to choose of 1024.")] = 273,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Carry a model's answers through generated clips, and compare 16 channels with all dimensions."""
    settings = Settings().with_values({"keyframes.embeddings": "clip", "clip.model": clip_model})

    from arr_stream.keyframes.embeddings import find_pca, make_embedder, make_text_encoder
    from benchmarks.meaning import evaluate_carried, evaluate_projected, held_out_clips

    embedder, encoder = make_embedder(settings), make_text_encoder(settings)
    assert encoder is not None
    pca = find_pca(settings, encoder)

    def progress(what: str) -> None:
        if err.is_terminal:
            err.print(what, style="dim", markup=False)

    carried = evaluate_carried(
        held_out_clips(clips, interval),
        embedder,
        encoder,
        pca,
        interval=interval,
        progress=lambda done: progress(f"clip {done} of {clips}"),
    )
    projected = evaluate_projected(
        embedder,
        encoder,
        pca,
        scenes=scenes,
        chosen=chosen,
        progress=lambda done: progress(f"scene {done} of {scenes}"),
    )
    if as_json:
        out.print_json(json.dumps({"carried": carried.as_json(), "projected": projected.as_json()}))
        return
    table = Table("", title=f"Coverage as a share of the best, {carried.queries} queries", title_justify="left")
    table.add_column("share", justify="right")
    table.add_row("on keyframes", f"{carried.on_keyframes:.3f}")
    table.add_row(f"on the {interval - 1} frames between", f"{carried.between:.3f}")
    table.add_row("kept between", f"{carried.kept:.3f}")
    out.print(table)
    table = Table("", title=f"Overlap of the best {chosen} of {projected.cells} cells", title_justify="left")
    table.add_column("overlap", justify="right")
    table.add_row("queries that are asked", f"{projected.active:.3f}")
    table.add_row("others, in the scene", f"{projected.unasked:.3f}")
    table.add_row("others, not in the scene", f"{projected.absent:.3f}")
    out.print(table)
