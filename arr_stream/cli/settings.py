"""`arr-stream settings`: every key with its default."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from arr_stream.cli.console import out
from arr_stream.config import Settings, setting_keys


def settings(
    preset: Annotated[Path | None, typer.Option(help="Show the values with this preset.")] = None,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="key=value, over the preset.")] = None,
) -> None:
    """List every setting with its value and meaning. Precedence: --set and options, then the preset, then defaults."""
    values = Settings.load(preset, overrides or ())
    table = Table(title="Settings", title_justify="left")
    for heading in ("key", "value", "default", "meaning"):
        table.add_column(heading, overflow="fold")
    for key, (default, meaning) in setting_keys().items():
        section, name = key.split(".")
        value = getattr(getattr(values, section), name)
        table.add_row(key, str(value), "" if value == default else str(default), meaning)
    out.print(table)
