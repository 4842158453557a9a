"""`python -m benchmarks answers`: right answers by share of the tokens, by who chose them, by kind of question."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from arr_stream.budget import budget_tokens
from arr_stream.config import Settings
from arr_stream.evaluation.answers import wilson
from arr_stream.evaluation.tables import Report, ResultTable, Value
from arr_stream.relevance.question import sought
from arr_stream.types import Grid
from arr_stream.vlm.qwen3_vl.loading import LoadedModel, load
from arr_stream.vlm.qwen3_vl.session import QwenSession
from benchmarks.answers.clips import EACH, choices
from benchmarks.answers.pictures import Choice, PictureChoosers
from benchmarks.answers.showing import Watcher
from benchmarks.answers.watching import watched
from benchmarks.scenes.asking import Asked, questions
from benchmarks.scenes.camera import FPS
from benchmarks.scenes.stories import Purpose, Story, clip_story, picture_story

SHARES = ("100%", "50%", "25%", "10%", "5%")
PICTURE_SIZES = ((12, 9), (16, 9), (20, 11))
"""Columns and rows of cells."""
CROWDED_SIZES, CROWD_PX = PICTURE_SIZES[1:], (36.0, 80.0)
"""Of pictures with eight things and up to one in 16 cells, and how large those are."""
CLIP_SIZE, CLIP_SECONDS = (10, 6), 7
_SEED = 20_260_101
_TIMES_EACH = 3
_APART = ("presence", "count", "total", "still")
"""Kinds that punish whatever is left out, when unseen means absent: told apart."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One question under one condition.

    Args:
        story: Number of the picture or clip.
        media: `pictures`, `crowded pictures` or `clips`.
        kind, question: What was asked.
        method: Who chose.
        share: Of the tokens.
        right: The answer is the true one.
        tokens: Cells that the model was given.
        choosing_ms, answering_ms: Time, the tower within the latter unless a rule looks at it.
    """

    story: int
    media: str
    kind: str
    question: str
    method: str
    share: str
    right: bool
    tokens: int
    choosing_ms: float
    answering_ms: float


@dataclass(frozen=True, slots=True)
class AnswerReport(Report):
    """All outcomes, and the model's name."""

    model: str
    outcomes: tuple[Outcome, ...]

    def facts(self) -> Mapping[str, Any]:
        return {"model": self.model, "questions": len({(one.media, one.story, one.question) for one in self.outcomes})}

    @property
    def tables(self) -> tuple[ResultTable, ...]:
        found: list[ResultTable] = []
        for media in dict.fromkeys(outcome.media for outcome in self.outcomes):
            own = [outcome for outcome in self.outcomes if outcome.media == media]
            found += [_by_share(media, own), _times(media, own)]
            found += [_by_kind(media, share, own) for share in dict.fromkeys(outcome.share for outcome in own)]
        return tuple(found)


def _by_share(media: str, outcomes: Sequence[Outcome]) -> ResultTable:
    shares = list(dict.fromkeys(outcome.share for outcome in outcomes))
    counted = [outcome for outcome in outcomes if outcome.kind not in _APART] or list(outcomes)
    rows: list[tuple[Value, ...]] = []
    for method in dict.fromkeys(outcome.method for outcome in counted):
        mine = {share: [o for o in counted if (o.method, o.share) == (method, share)] for share in shares}
        right = {share: _right(group) for share, group in mine.items() if group}
        reach = max(max(high - share, share - low) for share, low, high in right.values())
        tokens = float(np.mean([outcome.tokens for outcome in [group for group in mine.values() if group][-1]]))
        row = (*(right[share][0] if share in right else None for share in shares), reach, round(tokens))
        rows.append((method, max(map(len, mine.values())), *row))
    apart = ", ".join(kind for kind in _APART if any(outcome.kind == kind for outcome in outcomes))
    return ResultTable(
        f"Right answers, {media}",
        ("choice", "questions", *shares, "±", "tokens at the last"),
        tuple(rows),
        f"Without {apart}: where unseen means absent, those punish whatever is left out." if apart else "",
    )


def _times(media: str, outcomes: Sequence[Outcome]) -> ResultTable:
    shares = list(dict.fromkeys(outcome.share for outcome in outcomes))
    rows: list[tuple[Value, ...]] = []
    for method in dict.fromkeys(outcome.method for outcome in outcomes):
        mine = {share: [o for o in outcomes if (o.method, o.share) == (method, share)] for share in shares}
        whole = [[o.choosing_ms + o.answering_ms for o in group] for group in mine.values()]
        choosing = [o.choosing_ms for group in mine.values() for o in group]
        rows.append((method, *(float(np.median(each)) if each else None for each in whole), float(np.median(choosing))))
    return ResultTable(
        f"Milliseconds to the answer, {media}",
        ("choice", *shares, "of which choosing"),
        tuple(rows),
        "Medians, the choice and the tower counted in.",
        digits=0,
    )


def _by_kind(media: str, share: str, outcomes: Sequence[Outcome]) -> ResultTable:
    kinds = sorted({outcome.kind for outcome in outcomes})
    here = [outcome for outcome in outcomes if outcome.share == share]
    rows: list[tuple[Value, ...]] = []
    counts: dict[str, int] = {}
    for method in dict.fromkeys(outcome.method for outcome in here):
        groups = [[o for o in here if (o.method, o.kind) == (method, kind)] for kind in kinds]
        asked = [len({(outcome.story, outcome.question) for outcome in group}) for group in groups]
        counts |= {kind: max(counts.get(kind, 0), count) for kind, count in zip(kinds, asked, strict=True)}
        rows.append((method, *(_right(group)[0] if group else None for group in groups)))
    rows.append(("questions, at most", *(counts[kind] for kind in kinds)))
    return ResultTable(f"{media}, {share} of the tokens, by kind", ("choice", *kinds), tuple(rows), digits=2)


def _right(outcomes: Sequence[Outcome]) -> tuple[float, float, float]:
    """The share that is right, and its interval; several random choices of one question are one trial."""
    right = float(np.mean([outcome.right for outcome in outcomes]))
    trials = len(outcomes)
    if outcomes[0].method == "random":
        trials = len({(outcome.story, outcome.question) for outcome in outcomes})
    return right, *wilson(right, trials)


def measure(
    ways: Mapping[str, Settings],
    *,
    pictures: int,
    clips: int,
    crowded: int = 0,
    shares: Sequence[str] = SHARES,
    each: int = 6,
    purpose: Purpose = "reporting",
    progress: Callable[[str], None] = lambda _: None,
) -> AnswerReport:
    """Ask about so many pictures, crowded pictures and clips.

    Args:
        ways: Ways to choose of ours, by name; `vlm` of the first says which model.
        pictures, clips, crowded: How many.
        shares: Of the tokens.
        each: Questions of a story, at most.
        purpose: Set of photographs behind the things.
        progress: Told how far it is.

    Raises:
        ArrStreamError: The model cannot be had.
    """
    first = next(iter(ways.values()))
    loaded = load(first.vlm, first.models)
    watcher = Watcher(loaded)
    outcomes: list[Outcome] = []
    choosers = PictureChoosers(ways) if pictures or crowded else None
    for media, count in (("pictures", pictures), ("crowded pictures", crowded)):
        for number in range(count):
            progress(f"{media}, {number + 1} of {count}")
            rng = np.random.default_rng([_SEED, 1 if media == "pictures" else 3, number])
            story = _picture(media, number, rng, purpose)
            asked = drawn(story, rng, each)
            assert choosers is not None
            for share in shares:
                tokens = budget_tokens(share, Grid.for_size(story.size_wh).cells)
                shown = choosers.choices(story, asked, tokens, watcher)
                outcomes += _answered(number, media, share, shown, watcher)
    for number in range(clips):
        progress(f"clip {number + 1} of {clips}")
        rng = np.random.default_rng([_SEED, 2, number])
        size_wh = CLIP_SIZE[0] * 32, CLIP_SIZE[1] * 32
        story = clip_story(rng, size_wh, 2 * CLIP_SECONDS * EACH, (2, 4), purpose=purpose, each=EACH)
        asked = drawn(story, rng, each)
        for share in shares:
            tokens = budget_tokens(share, Grid.for_size(story.size_wh).cells)
            outcomes += _answered(number, "clips", share, choices(story, asked, tokens, watcher), watcher)
            if share != "100%":
                outcomes += _watched(number, story, asked, share, ways, loaded)
    return AnswerReport(watcher.name, tuple(outcomes))


def _picture(media: str, number: int, rng: np.random.Generator, purpose: Purpose) -> Story:
    sizes = PICTURE_SIZES if media == "pictures" else CROWDED_SIZES
    columns, rows = sizes[number % len(sizes)]
    size_wh = columns * 32, rows * 32
    if media == "pictures":
        return picture_story(rng, size_wh, (2, 6), purpose=purpose)
    return picture_story(rng, size_wh, (8, columns * rows // 16), purpose=purpose, diameter_px=CROWD_PX)


def drawn(story: Story, rng: np.random.Generator, count: int) -> list[Asked]:
    """Draw `count` questions, about equally many of each kind."""
    asked = questions(story, rng)
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
    """Yield the model's answers to each choice; a choice is encoded once for all its questions."""
    for choice in shown:
        memory, looking_ms = watcher.watch(choice.blocks, choice.mode)
        for one in choice.asked:
            text, asking_ms = watcher.ask(memory, one.question)
            condition = number, media, one.kind, one.question, choice.method, share
            took = choice.choosing_ms, looking_ms + asking_ms
            yield Outcome(*condition, is_same(text, one.answer), memory.visual_tokens, *took)


def _watched(
    number: int, story: Story, asked: Sequence[Asked], share: str, ours: Mapping[str, Settings], loaded: LoadedModel
) -> Iterator[Outcome]:
    """Yield the model's answers after watching our choice of a clip."""
    tokens = budget_tokens(share, Grid.for_size(story.size_wh).cells)
    for name, settings in ours.items():
        for one in asked:
            seen = watched(
                story,
                {len(story.frames) - 1: [one.question]},
                (own := _spending(settings, tokens, len(story.frames) / FPS)),
                QwenSession(loaded, own),
                queries=sought(one.question),
            )
            condition = number, "clips", one.kind, one.question, name, share
            took = seen.choosing_ms, seen.answering_ms
            yield Outcome(*condition, is_same(seen.answers[0], one.answer), seen.tokens, *took)


def _spending(settings: Settings, tokens: int, seconds: float) -> Settings:
    """Set the budget to `tokens` a second, in which one pair of frames is shown.

    A budget over time gets the same total over the clip, but may spend three times as much on one frame.
    """
    if not settings.selection.per_second:
        return settings.with_values({"selection.budget": str(tokens)})
    # The account is full on the first frame.
    income = max(0.01, (seconds - _TIMES_EACH) * tokens / seconds)
    return settings.with_values({"selection.budget": str(_TIMES_EACH * tokens), "selection.per_second": income})


def is_same(text: str, answer: str) -> bool:
    return text.strip().strip(".").casefold() == answer.casefold()
