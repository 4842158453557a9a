"""`arr-stream eval atlas`: what can tokens pooled over regions say that tokens of a grid cannot?"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from arr_stream.cli.console import out
from arr_stream.config import Settings


def atlas(
    data: Annotated[Path, typer.Argument(help="Folder with frames/SEQ and masks/SEQ, or clips with truth files.")],
    clusters: Annotated[list[str] | None, typer.Option(help="Who makes the regions (slic-skimage).")] = None,
    cluster_count: Annotated[list[int] | None, typer.Option(min=1, help="About how many regions (50).")] = None,
    budget: Annotated[list[int] | None, typer.Option(min=1, help="Tokens a frame (40, 101 and 273).")] = None,
    frames: Annotated[int, typer.Option(min=1, help="Frames of each sequence.")] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Pool tokens over regions and over an even grid: detail kept, and how well the object can be told apart."""
    settings = [
        Settings().with_values({"keyframes.clusters": name, "keyframes.cluster_count": count})
        for name in clusters or ["slic-skimage"]
        for count in cluster_count or [50]
    ]

    from arr_stream.evaluation.davis import load_sequences
    from arr_stream.keyframes.clusters import make_clusterer
    from arr_stream.keyframes.embeddings import make_embedder
    from benchmarks.atlas import evaluate_atlas

    makers = {
        f"{each.keyframes.clusters} {each.keyframes.cluster_count}": make_clusterer(
            each, make_embedder(each) if each.keyframes.clusters == "features" else None, at_once=True
        )
        for each in settings
    }
    rows = evaluate_atlas(load_sequences(data), makers, budget or [40, 101, 273], frames)
    if as_json:
        out.print_json(json.dumps([asdict(row) for row in rows]))
        return
    table = Table("regions", "tokens laid out", "tokens", "detail kept", "object told apart (IoU)")
    for row in rows:
        table.add_row(row.clusters, row.layout, str(row.tokens), f"{row.detail:.3f}", f"{row.object_iou:.3f}")
    out.print(table)
