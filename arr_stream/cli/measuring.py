"""Parts that the measuring commands share: options, progress, results, and pictures written whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from arr_stream.cli.console import err, out
from arr_stream.errors import InvalidSetting, OutputUnwritable

if TYPE_CHECKING:
    from arr_stream.config import Settings
    from arr_stream.evaluation.tables import Report, ResultTable

ReportT = TypeVar("ReportT", bound="Report")

Sequences = Annotated[Path, typer.Argument(help="Folder with frames/SEQ and masks/SEQ, or clips with truth files.")]
Preset = Annotated[Path | None, typer.Option("--preset", help="Settings from a TOML file.")]
Overrides = Annotated[list[str] | None, typer.Option("--set", help="key=value, over the preset.")]
Repeats = Annotated[int, typer.Option(min=1, help="Rounds; medians are over all.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Plot = Annotated[Path | None, typer.Option("--plot", help="Write a picture.")]
Force = Annotated[bool, typer.Option("--force", "-f", help="Overwrite files.")]

_UNUSUAL = ("pgf", "raw", "rgba")
"""Formats that matplotlib lists and few users want: LaTeX code, and pixels without a header."""


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
        show_tables(report.tables)


def show_tables(tables: Iterable[ResultTable]) -> None:
    """Print each table that has rows, or its note instead."""
    for table in tables:
        if table.rows:
            out.print(table.rich())
        elif table.note:
            out.print(table.note, markup=False)


def present(
    report: ReportT, *, as_json: bool, plot: Path | None, draw: Callable[[ReportT, Path], None], force: bool
) -> None:
    """Print tables or JSON, and draw a picture if one is requested."""
    show(report, as_json=as_json)
    write_picture(plot, lambda path: draw(report, path), force=force)


def check_picture(path: Path | None, *, force: bool) -> None:
    """Check, before anything is measured, that the picture can be drawn; nothing is created yet.

    Raises:
        OutputExists: The file exists and `force` is not set.
        OutputUnwritable: The ending is one that matplotlib does not write, or the path is a folder or not writable.
    """
    if path is None:
        return

    from matplotlib.backends.backend_agg import FigureCanvasAgg

    from arr_stream.files import prepare_output

    known = sorted(set(FigureCanvasAgg.get_supported_filetypes()) - set(_UNUSUAL))
    if not path.is_dir() and path.suffix.lower().removeprefix(".") not in known:
        raise OutputUnwritable(
            f"{path}: {f'no picture ends with {path.suffix}' if path.suffix else 'its name has no picture extension'}",
            remedy=f"end it with .png, or one of {', '.join(known)}",
        )
    prepare_output(path, force)


def write_picture(path: Path | None, draw: Callable[[Path], None], *, force: bool) -> None:
    """Let `draw` write the picture if one is requested; `path` is checked already.

    Raises:
        OutputError: The picture could not be written.
    """
    if path is None:
        return

    from arr_stream.files import written_whole

    with written_whole(path, force=force) as partial:
        draw(partial)
    err.print(f"wrote {path}", soft_wrap=True, markup=False)
