"""Drawn stories, what is asked about them, and that training reads them as the product does."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.scenes.asking import WORDINGS, questions
from benchmarks.scenes.stories import Story, clip_story, picture_story

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"
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
                cells = block.encoded.select(block.kept.astype(np.int32))
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
