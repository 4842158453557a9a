"""Answers of a model that watches a clip as in `ask`, or is shown other cells in the same way."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import arr_stream
from arr_stream.config import Settings
from arr_stream.patch_set import Answer, PatchSet
from arr_stream.relevance.query import parse_text
from arr_stream.vlm.qwen3_vl.streaming import StreamingSession
from benchmarks.scenes.camera import FPS, GeneratedSource
from benchmarks.scenes.stories import Story


@dataclass(frozen=True, slots=True)
class Watched:
    """Answers and costs of one clip.

    Args:
        answers: To the questions in their order.
        tokens: Cells in the model's memory at the end.
        prompt_tokens: Prompt tokens of the last answer, as the model counts them.
        choosing_ms, answering_ms: Over the whole clip.
    """

    answers: tuple[str, ...]
    tokens: int
    prompt_tokens: int
    choosing_ms: float
    answering_ms: float


def watched(
    story: Story,
    asked: Mapping[int, Sequence[str]],
    settings: Settings,
    session: StreamingSession,
    *,
    queries: Sequence[str] = (),
    fps: float = FPS,
    instead: Callable[[PatchSet], PatchSet] = lambda patches: patches,
) -> Watched:
    """Process every frame, show the model two a second, and ask the questions on their frames.

    Args:
        story: The clip.
        asked: Questions by number of the frame after which they are asked.
        settings: Of the stream and of the model.
        session: The model, which has seen nothing; closed at the end.
        queries: What is looked for.
        fps: Frames a second of the clip.
        instead: Of the cells chosen, those that are shown.
    """
    source = GeneratedSource("story", lambda: iter(story.frames), len(story.frames), fps)
    every = round(fps / settings.vlm.fps)
    choosing_ms, started, answers = 0.0, time.perf_counter(), list[Answer]()
    try:
        with arr_stream.open(source, queries=[parse_text(query) for query in queries], settings=settings) as stream:
            for patches in stream:
                choosing_ms += sum(patches.latency_ms.values())
                shown = instead(patches)
                if patches.index % every or not len(shown):
                    stream.pipeline.undo_last_selection()
                elif stream.frame is not None:
                    session.see(stream.frame, shown)
                for question in asked.get(patches.index, ()):
                    answers.append(session.ask(question))
                    if session.attention is not None and settings.vlm.feedback:
                        stream.attend(session.attention)
        tokens = session.memory.visual_tokens
    finally:
        session.close()
    whole_ms = (time.perf_counter() - started) * 1e3
    said = tuple(answer.text.strip() for answer in answers)
    prompt_tokens = answers[-1].prompt_tokens if answers else 0
    return Watched(said, tokens, prompt_tokens, choosing_ms, whole_ms - choosing_ms)
