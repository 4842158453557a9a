"""`arr-stream eval`: quality on footage with ground truth and on questions. `arr-stream bench`: cost of each stage."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from arr_stream.cli import console, options
from arr_stream.cli.console import counted, counting, interrupted
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
from arr_stream.cli.running import stop_on_signals
from arr_stream.errors import EvaluationIncomplete

if TYPE_CHECKING:
    from arr_stream.evaluation.questions import Skipped


app = typer.Typer(help="Measure quality on footage with ground truth.", no_args_is_help=True)


@app.command()
def coverage(
    data: Sequences,
    budget: Annotated[list[str] | None, typer.Option(help="Tokens a frame, or a share such as 10%.")] = None,
    preset: Preset = None,
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Ask for the box around the first mask and score how much of the object the chosen cells show."""
    from arr_stream.config import Settings
    from arr_stream.evaluation.coverage import evaluate_coverage
    from arr_stream.evaluation.footage import load_footage

    budgets = list(dict.fromkeys(budget or ("40", "101")))
    settings = Settings.load(preset, overrides or ())
    for each in budgets:
        settings.with_values({"selection.budget": each})
    report = evaluate_coverage(load_footage(data), budgets, settings, progress=say)
    show(report, as_json=as_json)


@app.command()
def questions(
    data: Annotated[Path, typer.Argument(help="JSON lines, or a folder with questions.jsonl; see docs/measuring.md.")],
    model: options.Model = None,
    endpoint: options.Endpoint = None,
    budget: Annotated[
        list[str] | None,
        options.option("Tokens a frame, or a share of the grid; repeat it (100% and 25%).", options.LOOK),
    ] = None,
    preset: options.Preset = None,
    overrides: options.Overrides = None,
    as_json: Json = False,
) -> None:
    """Ask a model your own questions about pictures and videos: right answers by share of the tokens, with intervals.

    Malformed lines are reported and left out; the exit code is then 82.
    """
    from arr_stream.vlm import answering

    loaded = options.load_settings(preset, overrides, model=model, endpoint=endpoint)
    settings = answering(loaded).for_memory()

    from arr_stream.cli.models import fetch_needed
    from arr_stream.evaluation.answers import BUDGETS, AnswersReport, ask_questions, sessions
    from arr_stream.evaluation.questions import Skipped, read_questions
    from arr_stream.plain_text import model_name

    budgets = list(dict.fromkeys(budget or BUDGETS))
    for share in budgets:
        settings.with_values({"selection.budget": share})
    found, left_out = read_questions(data)
    skipped, outcomes = list(left_out), []
    for line in left_out:
        _report(line)
    fetch_needed(settings)
    new_session = sessions(settings)
    try:
        with stop_on_signals() as stop, counting() as advance:
            for each in ask_questions(found, new_session, settings, budgets, stop=stop, progress=advance):
                if isinstance(each, Skipped):
                    skipped.append(each)
                    _report(each)
                else:
                    outcomes.append(each)
    finally:
        # Even after an interruption: the existing outcomes took long to compute.
        if outcomes:
            show(AnswersReport(model_name(settings.vlm.model), tuple(outcomes), tuple(skipped)), as_json=as_json)
    if stop.is_set():
        raise interrupted(f" after {counted(len(outcomes) // len(budgets), 'question')} of {len(found)}")
    if skipped:
        raise EvaluationIncomplete(
            f"{counted(len(skipped), 'line')} of {len(found) + len(left_out)} left out",
            remedy="correct the lines reported above",
        )


def _report(skipped: Skipped) -> None:
    console.say(f"line {skipped.line}: {skipped.reason}")


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
