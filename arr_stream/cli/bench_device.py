"""`arr-stream bench device`: the frame loop on a GPU, or the stages on the CPU, beside the machine's own limit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from arr_stream.cli.console import err, out, parse_size
from arr_stream.config import Settings
from arr_stream.errors import InvalidSetting

LEAST_SIDE_PX = 32
"""One cell; queries are asked for a part of it."""


def bench_device(
    device: Annotated[str, typer.Option(help="cuda or cpu; auto takes a GPU where there is one.")] = "auto",
    size: Annotated[str, typer.Option(help="Frame size, WIDTHxHEIGHT.")] = "1024x1024",
    frames: Annotated[int, typer.Option(min=8, help="Frames in each run.")] = 60,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each part in a round.")] = 20,
    fused: Annotated[bool, typer.Option("--fused", help="Fuse small kernels first; takes minutes.")] = False,
    preset: Annotated[Path | None, typer.Option(help="Settings from a TOML file.")] = None,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="key=value, over the preset.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Time a frame between keyframes and each of its parts beside what the memory's speed allows."""
    settings = Settings.load(preset, overrides or ())
    size_wh = parse_size(size, least=LEAST_SIDE_PX)
    if settings.loop.device == "cuda" and device == "cpu":
        raise InvalidSetting("--device cpu beside loop.device=cuda", remedy="leave one of them out")
    if settings.loop.device == "cuda" and device == "auto":
        device = "cuda"

    from benchmarks.device.bench import bench_device as measure
    from benchmarks.device.bench import named_device

    def progress(what: str) -> None:
        if err.is_terminal:
            err.print(what, style="dim", markup=False)

    report = measure(
        settings,
        named_device(device),
        size_wh=size_wh,
        frames=frames,
        repeats=repeats,
        fused=fused or settings.loop.fused,
        progress=progress,
    )
    if as_json:
        out.print_json(json.dumps(report.as_json()))
        return
    for table in report.tables:
        out.print(table.rich())
    for line in report.unmeasured:
        out.print(line, markup=False)
