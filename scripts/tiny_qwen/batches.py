"""Input of a training step: stories, of which some cells are given, and questions that those can answer."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import cv2
import numpy as np
import numpy.typing as npt

from arr_stream.selection.allocation import Allocation
from arr_stream.types import CELL_PX, ByteArray, FloatArray, Grid
from arr_stream.vlm.qwen3_vl.cells import Cells
from benchmarks.rivals.spread import spread
from benchmarks.scenes.asking import ONE_OF, ONE_WORD, Asked, questions
from benchmarks.scenes.stories import Story, cell_shares, clip_story, picture_story

Showing = Literal["all", "things", "alone", "random", "even", "mixed", "scaled", "pruned", "clip"]

_FEWEST, _MOST, _CELLS_A_QUESTION = 6, 20, 10
"""Questions that are asked at once: they cost little beside the cells, so that more are asked where there are many."""
_QUESTION_COST = 2
"""Of a question, in encoded cells."""
_SEEN, _UNSEEN = 0.5, 0.08
"""Shares of a thing above and below which it counts as there and as not there."""
_LEVEL_WORTH = (1.0, 0.7, 0.25)
_SCALED_PX = 9.0
"""A thing that is smaller than this on a scaled picture can be told in part."""
_CHANGED = 10.0
_OFTEN = {"presence": 0.5, "count": 0.7, "side": 0.6, "height": 0.5, "above": 0.7}
_SELDOM = {"number": 4.0, "word": 4.0, "gone sign": 8.0, "came": 6.0, "left": 8.0, "way": 6.0, "moves": 6.0}
_HARD = {"shape": 2.5, "beside": 3.0, "total": 5.0, "still": 6.0, "gone colour": 2.0}
_KIND_WEIGHT = _OFTEN | _SELDOM | _HARD
_SMALL = ((5, 4), (6, 4), (7, 5), (8, 5), (8, 6), (10, 6))
_PICTURES = (*_SMALL, (12, 7), (12, 9), (14, 8), (16, 9), (16, 12), (20, 11), (20, 12))
_CLIPS = ((5, 4), (6, 4), (8, 5), (8, 6), (10, 6))
_SIGNS = 0.45
"""Share of the things that are signs: to read takes longest to learn."""
_CROWDED, _CROWD_PX = 0.25, (36.0, 80.0)
"""Share of large pictures with more things than elsewhere, and how large those are."""
_POOLED = 120
"""Stories of one size that are kept to be asked about again."""


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Cells given of one frame, or of a pair.

    Args:
        first, second: `[32 gh, 32 gw, 3]`.
        encoded: Cells that the tower sees.
        kept: `[K]` indices of those that the language model gets.
        seconds: Under which it is shown; None for a picture.
        labels: `[32 gh, 32 gw]` uint8 of the second frame.
        frame: Number of the second frame in the story.
    """

    first: ByteArray
    second: ByteArray
    encoded: Cells
    kept: npt.NDArray[np.int64]
    seconds: float | None
    labels: ByteArray
    frame: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Example:
    """A story as it is shown, and what is asked."""

    story: Story
    blocks: tuple[Block, ...]
    asked: tuple[Asked, ...]


@dataclass(frozen=True, slots=True)
class Lesson:
    """Difficulty of the examples; `level` is 0 at first and 1 at last."""

    level: float

    def size(self, rng: np.random.Generator, sizes: Sequence[tuple[int, int]]) -> tuple[int, int]:
        """Columns and rows: from the smallest to all; small ones stay the more frequent."""
        most = 24 + 230 * self.level
        open_now = [size for size in sizes if math.prod(size) <= most]
        weights = np.array([math.prod(size) ** -0.35 for size in open_now])
        return open_now[int(rng.choice(len(open_now), p=weights / weights.sum()))]

    def things(self, cells: int) -> tuple[int, int]:
        """Fewest and most."""
        most = min(7, 1 + int(12 * self.level) + int(self.level * cells / 60))
        return 1, max(1, min(most, cells // 8))

    def showing(self, rng: np.random.Generator) -> Showing:
        if self.level < 0.15:
            return "all"
        shares: dict[Showing, float] = {"all": 0.17, "things": 0.09, "alone": 0.07, "random": 0.05, "even": 0.04}
        shares |= {"mixed": 0.06, "scaled": 0.08, "pruned": 0.08, "clip": 0.36}
        return list(shares)[int(rng.choice(len(shares), p=list(shares.values())))]


class Source:
    """Examples without end; stories are used several times, with other cells and questions.

    Args:
        rng: Source of all randomness.
        fresh: Share of the stories that are new.
    """

    def __init__(self, rng: np.random.Generator, fresh: float = 0.3) -> None:
        self._rng = rng
        self._fresh = fresh
        self._pools: dict[tuple[int, ...], list[Story]] = {}
        self._asked: Counter[str] = Counter()

    def step(self, lesson: Lesson, cells: int, shared: np.random.Generator) -> list[Example]:
        """Examples of one size and way of showing, about so many encoded cells together.

        `shared` draws those two: with the same state, processes have about the same work.
        """
        showing = lesson.showing(shared)
        size = lesson.size(shared, _CLIPS if showing == "clip" else _PICTURES)
        frames = 2 * int(shared.integers(2, 8)) if showing == "clip" else 1
        made: list[Example] = []
        used = 0
        while used < cells:
            example = self._example(lesson, showing, size, frames)
            if example is None:
                continue
            made.append(example)
            used += sum(len(block.encoded) for block in example.blocks) + _QUESTION_COST * len(example.asked)
        return made

    def _example(self, lesson: Lesson, showing: Showing, size: tuple[int, int], frames: int) -> Example | None:
        story = self._story(lesson, size, frames)
        if not story.actors:
            return None
        blocks, seen = shown(self._rng, story, showing)
        if not blocks:
            return None
        cells = sum(len(block.encoded) for block in blocks)
        count = min(_MOST, max(_FEWEST, cells // _CELLS_A_QUESTION))
        asked = self._drawn(questions(story, self._rng, seen=seen), count)
        return Example(story, tuple(blocks), tuple(asked)) if asked else None

    def _story(self, lesson: Lesson, size: tuple[int, int], frames: int) -> Story:
        pool = self._pools.setdefault((*size, frames), [])
        if len(pool) >= 12 and self._rng.random() > self._fresh:
            return pool[int(self._rng.integers(len(pool)))]
        size_wh = (size[0] * CELL_PX, size[1] * CELL_PX)
        cells = math.prod(size)
        things = lesson.things(cells)
        if frames == 1 and cells // 16 > things[1] and self._rng.random() < _CROWDED:
            story = picture_story(self._rng, size_wh, (things[1], cells // 16), diameter_px=_CROWD_PX, signs=_SIGNS)
        elif frames == 1:
            story = picture_story(self._rng, size_wh, things, signs=_SIGNS)
        else:
            most = (max(1, things[1] - 2), min(5, things[1] + 1))
            story = clip_story(self._rng, size_wh, frames, most, signs=_SIGNS)
        if len(pool) >= _POOLED // (1 if frames == 1 else 4):
            pool.pop(int(self._rng.integers(len(pool))))
        pool.append(story)
        return story

    def _drawn(self, asked: Sequence[Asked], most: int) -> list[Asked]:
        """Some of them: rare kinds and rare answers first, now and then with what may follow a question."""
        if not asked:
            return []
        kinds = Counter(one.kind for one in asked)
        answers = Counter((one.kind, one.answer) for one in asked)
        rare = [kinds[one.kind] ** -0.7 * answers[one.kind, one.answer] ** -0.5 for one in asked]
        weights = np.array(rare) * [_KIND_WEIGHT.get(one.kind, 1.0) for one in asked]
        count = min(most, len(asked))
        picked = self._rng.choice(len(asked), count, replace=False, p=weights / weights.sum())
        return [self._worded(asked[int(k)]) for k in picked]

    def _worded(self, one: Asked) -> Asked:
        question, way = one.question, self._rng.random()
        if way < 0.25:
            question = question[0].lower() + question[1:]
        if self._rng.random() < 0.15:
            question = question.rstrip("?.")
        if way > 0.9:
            question += " " + (ONE_OF.format(", ".join(one.options)) if way > 0.95 else ONE_WORD)
        return Asked(one.kind, question, one.answer, one.query, one.actors, one.options)


def shown(rng: np.random.Generator, story: Story, showing: Showing) -> tuple[list[Block], list[bool | None]]:
    """The blocks that are given, and of each actor whether it is visible in them."""
    if showing == "clip":
        return _clip_blocks(rng, story)
    if showing == "scaled":
        return _scaled_block(rng, story)
    picture, labels = story.frames[0], story.labels[0]
    grid = Grid.for_size(story.size_wh)
    whole = Cells.whole((grid.rows, grid.columns))
    media = None if rng.random() < 0.5 else float(rng.integers(0, 20)) / 2
    if showing == "all":
        cells = whole
    elif showing == "mixed":
        cells = _mixed(rng, story, grid)
    elif showing == "alone":
        cells = whole.select(_alone(rng, story))
    else:
        order = showing if showing != "pruned" else str(rng.choice(("things", "random", "even")))
        count = max(2, round(grid.cells * float(np.exp(rng.uniform(math.log(0.05), math.log(0.8))))))
        cells = whole.select(np.sort(_order(rng, story, 0, grid, order)[:count]).astype(np.int32))
    seen = _visible(story, 0, cells, grid)
    if showing != "pruned":
        return [Block(picture, picture, cells, np.arange(len(cells)), media, labels)], seen
    kept = (cells.rows * grid.columns + cells.columns).astype(np.int64)
    return [Block(picture, picture, whole, kept, media, labels)], seen


def _order(rng: np.random.Generator, story: Story, frame: int, grid: Grid, how: str) -> npt.NDArray[np.int64]:
    """`[cells]` flat indices, the first taken first."""
    if how == "random":
        return rng.permutation(grid.cells)
    if how == "even":
        order = spread(grid)
        return np.roll(order, int(rng.integers(grid.cells))) if rng.random() < 0.3 else order
    # By thing: some of them wholly, in any order, then what is left at random.
    shares = cell_shares(story.labels[frame], len(story.actors))
    wanted = rng.random(len(shares)) < rng.uniform(0.3, 1.0)
    score = (shares * (wanted * rng.uniform(1, 3, len(shares)))[:, None, None]).max(axis=0)
    score = score + rng.random(score.shape) * rng.choice([0.02, 0.2])
    found: npt.NDArray[np.int64] = np.argsort(-score.ravel())
    return found


def _alone(rng: np.random.Generator, story: Story) -> npt.NDArray[np.int32]:
    """`[K]` flat indices of all cells that show one, two or three things, and of no others."""
    shares = cell_shares(story.labels[0], len(story.actors))
    wanted = rng.permutation(len(shares))[: int(rng.integers(1, 4))]
    shown = shares[wanted].max(axis=0)
    return np.flatnonzero(shown >= min(rng.uniform(0.02, 0.15), shown.max())).astype(np.int32)


def _mixed(rng: np.random.Generator, story: Story, grid: Grid) -> Cells:
    """Things in fine cells, and around them coarse ones, of which some are left out."""
    order = _order(rng, story, 0, grid, "things")
    fine = np.zeros((grid.rows, grid.columns), bool)
    count = max(1, round(grid.cells * float(rng.uniform(0.03, 0.35))))
    fine.ravel()[order[:count]] = True
    level = int(rng.integers(1, 3))
    span = 1 << level
    rows, columns = (list(part) for part in np.nonzero(fine))
    levels = [0] * len(rows)
    keep = rng.uniform(0.4, 1.0)
    for row in range(0, grid.rows, span):
        for column in range(0, grid.columns, span):
            if not fine[row : row + span, column : column + span].all() and rng.random() < keep:
                rows.append(row)
                columns.append(column)
                levels.append(level)
    score = np.ones(len(rows), np.float32)
    made = Allocation(*(np.array(part, np.int32) for part in (rows, columns, levels)), score)
    return Cells.allocated(made, grid)


def _visible(story: Story, frame: int, cells: Cells, grid: Grid) -> list[bool | None]:
    worth = np.zeros((grid.rows, grid.columns), np.float32)
    for (row, column, height, width), level in zip(cells.blocks.tolist(), cells.level.tolist(), strict=True):
        place = worth[row : row + height, column : column + width]
        np.maximum(place, _LEVEL_WORTH[max(level, 0)], out=place)
    shares = cell_shares(story.labels[frame], len(story.actors))
    found: list[bool | None] = []
    for share in shares:
        total = float(share.sum())
        seen = float((share * worth).sum()) / total if total > 0 else 0.0
        found.append(True if seen >= _SEEN else False if seen <= _UNSEEN else None)
    return found


def _scaled_block(rng: np.random.Generator, story: Story) -> tuple[list[Block], list[bool | None]]:
    """The whole frame at a half to a fifth of its size, in a grid of its own."""
    columns, rows = (side // CELL_PX for side in story.size_wh)
    factor = float(rng.uniform(0.22, 0.75))
    scaled = max(2, round(columns * factor)), max(2, round(rows * factor))
    size_wh = scaled[0] * CELL_PX, scaled[1] * CELL_PX
    picture = cv2.resize(story.frames[0], size_wh, interpolation=cv2.INTER_AREA)
    labels = cv2.resize(story.labels[0], size_wh, interpolation=cv2.INTER_NEAREST)
    cells = Cells.whole((scaled[1], scaled[0]))
    media = None if rng.random() < 0.5 else float(rng.integers(0, 20)) / 2
    shrunk = size_wh[0] / story.size_wh[0]
    seen: list[bool | None] = [True if actor.diameter_px * shrunk >= _SCALED_PX else None for actor in story.actors]
    return [Block(picture, picture, cells, np.arange(len(cells)), media, labels)], seen


def _clip_blocks(rng: np.random.Generator, story: Story) -> tuple[list[Block], list[bool | None]]:
    """Pairs of frames: the cells of some things, what stands where they were a pair ago, and now and then more.

    With a memory that is not told again what it knows, cells come again only when they have changed.
    """
    grid = Grid.for_size(story.size_wh)
    seen: list[bool | None] = [True] * len(story.actors)
    if rng.random() < 0.3 and len(story.actors) > 1:
        seen[int(rng.integers(len(seen)))] = False
    everything = rng.random() < 0.15 and len(story.frames) <= 8
    remembers = rng.random() < 0.6
    fill = float(rng.choice([0.0, 0.03, 0.1]))
    start, step = float(rng.integers(0, 40)), float(rng.choice([1.0, 1.0, 2.0, 3.0]))
    known = np.full((grid.rows, grid.columns, CELL_PX // 8 * CELL_PX // 8 * 3), np.nan, np.float32)
    before = np.zeros((grid.rows, grid.columns), bool)
    blocks: list[Block] = []
    wanted = np.array([one is True for one in seen])
    unwanted = np.array([one is False for one in seen])
    for pair in range(len(story.frames) // 2):
        first, second = story.frames[2 * pair], story.frames[2 * pair + 1]
        shares = [cell_shares(story.labels[2 * pair + k], len(story.actors)) for k in (0, 1)]
        things = np.maximum(*(share[wanted].sum(axis=0) for share in shares)) > 0.05
        hidden = np.maximum(*(share[unwanted].sum(axis=0) for share in shares)) > 0.01
        place = things | before | (rng.random(before.shape) < fill)
        place = np.ones_like(place) if everything else place & ~hidden
        if everything:
            seen = [True] * len(seen)
        before = things
        look = _coarse(second, grid)
        if remembers:
            change = np.abs(look - known).max(axis=2)
            place &= ~(change < 2 * _CHANGED)
            known[place] = look[place]
        rows, columns = (index.astype(np.int32) for index in np.nonzero(place))
        if not len(rows):
            continue
        cells = Cells((grid.rows, grid.columns), rows, columns, np.zeros_like(rows), np.ones(len(rows), np.float32))
        seconds = start + step * pair + 0.25
        blocks.append(
            Block(first, second, cells, np.arange(len(cells)), seconds, story.labels[2 * pair + 1], 2 * pair + 1)
        )
    return blocks, seen


def _coarse(rgb: ByteArray, grid: Grid) -> FloatArray:
    """`[gh, gw, 48]`: means of 8x8 pixels."""
    small = cv2.resize(rgb, (grid.columns * 4, grid.rows * 4), interpolation=cv2.INTER_AREA).astype(np.float32)
    tiles = small.reshape(grid.rows, 4, grid.columns, 4, 3).swapaxes(1, 2)
    return np.asarray(tiles.reshape(grid.rows, grid.columns, -1), np.float32)
