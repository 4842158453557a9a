"""Parts that the measuring commands share: options, progress and results."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from arr_stream.cli.console import err, out
from arr_stream.errors import InvalidSetting

if TYPE_CHECKING:
    from arr_stream.config import Settings
    from arr_stream.evaluation.tables import Report

Sequences = Annotated[
    Path, typer.Argument(help="Folder with frames/SEQ and masks/SEQ, or with clips and NAME.boxes.json beside them.")
]
Preset = Annotated[Path | None, typer.Option("--preset", help="Settings from a TOML file.")]
Overrides = Annotated[list[str] | None, typer.Option("--set", help="key=value, over the preset.")]
Repeats = Annotated[int, typer.Option(min=1, help="Rounds; medians are over all.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def cpu_settings(command: str, preset: Path | None, overrides: Iterable[str] | None) -> Settings:
    """Return the settings of a command that measures steps one by one, on the CPU.

    Raises:
        SettingsError: `Settings.load` raised it, or `loop.device` is not `cpu`.
    """
    from arr_stream.config import Settings

    settings = Settings.load(preset, overrides or ())
    if settings.loop.device != "cpu":
        raise InvalidSetting(
            f"loop.device={settings.loop.device}: {command} runs the frame loop on the CPU",
            remedy="leave loop.device at cpu; `python -m benchmarks device` measures a GPU",
        )
    return settings


def say(what: str) -> None:
    """Print the next step, on a terminal."""
    if err.is_terminal:
        err.print(what, style="dim", markup=False)


def show(report: Report, *, as_json: bool) -> None:
    """Print all tables, or the whole report as JSON."""
    if as_json:
        out.print_json(json.dumps(report.as_json()))
    else:
        for table in report.tables:
            out.print(table)
            out.print()
