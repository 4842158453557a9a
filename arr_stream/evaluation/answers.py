"""Evaluation of a model's answers with a share of the cells.

Every question starts with an empty memory and takes the path of `ask`: the frames of its picture or video through the
pipeline, the chosen cells to the model, the question with its options at the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from statistics import fmean, median
from threading import Event

from arr_stream.config import Settings
from arr_stream.consumer import total_ms
from arr_stream.errors import ContextExceeded, NothingChosen, QueryError, ServerFailed, SourceError
from arr_stream.evaluation.questions import Question, Skipped
from arr_stream.evaluation.tables import Report, ResultTable, Value
from arr_stream.patch_set import Answer, PatchSet
from arr_stream.run import run
from arr_stream.stream import Models
from arr_stream.stream import open as open_stream
from arr_stream.vlm import ModelSession, make_session
from arr_stream.vlm.qwen3_vl.prompt import Media
from arr_stream.vlm.watcher import Plan, Watcher

WHOLE = "100%"
"""The budget that leaves no choice: every cell of every frame."""
BUDGETS = (WHOLE, "25%")

OfTheQuestion = (SourceError, QueryError, NothingChosen, ContextExceeded)
"""Errors about a single question; any other error ends the evaluation."""

NewSession = Callable[[Media], ModelSession]
"""Function that returns an empty session, for pictures or for a video."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Answer to one question with one budget.

    `tokens` are the visual tokens in the model's memory at the question, `choosing_ms` the time of the selection over
    all frames, `answering_ms` that of the model: the vision tower, prefill, and the whole answer.
    """

    line: int
    question: str
    budget: str
    tokens: int
    right: bool
    said: str
    choosing_ms: float
    answering_ms: float


@dataclass(frozen=True, slots=True)
class AnswersReport(Report):
    """All outcomes in order, and the skipped lines."""

    model: str
    outcomes: tuple[Outcome, ...]
    skipped: tuple[Skipped, ...]

    @property
    def tables(self) -> tuple[ResultTable, ...]:
        budgets = dict.fromkeys(each.budget for each in self.outcomes)
        return (
            ResultTable(
                f"Right answers of {self.model}",
                ("budget", "questions", "right", "from", "to", "tokens", "ms", "choosing"),
                tuple(_row(budget, [each for each in self.outcomes if each.budget == budget]) for budget in budgets),
                "From, to: 95% interval. Tokens: mean number of visual tokens of the picture or video. ms: median from "
                "the first frame to the whole answer, reading files left out; choosing: the time of the selection.",
            ),
        )


def _row(budget: str, outcomes: Sequence[Outcome]) -> tuple[Value, ...]:
    right = fmean(outcome.right for outcome in outcomes)
    tokens = round(fmean(outcome.tokens for outcome in outcomes))
    spent = round(median(outcome.choosing_ms + outcome.answering_ms for outcome in outcomes))
    choosing = round(median(outcome.choosing_ms for outcome in outcomes))
    return budget, len(outcomes), right, *wilson(right, len(outcomes)), tokens, spent, choosing


def wilson(share: float, trials: int) -> tuple[float, float]:
    """Return the 95% interval of a share of `trials` (Wilson, "Probable inference", 1927)."""
    z = 1.959964
    middle = share + z * z / (2 * trials)
    reach = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    scale = 1 + z * z / trials
    return max(0.0, (middle - reach) / scale), min(1.0, (middle + reach) / scale)


def sessions(settings: Settings) -> NewSession:
    """Return a factory of sessions for the model of `vlm`, which is loaded once.

    Raises:
        ArrStreamError: As `arr_stream.vlm.make_session`.
    """
    if settings.vlm.endpoint:
        make_session(settings).close()
        return lambda media: make_session(settings.with_values({"vlm.media": media}))
    from arr_stream.vlm.qwen3_vl.loading import load
    from arr_stream.vlm.qwen3_vl.session import QwenSession

    model = load(settings.vlm, settings.models)
    # One session for pictures and one for videos.
    return cache(lambda media: QwenSession(model, settings.with_values({"vlm.media": media})))


def ask_questions(
    questions: Sequence[Question],
    new_session: NewSession,
    settings: Settings,
    budgets: Sequence[str],
    *,
    stop: Event,
    progress: Callable[[str, int, int], None] = lambda *_: None,
) -> Iterator[Outcome | Skipped]:
    """Ask every question with every budget; a question that fails with one of them counts with none.

    Args:
        questions: From `read_questions`.
        new_session: From `sessions`.
        settings: All settings except the budget.
        budgets: As in `selection.budget`.
        stop: Ends it after the current frame or token when set.
        progress: Called with the next step, the number done, and the total.

    Raises:
        ArrStreamError: Any error that is not about a single question; see `OfTheQuestion`.
    """
    models = Models.load(settings)
    for number, asked in enumerate(questions):
        progress(f"question {number + 1} of {len(questions)}", number, len(questions))
        outcomes: list[Outcome] = []
        try:
            for budget in budgets:
                outcome = _ask(asked, budget, new_session, settings, models, stop)
                if outcome is None:
                    return
                outcomes.append(outcome)
        except OfTheQuestion as exc:
            yield Skipped(asked.line, str(exc))
            continue
        yield from outcomes


def _ask(
    asked: Question, budget: str, new_session: NewSession, settings: Settings, models: Models, stop: Event
) -> Outcome | None:
    """Return the outcome; None if it was stopped."""
    choosing_ms: list[float] = []
    answering_ms: list[float] = []
    answers: list[Answer] = []

    def add(patches: PatchSet) -> None:
        choosing_ms.append(total_ms(patches.latency_ms))
        if patches.feeding is not None:
            answering_ms.append(patches.feeding.vision_ms + patches.feeding.prefill_ms)
        answers.extend(patches.answers)

    settings = settings.with_values({"selection.budget": budget})
    with closing(new_session("video" if asked.video else "image")) as session:
        stream = open_stream(asked.source, queries=asked.queries, settings=settings, models=models)
        watcher = Watcher(session, Plan(asked.prompt), stream=stream, fps=settings.vlm.fps, stop=stop)
        result = run(stream, [], watcher=watcher, on_frame=add, stop=stop)
    if stop.is_set():
        return None
    if error := result.error or watcher.failure:
        raise error
    (answer,) = answers
    if answer.error is not None:
        raise ServerFailed(answer.error)
    return Outcome(
        line=asked.line,
        question=asked.question,
        budget=budget,
        tokens=answer.visual_tokens,
        right=asked.is_right(answer.text),
        said=answer.text.strip(),
        choosing_ms=sum(choosing_ms),
        answering_ms=sum(answering_ms) + answer.prefill_ms + answer.decode_ms,
    )
