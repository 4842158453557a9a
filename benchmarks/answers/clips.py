"""Who chooses the cells of a clip, and what ours is asked while it watches."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import cv2
import numpy as np

import arr_stream
from arr_stream.config import Settings
from arr_stream.relevance.question import sought
from arr_stream.selection.allocation import Allocation
from arr_stream.types import FloatArray, Grid
from arr_stream.vlm.qwen3_vl.cells import Cells
from arr_stream.vlm.qwen3_vl.loading import LoadedModel
from arr_stream.vlm.qwen3_vl.viewer import QwenViewer
from benchmarks.answers.pictures import Choice, most_covered, scaled_down
from benchmarks.answers.showing import Mode, Shown, Watcher
from benchmarks.rivals import RULES
from benchmarks.rivals.base import Clip
from benchmarks.rivals.plain import random_rule
from benchmarks.scenes.asking import Asked
from benchmarks.scenes.camera import FPS, GeneratedSource
from benchmarks.scenes.stories import Story, cell_shares

EACH = int(FPS) // 2
"""Frames of a half second: every so many are shown, two of them together."""
_RULES = ("uniform", "difference", "evs", "dtd-feature", "vidcom2")


@dataclass(frozen=True, slots=True)
class Watched:
    """What came of watching a clip for one question.

    Args:
        answer: In the model's words.
        tokens: Cells that the model was given, of all pairs together.
        choosing_ms, answering_ms: Of the whole clip.
    """

    answer: str
    tokens: int
    choosing_ms: float
    answering_ms: float


def watched(story: Story, question: str, settings: Settings, loaded: LoadedModel) -> Watched:
    """Ours, as `ask` runs it: every frame is perceived, two a second are shown, and the question comes at the end."""
    frames = len(story.frames)
    source = GeneratedSource("story", lambda: iter(story.frames), frames)
    viewer = QwenViewer(loaded, settings)
    choosing_ms, started = 0.0, time.perf_counter()
    try:
        with arr_stream.open(source, query=sought(question), settings=settings) as stream:
            for patches in stream:
                choosing_ms += sum(patches.latency_ms.values())
                if patches.index % EACH == 0 and stream.frame is not None and len(patches):
                    viewer.see(stream.frame, patches)
                    if viewer.attention is not None and settings.vlm.feedback:
                        stream.attend(viewer.attention)
        answer = viewer.ask(question)
        tokens = viewer.memory.visual_tokens
    finally:
        viewer.close()
    whole_ms = (time.perf_counter() - started) * 1e3
    return Watched(answer.text.strip(), tokens, choosing_ms, whole_ms - choosing_ms)


def choices(story: Story, asked: Sequence[Asked], tokens: int, watcher: Watcher, *, seeds: int = 2) -> Iterator[Choice]:
    """What rules choose of a clip's pairs of frames, so many cells a pair on average.

    Rules that look at features look at the model's own tower over whole pairs, and prune what it made, as they do in
    their systems.
    """
    grid = Grid.for_size(story.size_wh)
    pairs = [(story.frames[k], story.frames[k + EACH], k + EACH) for k in _pair_starts(story)]

    def blocks(cells: Sequence[Allocation]) -> list[Shown]:
        return [
            Shown(first, second, Cells.allocated(chosen, grid), (index - EACH / 2) / FPS, index)
            for (first, second, index), chosen in zip(pairs, cells, strict=True)
        ]

    if tokens >= grid.cells:
        whole = Cells.whole((grid.rows, grid.columns))
        shown = [Shown(first, second, whole, (index - EACH / 2) / FPS, index) for first, second, index in pairs]
        yield Choice("all cells", shown, "sparse", asked)
        return
    pictures = np.stack([_half(second, grid) for _, second, _ in pairs])
    started = time.perf_counter()
    described = Clip(grid, pictures, np.stack([watcher.features(first, second) for first, second, _ in pairs]))
    tower_ms = (time.perf_counter() - started) * 1e3
    for name in _RULES:
        rule = RULES[name]
        mode: Mode = "prune" if rule.needs == "features" else "sparse"
        yield Choice(
            rule.name, blocks(rule.choose(described, tokens)), mode, asked, tower_ms if mode == "prune" else 0.0
        )
    for seed in range(seeds):
        yield Choice("random", blocks(random_rule(seed).choose(described, tokens)), "sparse", asked)
    small = [scaled_down(first, second, tokens, (at - EACH / 2) / FPS, at) for first, second, at in pairs]
    yield Choice("scaled down", small, "sparse", asked)
    things = [_changing(story, index) for _, _, index in pairs]
    yield Choice("cells of all things", blocks([most_covered(shares, tokens) for shares in things]), "sparse", asked)


def _pair_starts(story: Story) -> range:
    return range(0, len(story.frames) - EACH, 2 * EACH)


def _changing(story: Story, index: int) -> FloatArray:
    """Where things are on a pair, and where they were on the one before."""
    frames = [max(0, index - EACH), index, max(0, index - 2 * EACH)]
    return np.asarray(np.max([cell_shares(story.labels[k], len(story.actors)) for k in frames], axis=0), np.float32)


def _half(
    rgb: np.ndarray[tuple[int, ...], np.dtype[np.uint8]], grid: Grid
) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    return np.asarray(cv2.resize(rgb, (grid.columns * 16, grid.rows * 16), interpolation=cv2.INTER_AREA), np.uint8)
