"""`arr-stream bench`: everything that is measured about speed, a command each; of a file unless another is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from typer.core import TyperGroup

from arr_stream.cli import bench_batch, bench_claims, bench_compare, bench_device, bench_live, bench_query, bench_vlm
from arr_stream.cli.console import err, out
from arr_stream.cli.where import on_cpu
from arr_stream.config import Settings

if TYPE_CHECKING:
    from arr_stream.evaluation.stages import BenchReport


class _FileUnlessNamed(TyperGroup):
    """`bench FILE` is short for `bench file FILE`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in {*self.commands, *ctx.help_option_names}:
            args = ["file", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    help="Measure speed, each against something run in the same minute: look at the ratios. "
    "`bench FILE` is short for `bench file FILE`.",
    no_args_is_help=True,
    cls=_FileUnlessNamed,
)
app.command("batch")(bench_batch.bench_batch)
app.command("claims")(bench_claims.bench_claims)
app.command("compare")(bench_compare.bench_compare)
app.command("device")(bench_device.bench_device)
app.command("query")(bench_query.bench_query)
app.command("vlm")(bench_vlm.bench_vlm)
app.command("live")(bench_live.bench_live)


@app.command("file")
def bench(
    source: Annotated[str, typer.Argument(help="A video file.")],
    query: Annotated[list[str] | None, typer.Option("--query", "-q", help="As for process.")] = None,
    frames: Annotated[int, typer.Option(min=2, help="Frames to measure on.")] = 150,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds; medians are over all.")] = 3,
    preset: Annotated[Path | None, typer.Option(help="Settings from a TOML file.")] = None,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="key=value, over the preset.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure a file: stages, keyframes and frames between, and baselines in the same run. Look at the ratios."""
    settings = Settings.load(preset, overrides or ())
    on_cpu(settings, "bench file")

    from arr_stream.evaluation.stages import bench_file
    from arr_stream.relevance.query import Query, parse_text

    queries: list[Query] = [parse_text(text) for text in query or ()]

    def progress(what: str) -> None:
        if err.is_terminal:
            err.print(what, style="dim", markup=False)

    report = bench_file(source, settings, queries, max_frames=frames, repeats=repeats, progress=progress)
    if as_json:
        out.print_json(json.dumps(report.as_json()))
    else:
        _print(report)


def _print(report: BenchReport) -> None:
    width, height = report.size_wh
    table = Table(title=f"{report.source}: {width}x{height}, {report.frames} frames; ms a frame", title_justify="left")
    table.add_column("")
    for heading in ("median", "p95", "p99", "keyframe median"):
        table.add_column(heading, justify="right")
    for stage, kinds in report.stages.items():
        t, k = kinds["between"], kinds["keyframe"]
        table.add_row(stage, f"{t.median:.3f}", f"{t.p95:.3f}", f"{t.p99:.3f}", f"{k.median:.3f}")
    t, k = report.between, report.keyframes
    table.add_row(
        "all of perception", f"{t.median:.3f}", f"{t.p95:.3f}", f"{t.p99:.3f}", f"{k.median:.3f}", style="bold"
    )
    table.add_section()
    for name, timing in report.baselines.items():
        table.add_row(name, f"{timing.median:.3f}", f"{timing.p95:.3f}", f"{timing.p99:.3f}", "")
    out.print(table)
    out.print(
        f"amortised: (keyframe + {report.interval - 1} x between) / {report.interval} = {report.amortised_ms:.3f} ms"
    )
    for name, ratio in report.ratios.items():
        out.print(f"{name}: {ratio:.2f}")
