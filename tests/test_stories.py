"""Drawn stories, what is asked about them, and that training reads them as the product does."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.scenes.asking import CLIP_KINDS, HELD_OUT, PICTURE_KINDS, WORDINGS, Asked, questions
from benchmarks.scenes.stories import SIGN, Story, clip_story, picture_story

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"
SIZE_WH = (320, 192)


def stories(count: int) -> Iterator[Story]:
    for seed in range(count):
        rng = np.random.default_rng(seed)
        yield picture_story(rng, SIZE_WH, (2, 5)) if seed % 2 else clip_story(rng, SIZE_WH, 8, (2, 4))


def centre(story: Story, number: int, frame: int = -1) -> tuple[float, float]:
    """Of what is seen of an actor, as shares of the frame."""
    rows, columns = np.nonzero(story.labels[frame] == number + 1)
    return float(columns.mean()) / SIZE_WH[0], float(rows.mean()) / SIZE_WH[1]


def test_labels_say_what_is_on_the_frames() -> None:
    for story in stories(12):
        assert story.frames.shape[:3] == story.labels.shape
        for number, actor in enumerate(story.actors):
            seen = [(labels == number + 1).sum() for labels in story.labels]
            there = [story.there(actor, frame) for frame in range(len(story.frames))]
            assert [area > 0 for area in seen] == there
            assert max(seen) > 0.85 * actor.area_px


def test_answers_follow_from_the_labels() -> None:
    kinds = set()
    for story in stories(60):
        rng = np.random.default_rng(1)
        for asked in questions(story, rng):
            kinds.add(asked.kind)
            assert asked.answer in asked.options or asked.kind == "total"
            check_answer(story, asked)
    assert kinds >= set(PICTURE_KINDS) | {"moves", "way", "came", "left", "gone colour", "still"}
    assert set(PICTURE_KINDS) | set(CLIP_KINDS) == set(WORDINGS)


def check_answer(story: Story, asked: Asked) -> None:
    actors = [story.actors[number] for number in asked.actors]
    if asked.kind in ("colour", "gone colour"):
        assert asked.answer == actors[0].colour and asked.answer not in asked.query
    elif asked.kind == "side":
        assert asked.answer == ("left" if centre(story, asked.actors[0])[0] < 0.5 else "right")
    elif asked.kind == "above":
        one, other = (centre(story, number)[1] for number in asked.actors)
        assert asked.answer == ("above" if one < other else "below")
    elif asked.kind in ("count", "total"):
        there = [number for number, actor in enumerate(story.actors) if story.there(actor, len(story.frames) - 1)]
        assert int(asked.answer) == len(asked.actors) <= len(there)
    elif asked.kind == "way":
        (x0, y0), (x1, y1) = (centre(story, asked.actors[0], frame) for frame in (0, -1))
        expected = ("right" if x1 > x0 else "left") if abs(x1 - x0) > abs(y1 - y0) else ("down" if y1 > y0 else "up")
        assert asked.answer == expected
    elif asked.kind in ("number", "word", "gone sign"):
        assert actors[0].shape == SIGN and asked.answer == actors[0].text


def test_reporting_asks_in_words_of_its_own() -> None:
    story = next(stories(1))
    trained = {asked.question for seed in range(20) for asked in questions(story, np.random.default_rng(seed))}
    reported = {asked.question for asked in questions(story, np.random.default_rng(0), held_out=True)}
    assert reported and not reported & trained
    assert all(len(wordings) > HELD_OUT for wordings in WORDINGS.values())


def test_words_that_reporting_asks_in_are_all_known() -> None:
    trained = words_of(form for forms in WORDINGS.values() for form in forms[:-HELD_OUT])
    assert words_of(form for forms in WORDINGS.values() for form in forms[-HELD_OUT:]) <= trained


def words_of(forms: Iterable[str]) -> set[str]:
    return {word for form in forms for word in re.findall(r"[a-z]+", re.sub(r"\{\d\}s?", "", form.lower()))}


@pytest.fixture(scope="module")
def training() -> Iterator[Any]:
    """The training's own modules."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    sys.path.insert(0, str(SCRIPTS))
    try:
        import tiny_qwen.batches
        import tiny_qwen.losses
        import tiny_qwen.model

        yield tiny_qwen
    finally:
        sys.path.remove(str(SCRIPTS))


def test_training_reads_as_the_product_does(training: Any) -> None:
    """Batched, padded, with all questions side by side: the same scores as one question after one story."""
    import torch

    from arr_stream.types import Grid
    from arr_stream.vlm.qwen3_vl.adapter import Adapter
    from arr_stream.vlm.qwen3_vl.encoding import Feeder
    from arr_stream.vlm.qwen3_vl.entries import FrameEntry
    from arr_stream.vlm.qwen3_vl.memory import Memory
    from arr_stream.vlm.qwen3_vl.prompt import Prompt

    tokenizer = training.model.tokenizer_of_questions()
    model = training.model.starting_model(tokenizer, 0).eval()
    adapter, prompt = Adapter(model), Prompt(tokenizer, model.config)
    words = training.losses.Words(tokenizer, model.config)
    rng = np.random.default_rng(2)
    examples = []
    for showing in ("all", "mixed", "scaled", "pruned", "clip"):
        story = clip_story(rng, SIZE_WH, 6) if showing == "clip" else picture_story(rng, SIZE_WH, (2, 4))
        blocks, seen = training.batches.shown(rng, story, showing)
        asked = questions(story, rng, seen=seen)[:3]
        assert blocks and asked
        examples.append(training.batches.Example(story, tuple(blocks), tuple(asked)))
    with torch.no_grad():
        found = training.losses.read(model, words, examples)
        # The attention that training registers is the library's, computed in float32.
        model.model.language_model.config._attn_implementation = "sdpa"
        number = 0
        for example in examples:
            memory = Memory(adapter, prompt)
            for block in example.blocks:
                grid = Grid((block.first.shape[1], block.first.shape[0]), *block.encoded.grid_hw)
                mode = "sparse" if len(block.kept) == len(block.encoded) else "prune"
                cells = block.encoded.take(block.kept.astype(np.int32))
                fed = Feeder(adapter, training.losses.NORMALISATION, mode).feed(block.first, block.second, cells)
                media = "image" if block.seconds is None else "video"
                memory.append([FrameEntry(fed, grid, 0, block.seconds or 0.0, media)])
            for asked in example.asked:
                with memory.kept():
                    hidden = memory.read(prompt.question(asked.question), memory.position)
                ours = found.scores[int((found.question == number).nonzero()[0, 0])]
                assert torch.allclose(adapter.logits(hidden), ours, atol=1e-4), (number, asked.question)
                number += 1


def test_every_word_of_a_question_is_one_token(training: Any) -> None:
    tokenizer = training.model.tokenizer_of_questions()
    for wordings in WORDINGS.values():
        for wording in wordings:
            text = wording.format("red circle", "blue star")
            tokens = [tokenizer.decode([token]).strip() for token in tokenizer(text)["input_ids"]]
            assert all(
                token in text.replace("?", " ? ").replace(",", " , ").replace(".", " . ").split() for token in tokens
            )
