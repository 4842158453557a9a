"""`arr-stream bench live`: live streams and their page, measured in a real browser."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from arr_stream.cli.console import err, out
from arr_stream.config import Settings

if TYPE_CHECKING:
    from benchmarks.live.figures import Figure, LiveReport


def bench_live(
    part: Annotated[
        list[str] | None,
        typer.Option(
            "--part",
            help="page, browser-camera, rate, three, keyframes, first-picture, outage or memory; "
            "repeat it for several. All but memory where none is named.",
        ),
    ] = None,
    seconds: Annotated[float, typer.Option(min=2.0, help="Length of each measurement.")] = 20.0,
    minutes: Annotated[float, typer.Option(min=1.0, help="Length of the one of memory.")] = 30.0,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="key=value.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure live streams from the camera to the page, with Chromium on this machine."""
    Settings.load(None, overrides or ())

    from benchmarks.live.bench import USUAL, bench_live
    from benchmarks.live.figures import LivePlan

    def progress(what: str) -> None:
        if err.is_terminal:
            err.print(what, style="dim", markup=False)

    report = bench_live(
        tuple(dict.fromkeys(part or USUAL)), LivePlan(seconds, minutes, tuple(overrides or ()), progress)
    )
    if as_json:
        out.print_json(json.dumps(report.as_json()))
    else:
        _print(report)


def _print(report: LiveReport) -> None:
    out.print(", ".join(f"{name} {value}" for name, value in report.machine.items()), soft_wrap=True, markup=False)
    table = Table(title_justify="left")
    table.add_column("")
    table.add_column("measured", justify="right")
    table.add_column("to reach", justify="right")
    table.add_column("")
    before = None
    for figure in report.figures:
        if figure.part != before:
            table.add_section()
            table.add_row(figure.part, style="bold")
            before = figure.part
        table.add_row(f"  {figure.what}", f"{figure.value:.1f} {figure.unit}".strip(), _limit(figure), _mark(figure))
    out.print(table)


def _limit(figure: Figure) -> str:
    if figure.limit is None:
        return ""
    return f"{'at least' if figure.at_least else 'at most'} {figure.limit:.4g}"


def _mark(figure: Figure) -> str:
    return {None: "", True: "reached", False: "missed"}[figure.reached]
