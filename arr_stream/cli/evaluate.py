"""`arr-stream eval`: how good is it, on footage with ground truth? `arr-stream bench`: what does each stage cost?"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from arr_stream.cli.console import out
from arr_stream.cli.measuring import (
    Force,
    Json,
    Overrides,
    Plot,
    Preset,
    Repeats,
    Sequences,
    check_picture,
    cpu_settings,
    present,
    say,
)
from arr_stream.cli.questions import questions

if TYPE_CHECKING:
    from arr_stream.evaluation.davis import Sequence
    from arr_stream.keyframes.base import TextFinder
    from arr_stream.patch_set import PatchSet


app = typer.Typer(help="Measure quality on footage with ground truth.", no_args_is_help=True)
app.command()(questions)


@app.command()
def carry(
    data: Sequences,
    interval: Annotated[list[int] | None, typer.Option(min=2, help="Frames from mask to mask.")] = None,
    as_json: Json = False,
    plot: Plot = None,
    force: Force = False,
) -> None:
    """Carry the mask of every Nth frame over the frames between: mean IoU, and the curve against age."""
    check_picture(plot, force=force)

    from arr_stream.evaluation.carry import evaluate_carry
    from arr_stream.evaluation.davis import load_sequences
    from arr_stream.evaluation.plots import plot_carry

    report = evaluate_carry(load_sequences(data), list(dict.fromkeys(interval or [10, 30])), progress=say)
    present(report, as_json=as_json, plot=plot, draw=plot_carry, force=force)


@app.command()
def coverage(
    data: Sequences,
    budget: Annotated[list[int] | None, typer.Option(min=1, help="Tokens a frame.")] = None,
    preset: Preset = None,
    overrides: Overrides = None,
    as_json: Json = False,
    plot: Plot = None,
    force: Force = False,
) -> None:
    """Ask for the box around the first mask and score how much of the object the chosen cells show."""
    import arr_stream
    from arr_stream.config import Settings
    from arr_stream.evaluation.coverage import evaluate_coverage
    from arr_stream.evaluation.davis import load_sequences
    from arr_stream.evaluation.plots import plot_coverage

    settings = Settings.load(preset, overrides or ())
    check_picture(plot, force=force)

    def open_patches(sequence: Sequence, region: tuple[float, float, float, float], tokens: int) -> Iterable[PatchSet]:
        return arr_stream.open(sequence.source, region=region, budget=tokens, settings=settings)

    budgets = list(dict.fromkeys(budget or [40, 101]))
    report = evaluate_coverage(load_sequences(data), budgets, open_patches, progress=say)
    present(report, as_json=as_json, plot=plot, draw=plot_coverage, force=force)


@app.command()
def flow(
    data: Annotated[Path, typer.Argument(help="Folder of pairs: two pictures and a .flo or KITTI PNG each.")],
    as_json: Json = False,
    plot: Plot = None,
    force: Force = False,
) -> None:
    """Endpoint error of the flow on pairs with ground truth."""
    check_picture(plot, force=force)

    from arr_stream.evaluation.flow import dis_reference, evaluate_flow, load_pairs, pipeline_flow
    from arr_stream.evaluation.plots import plot_flow

    presets = ("ultrafast", "fast", "medium")
    estimators = {
        **{f"arr-stream, {n} {preset}": pipeline_flow(n, preset) for n in ("dis", "torch") for preset in presets},
        **{f"DIS {preset}, full size": dis_reference(preset) for preset in ("fast", "medium")},
    }
    report = evaluate_flow(load_pairs(data), estimators)
    present(report, as_json=as_json, plot=plot, draw=plot_flow, force=force)


@app.command()
def text(
    data: Annotated[Path, typer.Argument(help="Folder with textdet_*.json or data.txt, or with such folders.")],
    backend: Annotated[list[str] | None, typer.Option(help="Finder, as in keyframes.text.")] = None,
    blank: Annotated[list[Path] | None, typer.Option(help="Folder of pictures without any text.")] = None,
    blank_every: Annotated[int, typer.Option(min=1, help="Take each Nth of those.")] = 10,
    threads: Annotated[int, typer.Option(min=1, help="Threads for each finder.")] = 1,
    preset: Preset = None,
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Recall and precision of the text mask, words read, and processor time, on pictures with ground truth."""
    from arr_stream.config import Settings
    from arr_stream.evaluation.text import evaluate_text, load_blank, load_pictures, text_tables
    from arr_stream.keyframes.text import make_text_finder

    settings = Settings.load(preset, overrides or ())

    pictures = load_pictures(data)
    for folder in blank or ():
        pictures += load_blank(folder, blank_every)

    def maker(name: str) -> Callable[[], TextFinder]:
        chosen = settings.with_values({"keyframes.text": name})
        return lambda: make_text_finder(chosen, threads)

    finders = {name: maker(name) for name in backend or ["auto", "rapidocr"]}
    scores = evaluate_text(pictures, finders, progress=say)
    if as_json:
        out.print_json(json.dumps([score.as_json() for score in scores]))
        return
    for table in text_tables(scores):
        out.print(table.rich())


def bench(
    source: Annotated[str, typer.Argument(help="A video file.")],
    query: Annotated[list[str] | None, typer.Option("--query", "-q", help="As for process.")] = None,
    frames: Annotated[int, typer.Option(min=2, help="Frames to measure on.")] = 150,
    repeats: Repeats = 3,
    preset: Preset = None,
    overrides: Overrides = None,
    as_json: Json = False,
    plot: Plot = None,
    force: Force = False,
) -> None:
    """Measure a file: the start, stages, keyframes and frames between, and baselines in the same run. Look at the
    ratios."""
    check_picture(plot, force=force)
    settings = cpu_settings("bench", preset, overrides)

    from arr_stream.evaluation.plots import plot_bench
    from arr_stream.evaluation.stages import bench_file
    from arr_stream.relevance.query import Query, parse_text

    queries: list[Query] = [parse_text(text) for text in query or ()]
    report = bench_file(source, settings, queries, max_frames=frames, repeats=repeats, progress=say)
    present(report, as_json=as_json, plot=plot, draw=plot_bench, force=force)
