"""`arr-stream channels`: the table of the 40 channels."""

from __future__ import annotations

import json

import typer
from rich.table import Table

from arr_stream.cli.console import out


def channels(as_json: bool = typer.Option(False, "--json", help="Print JSON.")) -> None:
    """Print the 40 channels of the texture: order, names, ranges, when each is renewed."""
    from arr_stream.texture.layout import CHANNELS

    if as_json:
        rows = [
            {"index": c.index, "name": c.name, "range": [c.low, c.high], "renewed": c.renewed, "meaning": c.meaning}
            for c in CHANNELS
        ]
        out.print_json(json.dumps(rows))
        return
    table = Table(title="The 40 channels", title_justify="left")
    for heading in ("#", "name", "range", "renewed", "meaning"):
        table.add_column(heading, justify="right" if heading == "#" else "left", overflow="fold")
    for c in CHANNELS:
        span = "id" if c.high is None else f"{c.low:g}..{c.high:g}"
        table.add_row(str(c.index), c.name, span, c.renewed, c.meaning)
    out.print(table)
