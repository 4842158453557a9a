"""Drawn stories, and the questions about them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.scenes.asking import WORDINGS, questions
from benchmarks.scenes.stories import Story, clip_story, picture_story

SIZE_WH = (320, 192)


def stories(count: int) -> Iterator[Story]:
    for seed in range(count):
        rng = np.random.default_rng(seed)
        yield picture_story(rng, SIZE_WH, (2, 5)) if seed % 2 else clip_story(rng, SIZE_WH, 8, (2, 4))


def test_labels_say_what_is_on_the_frames() -> None:
    for story in stories(12):
        assert story.frames.shape[:3] == story.labels.shape
        for number, actor in enumerate(story.actors):
            seen = [(labels == number + 1).sum() for labels in story.labels]
            there = [story.there(actor, frame) for frame in range(len(story.frames))]
            assert [area > 0 for area in seen] == there
            assert max(seen) > 0.85 * actor.area_px


def test_every_question_has_one_answer_among_its_options() -> None:
    for story in stories(12):
        asked = questions(story, np.random.default_rng(0))
        assert asked and all(one.answer in one.options and one.kind in WORDINGS for one in asked)
