"""`arr-stream eval`: how good is it, on footage with ground truth?"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from arr_stream.cli import (
    evaluate_ablation,
    evaluate_atlas,
    evaluate_cascade,
    evaluate_clusters,
    evaluate_interval,
    evaluate_meaning,
    evaluate_questions,
    evaluate_text,
)
from arr_stream.cli.console import err, out, parse_size
from arr_stream.cli.pictures import check_picture, write_picture
from arr_stream.config import Settings

if TYPE_CHECKING:
    from arr_stream.evaluation.davis import Sequence
    from arr_stream.patch_set import PatchSet

app = typer.Typer(help="Measure quality on footage with ground truth.", no_args_is_help=True)
app.command()(evaluate_ablation.ablation)
app.command()(evaluate_text.text)
app.command()(evaluate_cascade.cascade)
app.command()(evaluate_clusters.clusters)
app.command()(evaluate_atlas.atlas)
app.command()(evaluate_interval.interval)
app.command()(evaluate_meaning.meaning)
app.command()(evaluate_questions.questions)

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Plot = Annotated[Path | None, typer.Option("--plot", help="Write a picture.")]
Force = Annotated[bool, typer.Option("--force", "-f", help="Overwrite the picture.")]
Data = Annotated[Path, typer.Argument(help="Folder with frames/SEQ and masks/SEQ, or clips with truth files.")]
Preset = Annotated[Path | None, typer.Option("--preset", help="Settings from a TOML file.")]
Overrides = Annotated[list[str] | None, typer.Option("--set", help="key=value, over the preset.")]


@app.command()
def carry(
    data: Data,
    interval: Annotated[list[int] | None, typer.Option(min=2, help="Frames from mask to mask.")] = None,
    as_json: Json = False,
    plot: Plot = None,
    force: Force = False,
) -> None:
    """Carry the mask of every Nth frame over the frames between: mean IoU, and the curve against age."""
    check_picture(plot, force=force)

    from arr_stream.evaluation.carry import TIME_REFERENCE, evaluate_carry
    from arr_stream.evaluation.davis import load_sequences
    from arr_stream.evaluation.plots import plot_carry

    report = evaluate_carry(load_sequences(data), list(dict.fromkeys(interval or [10, 30])), progress=_progress)
    table = Table("tracker", "interval", "mean IoU", "ms a frame", "times the flow", title="Carried masks")
    for row in report.rows:
        ratio = row.milliseconds / report.flow_milliseconds
        table.add_row(row.tracker, str(row.interval), f"{row.iou:.3f}", f"{row.milliseconds:.3f}", f"{ratio:.2f}")
    table.add_row(TIME_REFERENCE, "", "", f"{report.flow_milliseconds:.3f}", "1.00")
    _finish(report.as_json(), table, as_json)
    write_picture(plot, lambda path: plot_carry(report, path), force=force)


@app.command()
def coverage(
    data: Data,
    budget: Annotated[list[int] | None, typer.Option(min=1, help="Tokens a frame.")] = None,
    preset: Preset = None,
    overrides: Overrides = None,
    as_json: Json = False,
    plot: Plot = None,
    force: Force = False,
) -> None:
    """Ask for the box around the first mask and score how much of the object the chosen cells show."""
    settings = Settings.load(preset, overrides or ())
    check_picture(plot, force=force)

    import arr_stream
    from arr_stream.evaluation.coverage import METHODS, evaluate_coverage
    from arr_stream.evaluation.davis import load_sequences
    from arr_stream.evaluation.plots import plot_coverage

    def open_patches(sequence: Sequence, region: tuple[float, float, float, float], tokens: int) -> Iterable[PatchSet]:
        return arr_stream.open(sequence.source, region=region, budget=tokens, settings=settings)

    budgets = list(dict.fromkeys(budget or [40, 101]))
    report = evaluate_coverage(load_sequences(data), budgets, open_patches, progress=_progress)
    table = Table("method", *(f"{tokens} tokens" for tokens in budgets), title="Mean coverage of the object")
    for method in METHODS:
        table.add_row(method, *(f"{report.mean(method, tokens):.3f}" for tokens in budgets))
    _finish(report.as_json(), table, as_json)
    write_picture(plot, lambda path: plot_coverage(report, path), force=force)


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
    table = Table("pair", "estimator", "endpoint error (px)", "true mean (px)", "ms", title="Flow")
    for row in report.rows:
        table.add_row(
            row.pair,
            row.estimator,
            f"{row.endpoint_error_px:.2f}",
            f"{row.true_mean_px:.1f}",
            f"{row.milliseconds:.1f}",
        )
    _finish(report.as_json(), table, as_json)
    write_picture(plot, lambda path: plot_flow(report, path), force=force)


@app.command()
def localisation(
    model: Annotated[str, typer.Option("--model", help="As `clip.model`.")] = "tiny",
    scenes: Annotated[int, typer.Option("--scenes", min=1, help="Generated scenes to look at.")] = 200,
    size: Annotated[str, typer.Option("--size", help="Of the scenes, WIDTHxHEIGHT.")] = "448x256",
    seed: Annotated[int, typer.Option("--seed", min=0, help="Other scenes.")] = 0,
    method: Annotated[list[str] | None, typer.Option("--method", help="As `clip.method`; all that fit.")] = None,
    passes: Annotated[list[str] | None, typer.Option("--passes", help="As `clip.passes`; all.")] = None,
    preset: Preset = None,
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Ask generated scenes for their things in words: which dense method finds them?"""
    settings = Settings.load(preset, overrides or ()).with_values({"clip.model": model})
    size_wh = parse_size(size)

    from arr_stream.keyframes.embeddings.clip import ClipTextEncoder
    from benchmarks.localisation import clip_variants, evaluate_localisation, held_out_scenes

    embedders = clip_variants(settings, method, passes)
    encoder = ClipTextEncoder(settings.clip, settings.models)
    report = evaluate_localisation(held_out_scenes(scenes, seed, size_wh), embedders, encoder, progress=_progress)
    table = Table("method", "pass", title=f"{encoder.space}: {scenes} generated scenes, {size}", padding=(0, 0, 0, 1))
    for kind in ("colour\n+shape", "shape\nalone"):
        for figure in ("AUC\ncells", "AUC\nthings", "share\nat 10%"):
            table.add_column(f"{kind}\n{figure}", justify="right")
    table.add_column("ms", justify="right", vertical="bottom")
    for both, alone in zip(report.rows[::2], report.rows[1::2], strict=True):
        figures = [(row.auc_all, row.auc_things, row.coverage_share) for row in (both, alone)]
        name = both.embedder.split()[-2:]
        table.add_row(*name, *(f"{value:.3f}" for value in (*figures[0], *figures[1])), f"{both.milliseconds:.1f}")
    _finish(report.as_json(), table, as_json)


def _progress(name: str) -> None:
    if err.is_terminal:
        err.print(name, style="dim", markup=False)


def _finish(values: dict[str, Any], table: Table, as_json: bool) -> None:
    if as_json:
        out.print_json(json.dumps(values))
    else:
        out.print(table)
