"""`arr-stream eval`: quality on footage with ground truth. `arr-stream bench`: cost of each stage."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from arr_stream.cli import NamesOptions
from arr_stream.cli.measuring import (
    Json,
    Overrides,
    Preset,
    Repeats,
    Sequences,
    cpu_settings,
    say,
    show,
)
from arr_stream.cli.questions import questions

if TYPE_CHECKING:
    from arr_stream.evaluation.davis import Sequence
    from arr_stream.patch_set import PatchSet


app = typer.Typer(help="Measure quality on footage with ground truth.", no_args_is_help=True)
app.command(cls=NamesOptions)(questions)


@app.command()
def coverage(
    data: Sequences,
    budget: Annotated[list[str] | None, typer.Option(help="Tokens a frame, or a share such as 10%.")] = None,
    preset: Preset = None,
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Ask for the box around the first mask and score how much of the object the chosen cells show."""
    import arr_stream
    from arr_stream.config import Settings
    from arr_stream.evaluation.coverage import evaluate_coverage
    from arr_stream.evaluation.davis import load_sequences
    from arr_stream.selection.budget import budget_tokens

    budgets = [int(each) if each.isdecimal() else each for each in dict.fromkeys(budget or ("40", "101"))]
    for each in budgets:
        budget_tokens(str(each), 1 << 30)
    settings = Settings.load(preset, overrides or ())

    def open_patches(
        sequence: Sequence, region: tuple[float, float, float, float], tokens: int | str
    ) -> Iterable[PatchSet]:
        return arr_stream.open(sequence.source, region=region, budget=tokens, settings=settings)

    report = evaluate_coverage(load_sequences(data), budgets, open_patches, progress=say)
    show(report, as_json=as_json)


def bench(
    source: Annotated[str, typer.Argument(help="A video file.")],
    query: Annotated[list[str] | None, typer.Option("--query", "-q", help="As for process.")] = None,
    frames: Annotated[int, typer.Option(min=2, help="Frames to measure on.")] = 150,
    repeats: Repeats = 3,
    preset: Preset = None,
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Measure a file: the start, stages, keyframes and frames between, and baselines in the same run. Look at the
    ratios."""
    settings = cpu_settings("bench", preset, overrides)

    from arr_stream.evaluation.stages import bench_file
    from arr_stream.relevance.query import Query, parse_text

    queries: list[Query] = [parse_text(text) for text in query or ()]
    report = bench_file(source, settings, queries, max_frames=frames, repeats=repeats, progress=say)
    show(report, as_json=as_json)
