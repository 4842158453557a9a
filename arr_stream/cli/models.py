"""`arr-stream models`: known weights, their places on disk, and downloads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from arr_stream.cli.console import out, print_line, say
from arr_stream.cli.measuring import Json
from arr_stream.errors import ArrStreamError, BackendUnavailable, WeightsInvalid

if TYPE_CHECKING:
    from arr_stream.config import Settings
    from arr_stream.weights import KnownWeights

app = typer.Typer(help="Weights on disk: list, download and verify them.", no_args_is_help=True)

Names = Annotated[
    list[str] | None, typer.Argument(metavar="[NAME]...", help="As in the list, or open_clip's NAME:TAG.")
]
Folder = Annotated[
    Path | None, typer.Option("--folder", help="Folder of weights; overrides ARR_STREAM_MODELS and the user's cache.")
]


@app.command("list")
def list_models(folder: Folder = None, as_json: Json = False) -> None:
    """List known weights: kind, size, licence, and whether they are on disk."""
    from rich.table import Table

    from arr_stream.weights import CATALOGUE

    models_folder = _folder(folder)
    rows = [_row(each, models_folder) for each in CATALOGUE.values()]
    if as_json:
        out.print_json(json.dumps({"folder": str(models_folder), "models": rows}))
        return
    table = Table("name", "kind", "MB", "licence", "on disk")
    # Users copy the names; the JSON and the message before a fetch give the origin.
    table.columns[0].no_wrap = True
    for row in rows:
        size = row["size_bytes"]
        megabytes = f"{size / 1e6:.0f}" if isinstance(size, int) else "?"
        on_disk = "yes" if row["path"] else "no"
        table.add_row(str(row["name"]), str(row["kind"]), megabytes, str(row["licence"]), on_disk)
    out.print(table)
    print_line(f"folder: {models_folder}")


@app.command()
def fetch(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="As in the list, or open_clip's NAME:TAG.")],
    folder: Folder = None,
    force: Annotated[bool, typer.Option("--force", help="Download again, even if the file exists.")] = False,
) -> None:
    """Download weights."""
    from arr_stream import weights

    models_folder = _folder(folder)
    # Report a misspelt last name before the first gigabyte.
    for wanted in [weights.known(name) for name in names]:
        there = weights.on_disk(wanted, models_folder) is not None and not force
        what = "is there already" if there else f"from {wanted.origin}, licence {wanted.licence}"
        say(f"{wanted.name}: {what}")
        print_line(str(weights.fetch(wanted, models_folder, force=force)))


@app.command()
def verify(names: Names = None, folder: Folder = None) -> None:
    """Compare known weights on disk, or named ones, with their hashes; exit with 62 if any is wrong, 60 if missing."""
    from arr_stream import weights

    models_folder = _folder(folder)
    chosen = [weights.known(name) for name in names] if names else weights.CATALOGUE.values()
    failed = missing = False
    for each in chosen:
        path = weights.on_disk(each, models_folder)
        if path is None and names:
            missing = True
            print_line(f"{each.name}: missing: not in {models_folder}")
        if path is None:
            continue
        try:
            print_line(f"{each.name}: {weights.verify(each, path)}")
        except ArrStreamError as error:
            failed = True
            print_line(f"{each.name}: failed: {error.message}")
    if failed:
        raise typer.Exit(WeightsInvalid.exit_code)
    if missing:
        raise typer.Exit(BackendUnavailable.exit_code)


def fetch_needed(settings: Settings) -> None:
    """Download the weights that a run needs and may fetch, before its own display begins."""
    from arr_stream.stream import fetch_weights

    fetch_weights(settings)


def _folder(given: Path | None) -> Path:
    from arr_stream import weights

    return weights.folder("auto" if given is None else str(given))


def _row(weights: KnownWeights, models_folder: Path) -> dict[str, object]:
    from arr_stream.weights import on_disk

    there = on_disk(weights, models_folder)
    return {
        "name": weights.name,
        "kind": weights.kind,
        "size_bytes": there.stat().st_size if there else weights.size_bytes,
        "licence": weights.licence,
        "sha256": weights.sha256,
        "origin": str(weights.origin),
        "path": str(there) if there else None,
    }
