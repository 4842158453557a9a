"""Evaluation of a model's answers with a share of the cells.

Every question starts with an empty memory and takes the path of `ask`: the frames of its picture or video through the
pipeline, the chosen cells to the model, the question at the end. Of given options the likeliest counts, by the
probability of the whole answer. Without options, or with a model behind a server, which reports no probabilities, the
words count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from arr_stream.config import Settings
from arr_stream.consumer import total_ms
from arr_stream.errors import BudgetError, ContextExceeded, NothingChosen, QueryError, ServerFailed, SourceError
from arr_stream.evaluation.questions import Question, Skipped
from arr_stream.evaluation.tables import Report, ResultTable, Value
from arr_stream.stream import Models
from arr_stream.stream import open as open_stream
from arr_stream.threads import one_opencv_thread
from arr_stream.vlm import ModelSession, Stop, Weighs, make_session
from arr_stream.vlm.qwen3_vl.prompt import Media
from arr_stream.vlm.watcher import Plan, Watcher

WHOLE = "100%"
"""The budget that leaves no choice: every cell of every frame."""
BUDGETS = (WHOLE, "25%")

OfTheQuestion = (SourceError, QueryError, BudgetError, NothingChosen, ContextExceeded)
"""Errors about a single question; any other error ends the evaluation."""

NewSession = Callable[[Media], ModelSession]
"""Function that returns an empty session, for pictures or for a video."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One question with one budget.

    Args:
        line, question: Line and text of the question.
        budget: As in `selection.budget`.
        tokens: Visual tokens in the model's memory at the question.
        right: The likeliest option is an answer or, where words count, the words are.
        said: The model's words.
        picked: The likeliest option; None where words count.
        choosing_ms: Time of the selection, over all frames.
        answering_ms: Time of the model: the vision tower, prefill, and the whole answer.
    """

    line: int
    question: str
    budget: str
    tokens: int
    right: bool
    said: str
    picked: str | None
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
                "Right: of offered answers the likeliest, otherwise the words. From, to: 95% interval. Tokens: mean "
                "number of visual tokens of the picture or video. ms: median from the first frame to the whole answer, "
                "reading files left out; choosing: the time of the selection in it.",
            ),
        )


def _row(budget: str, outcomes: Sequence[Outcome]) -> tuple[Value, ...]:
    right = float(np.mean([outcome.right for outcome in outcomes]))
    tokens = round(float(np.mean([outcome.tokens for outcome in outcomes])))
    spent = round(float(np.median([outcome.choosing_ms + outcome.answering_ms for outcome in outcomes])))
    choosing = round(float(np.median([outcome.choosing_ms for outcome in outcomes])))
    low, high = wilson(right, len(outcomes))
    return budget, len(outcomes), right, low, high, tokens, spent, choosing


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
        return lambda _: make_session(settings)
    from arr_stream.vlm.qwen3_vl.loading import load
    from arr_stream.vlm.qwen3_vl.session import QwenSession

    model = load(settings.vlm, settings.models)
    # One session for pictures and one for videos: each runs the model's self-check when it is created.
    return cache(lambda media: QwenSession(model, settings.with_values({"vlm.media": media})))


def ask_questions(
    questions: Sequence[Question],
    new_session: NewSession,
    settings: Settings,
    budgets: Sequence[str],
    *,
    tell_options: bool = False,
    stop: Stop,
    progress: Callable[[str, int, int], None] = lambda *_: None,
) -> Iterator[Outcome | Skipped]:
    """Ask every question with every budget; a question that fails with one of them counts with none.

    Args:
        questions: From `read_questions`.
        new_session: From `sessions`.
        settings: All settings except the budget.
        budgets: As in `selection.budget`.
        tell_options: Add the options to each question; always done for a model behind a server.
        stop: Ends it after the current frame or token when set.
        progress: Called with the next step, the number done, and the total.

    Raises:
        ArrStreamError: Any error that is not about a single question; see `OfTheQuestion`.
    """
    models, total = Models.load(settings), len(questions) * len(budgets)
    for number, asked in enumerate(questions):
        outcomes: list[Outcome] = []
        try:
            for budget in budgets:
                done = number * len(budgets) + len(outcomes)
                progress(f"question {number + 1} of {len(questions)}, {budget}", done, total)
                outcome = _ask(asked, budget, new_session, settings, models, tell_options, stop)
                if outcome is None:
                    return
                outcomes.append(outcome)
        except OfTheQuestion as exc:
            yield Skipped(asked.line, str(exc))
            continue
        yield from outcomes


def _ask(
    asked: Question,
    budget: str,
    new_session: NewSession,
    settings: Settings,
    models: Models,
    tell_options: bool,
    stop: Stop,
) -> Outcome | None:
    """Return the outcome; None if it was stopped."""
    session = new_session("video" if asked.video else "image")
    prompt = asked.question
    if asked.options and (tell_options or not isinstance(session, Weighs)):
        prompt = f"{prompt} Answer with one of these and nothing else: {', '.join(asked.options)}."
    choosing_ms = answering_ms = 0.0
    settings = settings.with_values({"selection.budget": budget})
    try:
        stream = open_stream(asked.source, queries=asked.queries, settings=settings, models=models)
        with stream, one_opencv_thread():
            stream.look_ahead = True
            watcher = Watcher(session, Plan(prompt), stream=stream, fps=settings.vlm.fps, stop=stop)
            for patches in stream:
                assert stream.frame is not None
                choosing_ms += total_ms(patches.latency_ms)
                shown = watcher.watch(stream.frame, patches, "last" if stream.last else None)
                if shown.feeding is not None:
                    answering_ms += shown.feeding.vision_ms + shown.feeding.prefill_ms
                if stop.is_set():
                    return None
        (answer,) = shown.answers
        if watcher.failure is not None:
            raise watcher.failure
        if answer.error is not None:
            raise ServerFailed(answer.error)
        picked = None
        if asked.options and isinstance(session, Weighs):
            picked = asked.options[int(np.argmax(session.weigh(prompt, asked.options)))]
    finally:
        session.close()
    return Outcome(
        line=asked.line,
        question=asked.question,
        budget=budget,
        tokens=answer.visual_tokens,
        right=picked in asked.answer if picked is not None else asked.is_right(answer.text),
        said=answer.text.strip(),
        picked=picked,
        choosing_ms=choosing_ms,
        answering_ms=answering_ms + answer.prefill_ms + answer.decode_ms,
    )
