"""Right answers over longer watching: about what is gone after a minute, and when the same is asked about again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from arr_stream.config import Settings
from arr_stream.evaluation.choices import shown_instead, uniform
from arr_stream.patch_set import PatchSet
from arr_stream.selection.budget import budget_tokens
from arr_stream.types import Grid
from arr_stream.vlm.qwen3_vl.loading import load
from arr_stream.vlm.qwen3_vl.viewer import QwenViewer
from benchmarks.answers.table import AnswerReport, Outcome, drawn, is_same
from benchmarks.answers.watching import watched
from benchmarks.scenes.asking import Asked, questions
from benchmarks.scenes.stories import Purpose, Story, clip_story

_SEED = 20_260_102
_FPS = 10.0
_MEMORY_CELLS, _DIALOGUE_CELLS = (16, 9), (16, 9)
_GONE = ("gone colour", "gone sign", "left", "still")
"""Kinds about what is gone."""


def memory_answers(
    ways: Mapping[str, Settings],
    *,
    clips: int,
    seconds: int = 60,
    context_tokens: int = 2048,
    share: str = "25%",
    each: int = 6,
    purpose: Purpose = "reporting",
    progress: Callable[[str], None] = lambda _: None,
) -> AnswerReport:
    """Questions about what is gone, at the end of clips in which things come and go, from a small memory.

    Nothing is looked for while a clip is watched: nobody knows then what will be asked. Beside ours, cells as evenly
    spread as may be fill the same memory by the same rules; the places of those that it has stay empty, as the next
    best would be ours.

    Args:
        ways, each, purpose, progress: As of `measure`; cells evenly spread go by the settings of the first.
        clips: How many.
        seconds: Of each.
        context_tokens: The whole memory.
        share: Of the cells of a frame.

    Raises:
        ArrStreamError: The model cannot be had.
    """
    fixed = {"vlm.context_tokens": context_tokens, "selection.budget": share}
    conditions = [(name, settings.with_values(fixed), _as_chosen) for name, settings in ways.items()]
    conditions.append(("uniform", conditions[0][1].with_values({"vlm.fill": False}), _evenly))
    loaded = load(conditions[0][1].vlm, conditions[0][1].models)
    outcomes: list[Outcome] = []
    for number in range(clips):
        progress(f"clip {number + 1} of {clips}")
        rng = np.random.default_rng([_SEED, 1, number])
        story = _story(rng, _MEMORY_CELLS, seconds, purpose, events=True)
        asked = _about_gone(story, rng, each, held_out=purpose != "training")
        if not asked:
            continue
        asking = {len(story.frames) - 1: [one.question for one in asked]}
        for name, settings, instead in conditions:
            seen = watched(story, asking, settings, QwenViewer(loaded, settings), fps=_FPS, instead=instead)
            for one, said in zip(asked, seen.answers, strict=True):
                where = number, f"{seconds} s, {context_tokens} tokens", one.kind, one.question, name, share
                took = seen.choosing_ms, seen.answering_ms / len(asked)
                outcomes.append(Outcome(*where, is_same(said, one.answer), seen.tokens, *took))
    return AnswerReport(loaded.name, tuple(outcomes))


def dialogue_answers(
    settings: Settings,
    *,
    clips: int,
    share: str = "5%",
    purpose: Purpose = "reporting",
    progress: Callable[[str], None] = lambda _: None,
) -> AnswerReport:
    """Second questions about a thing that one question was about before, with the model's attention fed back and not.

    Nothing is looked for; a clip is watched for two seconds, asked about, and watched for two more.

    Args:
        settings, purpose, progress: As of `measure`.
        clips: How many.
        share: Of the cells of a frame.

    Raises:
        ArrStreamError: The model cannot be had.
    """
    settings = settings.with_values({"selection.budget": share})
    loaded = load(settings.vlm, settings.models)
    outcomes: list[Outcome] = []
    for number in range(clips):
        progress(f"clip {number + 1} of {clips}")
        rng = np.random.default_rng([_SEED, 2, number])
        story = _story(rng, _DIALOGUE_CELLS, 4, purpose, events=False)
        tokens = budget_tokens(share, Grid.for_size(story.size_wh).cells)
        for first, second in _pairs(story, rng, held_out=purpose != "training"):
            middle, last = len(story.frames) // 2, len(story.frames) - 1
            for feedback in (True, False):
                its = settings.with_values({"vlm.feedback": feedback})
                asking = {middle: [first.question], last: [second.question]}
                seen = watched(story, asking, its, QwenViewer(loaded, its), fps=_FPS)
                method = f"feedback {'on' if feedback else 'off'}"
                where = number, "second questions", second.kind, second.question, method, share
                took = seen.choosing_ms, seen.answering_ms
                outcomes.append(Outcome(*where, is_same(seen.answers[1], second.answer), tokens, *took))
    return AnswerReport(loaded.name, tuple(outcomes))


def _story(rng: np.random.Generator, cells: tuple[int, int], seconds: int, purpose: Purpose, *, events: bool) -> Story:
    size_wh, frames = (cells[0] * 32, cells[1] * 32), round(seconds * _FPS)
    return clip_story(rng, size_wh, frames, (3, 6), purpose=purpose, each=round(_FPS / 2), events=events)


def _about_gone(story: Story, rng: np.random.Generator, count: int, *, held_out: bool) -> list[Asked]:
    asked = [one for one in drawn(story, rng, 1000, held_out=held_out) if one.kind in _GONE]
    return [one for one in asked if one.answer != "yes"][:count]


def _pairs(story: Story, rng: np.random.Generator, *, held_out: bool) -> Iterator[tuple[Asked, Asked]]:
    """Of each thing two questions of different kinds about it alone."""
    asked = questions(story, rng, held_out=held_out)
    for number in range(len(story.actors)):
        own = [one for one in asked if one.actors == (number,) and one.kind in ("colour", "shape", "side", "size")]
        kinds = {one.kind: one for one in own}
        if len(kinds) >= 2:
            first, second = rng.permutation(list(kinds))[:2]
            yield kinds[first], kinds[second]


def _as_chosen(patches: PatchSet) -> PatchSet:
    return patches


def _evenly(patches: PatchSet) -> PatchSet:
    return shown_instead(patches, uniform(patches.grid, patches.tokens))
