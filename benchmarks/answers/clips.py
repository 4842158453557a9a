"""Choices of cells by rules on a clip's pairs of frames."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import cv2
import numpy as np

from arr_stream.selection.allocation import Allocation
from arr_stream.types import FloatArray, Grid
from arr_stream.vlm.qwen3_vl.cells import Cells
from arr_stream.vlm.qwen3_vl.encoding import Mode
from benchmarks.answers.pictures import Choice, most_covered, scaled_down
from benchmarks.answers.showing import Shown, Watcher
from benchmarks.rivals import RULES
from benchmarks.rivals.base import Clip
from benchmarks.rivals.plain import random_rule
from benchmarks.scenes.asking import Asked
from benchmarks.scenes.camera import FPS
from benchmarks.scenes.stories import Story, cell_shares

EACH = int(FPS) // 2
"""Frames in half a second: the distance between the two frames of a pair."""
_RULES = ("uniform", "difference", "evs", "dtd-feature", "vidcom2")


def choices(story: Story, asked: Sequence[Asked], tokens: int, watcher: Watcher, *, seeds: int = 2) -> Iterator[Choice]:
    """Yield each rule's choice on a clip's pairs of frames, at `tokens` cells a pair on average.

    Feature rules use the model's own vision tower over whole pairs and prune its output, as in their published systems.
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
    """Return the cells' shares of each thing on a pair and on the pair before."""
    frames = [max(0, index - EACH), index, max(0, index - 2 * EACH)]
    return np.asarray(np.max([cell_shares(story.labels[k], len(story.actors)) for k in frames], axis=0), np.float32)


def _half(
    rgb: np.ndarray[tuple[int, ...], np.dtype[np.uint8]], grid: Grid
) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    return np.asarray(cv2.resize(rgb, (grid.columns * 16, grid.rows * 16), interpolation=cv2.INTER_AREA), np.uint8)
