"""`arr-stream eval clusters`: how well do regions follow objects?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from arr_stream.cli.console import err, out
from arr_stream.config import Settings

NAMES = ("grid", "slic-skimage", "features", "merge")


def clusters(
    data: Annotated[Path, typer.Argument(help="Folder with frames/SEQ and masks/SEQ, or clips with truth files.")],
    name: Annotated[
        list[str] | None, typer.Option("--clusters", help=f"As keyframes.clusters ({', '.join(NAMES)}).")
    ] = None,
    every: Annotated[int, typer.Option(min=1, help="Look at each Nth frame.")] = 10,
    preset: Annotated[Path | None, typer.Option("--preset", help="Settings from a TOML file.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="key=value, such as keyframes.cluster_count=100.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Divide frames with known objects: what is the best that whole regions can say of each?"""
    settings = Settings.load(preset, overrides or ())
    chosen = {each: settings.with_values({"keyframes.clusters": each}) for each in name or NAMES}

    from arr_stream.evaluation.davis import load_sequences
    from arr_stream.keyframes.clusters import make_clusterer
    from arr_stream.keyframes.embeddings import make_embedder
    from benchmarks.clusters import clusters_table, evaluate_clusters

    makers = {
        each: make_clusterer(values, make_embedder(values) if each == "features" else None, at_once=True)
        for each, values in chosen.items()
    }

    def progress(what: str) -> None:
        if err.is_terminal:
            err.print(what, style="dim", markup=False)

    table = clusters_table(evaluate_clusters(load_sequences(data), makers, every=every, progress=progress))
    if as_json:
        out.print_json(json.dumps({"tables": [table.as_json()]}))
    else:
        out.print(table.rich())
