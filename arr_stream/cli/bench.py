"""`arr-stream bench FILE`: what each stage costs on footage of one's own."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from arr_stream.cli.measuring import Json, Overrides, Preset, Repeats, cpu_settings, refuse_moved, say, show


class Bench(TyperCommand):
    """Tells where the benchmarks are that used to be commands of a group `bench`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        refuse_moved(args)
        return super().parse_args(ctx, args)


app = typer.Typer(add_completion=False)


@app.command("bench", cls=Bench)
def bench(
    source: Annotated[str, typer.Argument(help="A video file.")],
    query: Annotated[list[str] | None, typer.Option("--query", "-q", help="As for process.")] = None,
    frames: Annotated[int, typer.Option(min=2, help="Frames to measure on.")] = 150,
    repeats: Repeats = 3,
    preset: Preset = None,
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Measure a file: stages, keyframes and frames between, and baselines in the same run. Look at the ratios."""
    settings = cpu_settings("bench", preset, overrides)

    from arr_stream.evaluation.stages import bench_file
    from arr_stream.relevance.query import Query, parse_text

    queries: list[Query] = [parse_text(text) for text in query or ()]
    report = bench_file(source, settings, queries, max_frames=frames, repeats=repeats, progress=say)
    show(report, as_json=as_json)
