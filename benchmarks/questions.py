"""Does a model still answer when it sees a part of the picture, and does it matter which part?

Every question of `picture_questions` is asked of the same model with the cells that this package chooses for the
question's query, with evenly spread cells, with random ones, and with the whole picture scaled down, at several
budgets and in several modes of feeding. Beside the answers stands how much of what must be seen was among the cells;
that part needs no model.

Answers are scored twice: by the likeliest of the offered ones, which is defined for every model, and by what the
model says in words, compared without regard to case and punctuation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from arr_stream.config import Settings
from arr_stream.evaluation.answers import wilson
from arr_stream.evaluation.choices import random_cells, scaled, uniform
from arr_stream.evaluation.tables import plain
from arr_stream.relevance.words import folded
from arr_stream.selection.allocation import Allocation
from arr_stream.selection.budget import budget_tokens
from arr_stream.types import ByteArray, FloatArray, Grid
from benchmarks.cell_choices import OurChoice, covered
from benchmarks.picture_questions import PictureQuestion

Mode = Literal["sparse", "halo", "prune", "weight"]
ChoiceName = Literal["ours", "uniform", "random", "scaled", "all"]

CHOICES: tuple[ChoiceName, ...] = ("ours", "uniform", "random", "scaled")
"""How cells are chosen below the full budget, where every choice is `all`."""
MODES: tuple[Mode, ...] = ("sparse", "halo", "prune")
SHARES = ("100%", "50%", "25%", "10%")
SEEDS = 3

WHOLLY = 0.9
"""Share of a thing that must be in fine cells for it to count as wholly seen."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a model answered.

    Args:
        text: In its own words.
        scores: For each option the log likelihood that it is the whole answer.
        milliseconds: Time of looking and answering.
    """

    text: str
    scores: tuple[float, ...]
    milliseconds: float


_NO_REPLY = Reply("", (), 0.0)


class Answerer(Protocol):
    """A model that is shown some cells of a picture and asked one question."""

    name: str

    def answer(
        self, rgb: ByteArray, grid: Grid, cells: Allocation, mode: Mode, question: str, options: Sequence[str]
    ) -> Reply:
        """Answer from these cells alone; nothing of an earlier call is remembered.

        Args:
            rgb: `[H, W, 3]` uint8.
            grid: Its cells.
            cells: Those to be shown.
            mode: How they are fed to the model.
            question: In words, options included.
            options: Whose likelihoods are wanted.
        """
        ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """One question under one condition.

    Args:
        picture, kind, question: Which.
        mode: Of feeding; empty without a model.
        choice, budget: Who chose how many cells.
        tokens: Cells chosen.
        seen: Mean over the things that must be seen of their share inside fine cells; None where there are none.
        shown: The same inside cells of any level of detail.
        whole: Each of them has at least `WHOLLY` of it in fine cells.
        picked: The likeliest option; empty without a model.
        right: It is the answer.
        text: What the model said.
        text_right: It is the answer, or a synonym of it.
        choosing_ms, answering_ms: Time.
    """

    picture: str
    kind: str
    question: str
    mode: str
    choice: ChoiceName
    budget: str
    tokens: int
    seen: float | None
    shown: float | None
    whole: bool | None
    picked: str
    right: bool
    text: str
    text_right: bool
    choosing_ms: float
    answering_ms: float


@dataclass(frozen=True, slots=True)
class QuestionRow:
    """Means over the questions of one condition; random choices are pooled over their seeds.

    Args:
        mode, choice, budget: The condition.
        kind: Of the questions; empty for all.
        questions: How many; a question that several random choices were made for counts once.
        tokens: Cells chosen.
        seen, shown, whole: See `Outcome`; over the questions with something to be seen.
        accuracy: Share of questions where the likeliest option is right; None without a model.
        low, high: Its 95% interval (Wilson 1927), for as many trials as there are questions.
        text_accuracy: Share where the words are right.
        choosing_ms, answering_ms: Median time.
    """

    mode: str
    choice: ChoiceName
    budget: str
    kind: str
    questions: int
    tokens: float
    seen: float | None
    shown: float | None
    whole: float | None
    accuracy: float | None
    low: float | None
    high: float | None
    text_accuracy: float | None
    choosing_ms: float
    answering_ms: float


@dataclass(frozen=True, slots=True)
class QuestionReport:
    """All outcomes.

    Args:
        model: Name of what answered; None where nothing did.
        chance: Expected accuracy of guessing.
        outcomes: In the order in which they came.
    """

    model: str | None
    chance: float
    outcomes: tuple[Outcome, ...]

    def rows(self, *, by_kind: bool = False) -> tuple[QuestionRow, ...]:
        """One row a condition, or one a condition and kind of question."""
        groups: dict[tuple[str, ChoiceName, str, str], list[Outcome]] = {}
        for outcome in self.outcomes:
            key = (outcome.mode, outcome.choice, outcome.budget, outcome.kind if by_kind else "")
            groups.setdefault(key, []).append(outcome)
        return tuple(_row(*key, group, self.model is not None) for key, group in groups.items())

    def row(self, mode: str, choice: ChoiceName, budget: str) -> QuestionRow:
        """The row of one condition."""
        return next(row for row in self.rows() if (row.mode, row.choice, row.budget) == (mode, choice, budget))

    def as_json(self) -> dict[str, Any]:
        found = {"rows": self.rows(), "kinds": self.rows(by_kind=True), "outcomes": self.outcomes}
        return {"model": self.model, "chance": round(self.chance, 4), **plain(found)}


def _row(
    mode: str, choice: ChoiceName, budget: str, kind: str, outcomes: Sequence[Outcome], answered: bool
) -> QuestionRow:
    questions = len({(outcome.picture, outcome.question) for outcome in outcomes})
    visible = [outcome for outcome in outcomes if outcome.seen is not None]
    accuracy = _mean([outcome.right for outcome in outcomes]) if answered else None
    low, high = wilson(accuracy, questions) if accuracy is not None else (None, None)
    return QuestionRow(
        mode=mode,
        choice=choice,
        budget=budget,
        kind=kind,
        questions=questions,
        tokens=float(np.mean([outcome.tokens for outcome in outcomes])),
        seen=_mean([outcome.seen for outcome in visible]),
        shown=_mean([outcome.shown for outcome in visible]),
        whole=_mean([outcome.whole for outcome in visible]),
        accuracy=accuracy,
        low=low,
        high=high,
        text_accuracy=_mean([outcome.text_right for outcome in outcomes]) if answered else None,
        choosing_ms=float(np.median([outcome.choosing_ms for outcome in outcomes])),
        answering_ms=float(np.median([outcome.answering_ms for outcome in outcomes])),
    )


def _mean(values: Sequence[float | bool | None]) -> float | None:
    return float(np.mean([float(value) for value in values if value is not None])) if values else None


def compare(
    questions: Sequence[PictureQuestion],
    answerer: Answerer | None,
    settings: Settings,
    *,
    modes: Sequence[Mode] = MODES,
    budgets: Sequence[str] = SHARES,
    choices: Sequence[ChoiceName] = CHOICES,
    seeds: int = SEEDS,
    progress: Callable[[str], None] = lambda _: None,
) -> QuestionReport:
    """Ask every question under every condition.

    Args:
        questions: Such as `picture_questions()`.
        answerer: Who answers; None to look at the choices alone.
        settings: How `ours` chooses.
        modes: Of feeding; without an answerer they make no difference and are left out.
        budgets: As `selection.budget`; with all cells every choice is one, `all`.
        choices: Of `CHOICES`.
        seeds: How many random choices.
        progress: Told how far it is.

    Raises:
        BudgetError: A budget that does not fit the pictures.
        ArrStreamError: What choosing or answering raises.
    """
    ours = OurChoice(settings)
    outcomes: list[Outcome] = []
    for number, asked in enumerate(questions, start=1):
        progress(f"question {number} of {len(questions)}: {asked.question}")
        grid = Grid.for_size((asked.rgb.shape[1], asked.rgb.shape[0]), max_pixels=settings.grid.max_pixels)
        for budget in budgets:
            tokens = budget_tokens(budget, grid.cells)
            for choice, cells, choosing_ms in _chosen(ours, asked, grid, tokens, choices, seeds):
                seen, shown = covered(asked.regions, cells, grid)
                replies: list[tuple[str, Reply]] = [("", _NO_REPLY)]
                if answerer is not None:
                    words = prompt(asked)
                    replies = [(m, answerer.answer(asked.rgb, grid, cells, m, words, asked.options)) for m in modes]
                outcomes += [
                    _outcome(asked, mode, choice, budget, cells, (seen, shown), choosing_ms, reply)
                    for mode, reply in replies
                ]
    chance = float(np.mean([1 / len(asked.options) for asked in questions])) if questions else 0.0
    return QuestionReport(answerer.name if answerer is not None else None, chance, tuple(outcomes))


def prompt(asked: PictureQuestion) -> str:
    """The question with its options, as it is put to the model."""
    return f"{asked.question} Answer with one of these and nothing else: {', '.join(asked.options)}."


def _outcome(
    asked: PictureQuestion,
    mode: str,
    choice: ChoiceName,
    budget: str,
    cells: Allocation,
    coverage: tuple[FloatArray, FloatArray],
    choosing_ms: float,
    reply: Reply,
) -> Outcome:
    seen, shown = coverage
    picked = asked.options[int(np.argmax(reply.scores))] if reply.scores else ""
    return Outcome(
        picture=asked.picture,
        kind=asked.kind,
        question=asked.question,
        mode=mode,
        choice=choice,
        budget=budget,
        tokens=cells.tokens,
        seen=float(seen.mean()) if len(seen) else None,
        shown=float(shown.mean()) if len(shown) else None,
        whole=bool((seen >= WHOLLY).all()) if len(seen) else None,
        picked=picked,
        right=picked == asked.answer,
        text=reply.text,
        text_right=folded(reply.text) in {folded(accepted) for accepted in asked.accepted},
        choosing_ms=choosing_ms,
        answering_ms=reply.milliseconds,
    )


def _chosen(
    ours: OurChoice,
    asked: PictureQuestion,
    grid: Grid,
    tokens: int,
    choices: Sequence[ChoiceName],
    seeds: int,
) -> Iterator[tuple[ChoiceName, Allocation, float]]:
    """Every choice of so many cells, and the milliseconds that each took."""
    if tokens == grid.cells:
        yield "all", uniform(grid, tokens), 0.0
        return
    for choice in choices:
        if choice == "ours":
            yield choice, *ours.choose(asked.rgb, asked.queries, tokens)
        elif choice == "random":
            for seed in range(seeds):
                yield choice, random_cells(grid, tokens, _seed(asked, seed)), 0.0
        else:
            yield choice, (uniform if choice == "uniform" else scaled)(grid, tokens), 0.0


def _seed(asked: PictureQuestion, seed: int) -> tuple[int, ...]:
    """Another for every question, the same on every run."""
    return (seed, *f"{asked.picture} {asked.question}".encode())


def markdown(report: QuestionReport) -> str:
    """The report as two tables: every condition, and how much was seen by kind of question."""
    questions = len({(outcome.picture, outcome.question) for outcome in report.outcomes})
    answered = report.model is not None
    who = f"{report.model}, {questions} questions, chance {report.chance:.0%}" if answered else f"{questions} questions"
    head = ["mode", "choice", "budget", "tokens", "seen", "at any detail", "wholly", "choosing"]
    if answered:
        head += ["likeliest right", "95%", "words right", "answering"]
    lines = [f"**{who}**", "", *_table_head(head if answered else head[1:])]
    for row in report.rows():
        cells = [row.mode, row.choice, row.budget, f"{row.tokens:.0f}"]
        cells += [_figure(value) for value in (row.seen, row.shown, row.whole)] + [f"{row.choosing_ms:.0f} ms"]
        if answered:
            interval = f"{_figure(row.low)} to {_figure(row.high)}"
            words = [_figure(row.accuracy), interval, _figure(row.text_accuracy), f"{row.answering_ms:.0f} ms"]
            cells += words
        lines.append(_table_line(cells if answered else cells[1:]))
    return "\n".join([*lines, "", *_kinds(report)]) + "\n"


def _kinds(report: QuestionReport) -> list[str]:
    """Lines of the table by kind, in the first mode; where answered, with the share of right ones."""
    first = next((outcome.mode for outcome in report.outcomes), "")
    rows = [row for row in report.rows(by_kind=True) if row.mode == first]
    kinds = list(dict.fromkeys(row.kind for row in rows))
    found = {(row.choice, row.budget, row.kind): row for row in rows}
    lines = _table_head(["choice", "budget", *kinds])
    for choice, budget in dict.fromkeys((row.choice, row.budget) for row in rows):
        cells = [choice, budget]
        for kind in kinds:
            row = found[choice, budget, kind]
            cells.append(_figure(row.seen) + (f" / {_figure(row.accuracy)}" if row.accuracy is not None else ""))
        lines.append(_table_line(cells))
    what = "Seen by kind of question" + (f", and likeliest right, `{first}`" if report.model is not None else "")
    return [f"**{what}**", "", *lines]


def _table_head(names: Sequence[str]) -> list[str]:
    return [_table_line(names), "|" + "---|" * len(names)]


def _table_line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
