"""`python -m benchmarks answers`: right answers by share of the tokens, by who chose them, by kind of question."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from arr_stream.config import Settings
from arr_stream.evaluation.answers import wilson
from arr_stream.evaluation.tables import plain
from arr_stream.relevance.question import sought
from arr_stream.selection.budget import budget_tokens
from arr_stream.types import Grid
from arr_stream.vlm.qwen3_vl.loading import LoadedModel, load
from benchmarks.answers.clips import EACH, choices
from benchmarks.answers.pictures import Choice, PictureChoosers
from benchmarks.answers.showing import Watcher
from benchmarks.answers.watching import watched
from benchmarks.scenes.asking import Asked, questions
from benchmarks.scenes.stories import Purpose, Story, clip_story, picture_story

SHARES = ("100%", "50%", "25%", "10%", "5%")
PICTURE_SIZES = ((12, 9), (16, 9), (20, 11))
"""Columns and rows of cells."""
CLIP_SIZE, CLIP_SECONDS = (10, 6), 7
_SEED = 20_260_101
_APART = ("presence", "count", "total", "still")
"""Kinds that punish whatever is left out, when unseen means absent: told apart."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One question under one condition.

    Args:
        story: Number of the picture or clip.
        media: `pictures` or `clips`.
        kind: Of the question.
        method: Who chose.
        share: Of the tokens.
        right: The answer is the true one.
        tokens: Cells that the model was given.
        choosing_ms, answering_ms: Time, the tower within the latter unless a rule looks at it.
    """

    story: int
    media: str
    kind: str
    method: str
    share: str
    right: bool
    tokens: int
    choosing_ms: float
    answering_ms: float


@dataclass(frozen=True, slots=True)
class AnswerRow:
    """Means of one condition; `kind` is empty for the kinds that nothing tells apart, all together."""

    media: str
    method: str
    share: str
    kind: str
    questions: int
    right: float
    low: float
    high: float
    tokens: float
    choosing_ms: float
    answering_ms: float


@dataclass(frozen=True, slots=True)
class AnswerReport:
    """All outcomes, and the model's name."""

    model: str
    outcomes: tuple[Outcome, ...]

    def rows(self) -> tuple[AnswerRow, ...]:
        """One of each condition and kind, and one over all kinds that no choice is punished for."""
        groups: dict[tuple[str, str, str, str], list[Outcome]] = {}
        for outcome in self.outcomes:
            where = outcome.media, outcome.method, outcome.share
            groups.setdefault((*where, outcome.kind), []).append(outcome)
            if outcome.kind not in _APART:
                groups.setdefault((*where, ""), []).append(outcome)
        return tuple(_row(*key, group) for key, group in groups.items())

    def as_json(self) -> dict[str, Any]:
        found: dict[str, Any] = plain({"rows": self.rows()})
        return {"model": self.model, **found}


def _row(media: str, method: str, share: str, kind: str, outcomes: Sequence[Outcome]) -> AnswerRow:
    right = float(np.mean([outcome.right for outcome in outcomes]))
    # Several random choices of one question are one trial.
    trials = len({(outcome.story, outcome.kind) for outcome in outcomes}) if method == "random" else len(outcomes)
    low, high = wilson(right, trials)
    medians = (float(np.median([getattr(o, name) for o in outcomes])) for name in ("choosing_ms", "answering_ms"))
    tokens = float(np.mean([outcome.tokens for outcome in outcomes]))
    return AnswerRow(media, method, share, kind, len(outcomes), right, low, high, tokens, *medians)


def measure(
    ways: Mapping[str, Settings],
    *,
    pictures: int,
    clips: int,
    shares: Sequence[str] = SHARES,
    each: int = 6,
    purpose: Purpose = "reporting",
    progress: Callable[[str], None] = lambda _: None,
) -> AnswerReport:
    """Ask about so many pictures and clips.

    Args:
        ways: Ways to choose of ours, by name; `vlm` of the first says which model.
        pictures, clips: How many.
        shares: Of the tokens.
        each: Questions of a story, at most.
        purpose: Whose stories and wordings; those of training are of no use but to see what was learned by heart.
        progress: Told how far it is.

    Raises:
        ArrStreamError: The model cannot be had.
    """
    first = next(iter(ways.values()))
    loaded = load(first.vlm, first.models)
    watcher = Watcher(loaded)
    outcomes: list[Outcome] = []
    choosers = PictureChoosers(ways) if pictures else None
    for number in range(pictures):
        progress(f"picture {number + 1} of {pictures}")
        rng = np.random.default_rng([_SEED, 1, number])
        columns, rows = PICTURE_SIZES[number % len(PICTURE_SIZES)]
        story = picture_story(rng, (columns * 32, rows * 32), (2, 6), purpose=purpose)
        asked = drawn(story, rng, each, held_out=purpose != "training")
        assert choosers is not None
        for share in shares:
            tokens = budget_tokens(share, Grid.for_size(story.size_wh).cells)
            shown = choosers.choices(story, asked, tokens, watcher)
            outcomes += _answered(number, "pictures", share, shown, watcher)
    for number in range(clips):
        progress(f"clip {number + 1} of {clips}")
        rng = np.random.default_rng([_SEED, 2, number])
        size_wh = CLIP_SIZE[0] * 32, CLIP_SIZE[1] * 32
        story = clip_story(rng, size_wh, 2 * CLIP_SECONDS * EACH, (2, 4), purpose=purpose, each=EACH)
        asked = drawn(story, rng, each, held_out=purpose != "training")
        for share in shares:
            tokens = budget_tokens(share, Grid.for_size(story.size_wh).cells)
            outcomes += _answered(number, "clips", share, choices(story, asked, tokens, watcher), watcher)
            if share != "100%":
                outcomes += _watched(number, story, asked, share, ways, loaded)
    return AnswerReport(watcher.name, tuple(outcomes))


def drawn(story: Story, rng: np.random.Generator, count: int, *, held_out: bool) -> list[Asked]:
    """Of each kind about as many."""
    asked = questions(story, rng, held_out=held_out)
    order = [asked[int(k)] for k in rng.permutation(len(asked))]
    by_kind: dict[str, list[Asked]] = {}
    for one in order:
        by_kind.setdefault(one.kind, []).append(one)
    turns = [
        group[k]
        for k in range(max(map(len, by_kind.values()), default=0))
        for group in by_kind.values()
        if k < len(group)
    ]
    return turns[:count]


def _answered(number: int, media: str, share: str, shown: Iterable[Choice], watcher: Watcher) -> Iterator[Outcome]:
    """What the model answers to each choice, looking once for all questions that it was made for."""
    for choice in shown:
        memory, looking_ms = watcher.watch(choice.blocks, choice.mode)
        for one in choice.asked:
            text, asking_ms = watcher.ask(memory, one.question)
            condition = number, media, one.kind, choice.method, share
            took = choice.choosing_ms, looking_ms + asking_ms
            yield Outcome(*condition, is_same(text, one.answer), memory.visual_tokens, *took)


def _watched(
    number: int, story: Story, asked: Sequence[Asked], share: str, ours: Mapping[str, Settings], loaded: LoadedModel
) -> Iterator[Outcome]:
    """What the model answers after having watched what ours chose of a clip."""
    tokens = budget_tokens(share, Grid.for_size(story.size_wh).cells)
    for name, settings in ours.items():
        for one in asked:
            seen = watched(
                story,
                {len(story.frames) - 1: [one.question]},
                settings.with_values({"selection.budget": str(tokens)}),
                loaded,
                queries=sought(one.question),
            )
            condition = number, "clips", one.kind, name, share
            took = seen.choosing_ms, seen.answering_ms
            yield Outcome(*condition, is_same(seen.answers[0], one.answer), seen.tokens, *took)


def is_same(text: str, answer: str) -> bool:
    return text.strip().strip(".").casefold() == answer.casefold()


def markdown(report: AnswerReport) -> str:
    """Two tables for each of pictures and clips: all kinds by share, and kinds at each share."""
    rows = report.rows()
    lines = []
    for media in dict.fromkeys(row.media for row in rows):
        own = [row for row in rows if row.media == media]
        shares = list(dict.fromkeys(row.share for row in own))
        lines += [
            f"**{media}**, {report.model}",
            "",
            *_head(["choice", *shares, "tokens at the last", "choosing", "answering"]),
        ]
        for method in dict.fromkeys(row.method for row in own):
            mine = {row.share: row for row in own if row.method == method and not row.kind}
            if not mine:
                continue
            last = list(mine.values())[-1]
            cells = [f"{mine[s].right:.3f} ({mine[s].low:.2f}-{mine[s].high:.2f})" if s in mine else "" for s in shares]
            lines.append(
                _line(
                    [method, *cells, f"{last.tokens:.0f}", f"{last.choosing_ms:.0f} ms", f"{last.answering_ms:.0f} ms"]
                )
            )
        kinds = sorted({row.kind for row in own if row.kind})
        for share in shares:
            lines += ["", f"{media}, {share} of the tokens", "", *_head(["choice", *kinds])]
            for method in dict.fromkeys(row.method for row in own if row.share == share):
                found = {row.kind: row for row in own if row.method == method and row.share == share}
                lines.append(_line([method, *(f"{found[kind].right:.2f}" if kind in found else "" for kind in kinds)]))
            counts = {row.kind: row.questions for row in own if row.share == share and row.method != "random"}
            lines.append(_line(["questions", *(str(counts.get(kind, 0)) for kind in kinds)]))
        lines.append("")
    return "\n".join(lines) + "\n"


def _head(names: Iterable[str]) -> list[str]:
    names = list(names)
    return [_line(names), "|" + "---|" * len(names)]


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
