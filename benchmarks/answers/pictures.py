"""Methods that choose a picture's cells: ours, oracles by question and by thing, published and plain rules."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import cv2
import numpy as np

from arr_stream.config import Settings
from arr_stream.relevance.question import sought
from arr_stream.selection.allocation import Allocation
from arr_stream.types import CELL_PX, ByteArray, FloatArray, Grid
from arr_stream.vlm.qwen3_vl.cells import Cells
from arr_stream.vlm.qwen3_vl.encoding import Mode
from benchmarks.answers.showing import Shown, Watcher
from benchmarks.cell_choices import OurChoice
from benchmarks.rivals.base import Clip
from benchmarks.rivals.spread import random_cells, uniform
from benchmarks.rivals.vidcom2 import vidcom2
from benchmarks.scenes.asking import Asked
from benchmarks.scenes.stories import Story, cell_shares


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """Cells that one method shows for some questions.

    Args:
        method: Name of the method.
        blocks: The cells.
        mode: How they are fed to the model.
        asked: The questions that they are shown for.
        choosing_ms: Time of the choice, for one question.
    """

    method: str
    blocks: Sequence[Shown]
    mode: Mode
    asked: Sequence[Asked]
    choosing_ms: float = 0.0


class PictureChoosers:
    """All methods that choose cells of a picture.

    Args:
        ours: Settings of our variants, by name.
        seeds: Number of random choices.
    """

    def __init__(self, ours: Mapping[str, Settings], *, seeds: int = 3) -> None:
        self._ours = {name: (OurChoice(settings), settings.vlm.mode) for name, settings in ours.items()}
        self._seeds = seeds
        self._story: Story | None = None
        self._picture = np.zeros((0, 0, 3), np.uint8)

    def choices(self, story: Story, asked: Sequence[Asked], tokens: int, watcher: Watcher) -> Iterator[Choice]:
        """Yield one or more choices for every method."""
        if self._story is not story:
            # One array for all budgets: our choice caches its keyframe by identity.
            self._story, self._picture = story, story.frames[0]
        picture, grid = self._picture, Grid.for_size(story.size_wh)

        def shown(cells: Allocation) -> list[Shown]:
            return [Shown(picture, picture, Cells.allocated(cells, grid), None)]

        if tokens >= grid.cells:
            yield Choice(
                "all cells", [Shown(picture, picture, Cells.whole((grid.rows, grid.columns)), None)], "sparse", asked
            )
            return
        for name, (ours, mode) in self._ours.items():
            for one in asked:
                cells, choosing_ms = ours.choose(picture, sought(one.question), tokens)
                yield Choice(name, shown(cells), mode, [one], choosing_ms)
        shares = cell_shares(story.labels[0], len(story.actors))
        for one in asked:
            if one.actors:
                yield Choice(
                    "cells of what is asked", shown(most_covered(shares[list(one.actors)], tokens)), "sparse", [one]
                )
        yield Choice("cells of all things", shown(most_covered(shares, tokens)), "sparse", asked)
        yield Choice("uniform", shown(uniform(grid, tokens)), "sparse", asked)
        for seed in range(self._seeds):
            yield Choice("random", shown(random_cells(grid, tokens, (seed, len(asked), tokens))), "sparse", asked)
        yield Choice("scaled down", [scaled_down(picture, picture, tokens, None)], "sparse", asked)
        started = time.perf_counter()
        features = watcher.features(picture, picture)[None]
        small = cv2.resize(picture, (grid.columns * 16, grid.rows * 16), interpolation=cv2.INTER_AREA)
        [cells] = vidcom2(Clip(grid, small[None], features), tokens)
        yield Choice("VidCom2", shown(cells), "prune", asked, (time.perf_counter() - started) * 1e3)


def most_covered(shares: FloatArray, tokens: int) -> Allocation:
    """Choose at most `tokens` cells: for each thing in turn, the cell that shows most of it."""
    left = shares.copy()
    order: list[int] = []
    while len(order) < tokens and float(left.max(initial=0.0)) > 0.02:
        for thing in range(len(left)):
            best = int(left[thing].argmax())
            if left[thing].flat[best] > 0.02 and len(order) < tokens:
                order.append(best)
                left[:, best // left.shape[2], best % left.shape[2]] = 0
    rows, columns = np.divmod(np.array(order, np.int32), np.int32(shares.shape[2]))
    return Allocation(rows, columns, np.zeros_like(rows), np.ones(len(rows), np.float32))


def scaled_wh(size_wh: tuple[int, int], tokens: int) -> tuple[int, int]:
    """Return the largest size in pixels, in whole cells, that keeps the shape within `tokens` cells."""
    factor = (tokens * 32 * 32 / (size_wh[0] * size_wh[1])) ** 0.5
    columns, rows = (max(1, round(side * factor / 32)) for side in size_wh)
    while columns * rows > tokens and columns * rows > 1:
        if rows == 1 or (columns > 1 and columns * size_wh[1] >= rows * size_wh[0]):
            columns -= 1
        else:
            rows -= 1
    return columns * 32, rows * 32


def scaled_down(first: ByteArray, second: ByteArray, tokens: int, seconds: float | None, index: int = 0) -> Shown:
    """Scale a pair of whole frames, or one frame twice, down to at most `tokens` cells."""
    size_wh = scaled_wh((first.shape[1], first.shape[0]), tokens)
    small = [np.asarray(cv2.resize(rgb, size_wh, interpolation=cv2.INTER_AREA), np.uint8) for rgb in (first, second)]
    return Shown(small[0], small[1], Cells.whole((size_wh[1] // CELL_PX, size_wh[0] // CELL_PX)), seconds, index)
