"""`arr-stream eval questions`: accuracy on the user's own questions, by share of the tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from arr_stream.cli import options
from arr_stream.cli.console import counted, counting, interrupted, say
from arr_stream.cli.measuring import Json, show
from arr_stream.cli.running import stop_on_signals
from arr_stream.errors import EvaluationIncomplete, InvalidSetting

if TYPE_CHECKING:
    from arr_stream.evaluation.answers import ChoiceName
    from arr_stream.evaluation.questions import Skipped


def questions(
    data: Annotated[Path, typer.Argument(help="JSON lines, or a folder with questions.jsonl; see docs/measuring.md.")],
    model: options.Model = None,
    endpoint: options.Endpoint = None,
    budget: Annotated[
        list[str] | None,
        options.option("Tokens a frame, or a share of the grid; repeat it (100% and 25%).", options.LOOK),
    ] = None,
    choice: Annotated[
        list[str] | None,
        options.option("Method of choice: ours, uniform, random or scaled; repeatable (ours).", options.LOOK),
    ] = None,
    tell_options: Annotated[
        bool, options.option("Add the possible answers to the question.", options.ASK, "--tell-options")
    ] = False,
    preset: options.Preset = None,
    overrides: options.Overrides = None,
    as_json: Json = False,
) -> None:
    """Ask a model your own questions about pictures and videos: right answers by share of the tokens, with intervals.

    Malformed lines are reported and left out; the exit code is then 82.
    """
    from arr_stream.vlm import answering

    loaded = options.load_settings(preset, overrides, model=model, endpoint=endpoint)
    settings, notices = options.without_skipping(answering(loaded))

    from arr_stream.answers import model_name
    from arr_stream.cli.models import fetch_needed
    from arr_stream.evaluation.answers import BUDGETS, AnswersReport, ask_questions, conditions, sessions
    from arr_stream.evaluation.questions import Skipped, read_questions
    from arr_stream.selection.budget import budget_tokens

    for each in budget or ():
        budget_tokens(each, settings.grid.max_pixels)
    asked_under = conditions(budget or BUDGETS, _choices(choice))
    found, left_out = read_questions(data)
    skipped, outcomes = list(left_out), []
    for notice in notices:
        say(f"note: {notice}")
    for line in left_out:
        _tell(line)
    fetch_needed(settings)
    new_session = sessions(settings)
    try:
        with stop_on_signals() as stop, counting() as advance:
            for each_outcome in ask_questions(
                found, new_session, settings, asked_under, tell_options=tell_options, stop=stop, progress=advance
            ):
                if isinstance(each_outcome, Skipped):
                    skipped.append(each_outcome)
                    _tell(each_outcome)
                else:
                    outcomes.append(each_outcome)
    finally:
        # Even after an interruption: the existing outcomes took long to compute.
        if outcomes:
            show(AnswersReport(model_name(settings.vlm.model), tuple(outcomes), tuple(skipped)), as_json=as_json)
    if stop.is_set():
        raise interrupted(f" after {counted(len(outcomes) // len(asked_under), 'question')} of {len(found)}")
    if skipped:
        raise EvaluationIncomplete(
            f"{counted(len(skipped), 'line')} of {len(found) + len(left_out)} left out",
            remedy="correct the lines reported above",
        )


def _choices(names: Sequence[str] | None) -> list[ChoiceName]:
    """Return the strategies to compare.

    Raises:
        InvalidSetting: A strategy does not exist.
    """
    from arr_stream.evaluation.answers import CHOICES

    for name in names or ():
        if name not in CHOICES:
            raise InvalidSetting(f"--choice {name!r} is not known", remedy=f"choose from {', '.join(CHOICES)}")
    return cast("list[ChoiceName]", list(names or ["ours"]))


def _tell(skipped: Skipped) -> None:
    say(f"line {skipped.line}: {skipped.reason}")
