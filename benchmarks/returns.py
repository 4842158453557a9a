"""An object that leaves and comes back, and one that is followed for long: is a box query still about it?

The object is asked for by its box on the first frame. It is shown, is gone for a while, and is there again:

- a generated thing leaves a photograph by one side and enters by either, elsewhere (`scenes.photographs`);
- an object of a sequence with masks does the same over the frames of another sequence (`pasted`);
- another sequence is cut in, while the object goes on with its own (`cutaway`).

It is *found* if, within `SOON` frames of being wholly back, the query is answered (`ANSWERED`) and the chosen cells
cover at least half as much of it as while it was first shown. A *false find* begins where the query is answered and
the cells show less than a tenth of that, or the object is not there at all.

Followed for long, a sequence is played to and fro, and a generated thing circles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import cv2
import numpy as np

from arr_stream.config import Settings
from arr_stream.evaluation.coverage import object_shares
from arr_stream.evaluation.davis import tight_box
from arr_stream.evaluation.tables import Report, ResultTable
from arr_stream.relevance.query import RegionQuery
from arr_stream.stream import Stream
from arr_stream.types import BoolArray, ByteArray
from benchmarks.scenes.camera import GeneratedSource
from benchmarks.scenes.footage import Footage, Truth
from benchmarks.scenes.photographs import SHOWN, WAY, away_path

SOON = 10
ANSWERED = 0.5
EARLY, LATE = slice(80, 120), slice(-40, None)
_LARGEST = 0.05
"""Share of the frame that a pasted object takes at most, so that it can leave and enter within `WAY` frames."""

Clip = tuple[ByteArray, BoolArray]


@dataclass(frozen=True, slots=True)
class ReturnRow:
    """One clip.

    Args:
        name: Of the clip.
        kind: `generated`, `pasted` or `cutaway`.
        gone: Frames without the object.
        found: Soon after its return.
        kept: Share of the thirty frames after its return on which it is.
        false_finds: How often something else was taken for it.
        seconds: Of the clip.
    """

    name: str
    kind: str
    gone: int
    found: bool
    kept: float
    false_finds: int
    seconds: float


@dataclass(frozen=True, slots=True)
class LongRow:
    """One clip: coverage of the object by a tenth of the cells, around frame 100 and at the end."""

    name: str
    kind: str
    early: float
    late: float


@dataclass(frozen=True, slots=True)
class ReturnReport(Report):
    """All rows."""

    returns: tuple[ReturnRow, ...]
    longs: tuple[LongRow, ...]

    @property
    def tables(self) -> tuple[ResultTable, ...]:
        gone = ("", "frames gone", "clips", "found", "kept", "false finds a minute")
        long = ("", "clips", "around frame 100", "at the end", "of that")
        tables = (
            ResultTable("An object that leaves and comes back", gone, tuple(self._returns()), digits=2),
            ResultTable("An object followed for long", long, tuple(self._longs()), digits=2),
        )
        return tuple(table for table in tables if table.rows)

    def facts(self) -> Mapping[str, Any]:
        return {"returns": self.returns, "longs": self.longs}

    def _returns(self) -> Iterator[tuple[str | int | float | None, ...]]:
        groups = dict.fromkeys((row.kind, row.gone) for row in self.returns)
        for kind, gone in groups:
            yield kind, gone, *_returned([row for row in self.returns if (row.kind, row.gone) == (kind, gone)])
        if self.returns:
            yield "all", None, *_returned(self.returns)

    def _longs(self) -> Iterator[tuple[str | int | float, ...]]:
        for kind in dict.fromkeys(row.kind for row in self.longs):
            rows = [row for row in self.longs if row.kind == kind]
            early, late = (float(np.mean([getattr(row, name) for row in rows])) for name in ("early", "late"))
            yield kind, len(rows), early, late, late / early


def _returned(rows: Sequence[ReturnRow]) -> tuple[int, float, float, float]:
    false_finds = sum(row.false_finds for row in rows) * 60 / sum(row.seconds for row in rows)
    return (
        len(rows),
        float(np.mean([row.found for row in rows])),
        float(np.mean([row.kept for row in rows])),
        false_finds,
    )


def evaluate_returns(
    returns: Iterable[tuple[Footage, str, int]],
    longs: Iterable[Footage],
    settings: Settings,
    progress: Callable[[str], None] = lambda _: None,
) -> ReturnReport:
    """Run every clip once.

    Args:
        returns: Clips, their kinds, and how many frames the object is gone.
        longs: Clips to follow an object through.
        settings: Everything but the query.
        progress: Told which clip comes next.
    """
    return_rows, long_rows = [], []
    for clip, kind, gone in returns:
        progress(clip.name)
        return_rows.append(score_return(clip, kind, gone, settings))
    for clip in longs:
        progress(clip.name)
        covered = np.array([share for share, _, _ in _followed(clip, settings)])
        long_rows.append(LongRow(clip.name, clip.kind, float(covered[EARLY].mean()), float(covered[LATE].mean())))
    return ReturnReport(tuple(return_rows), tuple(long_rows))


def score_return(clip: Footage, kind: str, gone: int, settings: Settings) -> ReturnRow:
    """Run a clip whose object is there for `SHOWN` frames, away for some, and there again."""
    covered, answered, seconds = (np.array(each) for each in zip(*_followed(clip, settings), strict=True))
    at_first, sure = float(covered[:SHOWN].mean()), answered >= ANSWERED
    seen = sure & (covered >= at_first / 2)
    back = SHOWN + gone + (0 if kind == "cutaway" else 2 * WAY)
    wrong = sure & (covered < at_first / 10)
    # On its way out the object is still there in part.
    wrong[:back] &= np.arange(back) >= SHOWN + (SOON if kind == "cutaway" else WAY + SOON)
    false_finds = int((np.diff(wrong.astype(int), prepend=0) == 1).sum())
    return ReturnRow(
        name=clip.name,
        kind=kind,
        gone=gone,
        found=bool(seen[back : back + SOON + 1].any()),
        kept=float(seen[back : back + 30].mean()),
        false_finds=false_finds,
        seconds=float(seconds[-1]),
    )


def _followed(clip: Footage, settings: Settings) -> Iterator[tuple[float, float, float]]:
    """For each frame: share of the object in the chosen cells, how well the query is answered, and its time."""
    truths = clip.truths()
    first = next(truths).object
    assert first is not None
    with Stream(clip.open(), settings, queries=[RegionQuery(tight_box(first))]) as stream:
        masks = (truth.object for truth in truths)
        for patches in stream:
            mask = first if patches.index == 0 else next(masks)
            assert mask is not None
            object_, fine = object_shares(mask, patches.grid), patches.level <= 0
            share = float(object_[patches.rows[fine], patches.columns[fine]].sum()) if mask.any() else 0.0
            yield share, patches.query_scores[0], patches.pts_seconds


def pasted(clip: Footage, over: Footage, gone: int) -> Footage:
    """An object of one sequence that crosses the frames of another, leaves and comes back."""

    def scene() -> Iterator[Clip]:
        frames, masks = _read(clip)
        grounds, _ = _read(over)
        height, width = grounds[0].shape[:2]
        boxes = [cv2.boundingRect(mask.astype(np.uint8)) for mask in masks]
        scale = min(1.0, float(np.sqrt(_LARGEST / np.median([mask.mean() for mask in masks]))))
        reach = scale * max(max(box[2:]) for box in boxes) / 2
        path = away_path(gone, (width, height), reach, np.random.default_rng((gone, len(frames))))
        for index, middle in enumerate(path):
            ground, at = grounds[_to_and_fro(index, len(grounds))], _to_and_fro(index, len(frames))
            x, y, w, h = boxes[at]
            if not w or not np.isfinite(middle).all():
                yield ground, np.zeros((height, width), bool)
                continue
            left, top = middle - scale * np.array([x + w / 2, y + h / 2])
            place = np.array([[scale, 0, left], [0, scale, top]])
            rgb = cv2.warpAffine(frames[at], place, (width, height)).astype(np.float32)
            alpha = cv2.warpAffine(cv2.GaussianBlur(masks[at].astype(np.float32), (3, 3), 0), place, (width, height))
            mixed = ground + alpha[..., None] * (rgb - ground)
            yield np.clip(np.rint(mixed), 0, 255).astype(np.uint8), np.asarray(alpha > 0.5)

    return _made(f"{clip.name} over {over.name}, gone {gone}", clip, 2 * SHOWN + 2 * WAY + gone, scene)


def cutaway(clip: Footage, to: Footage, gone: int) -> Footage:
    """A sequence with some frames of another in its middle, after which its own have gone on."""

    def scene() -> Iterator[Clip]:
        frames, masks = _read(clip)
        others, _ = _read(to)
        for index in range(2 * SHOWN + gone):
            if SHOWN <= index < SHOWN + gone:
                yield others[_to_and_fro(index, len(others))], np.zeros(masks[0].shape, bool)
            else:
                at = _to_and_fro(index, len(frames))
                yield frames[at], masks[at]

    return _made(f"{clip.name}, {to.name} for {gone}", clip, 2 * SHOWN + gone, scene)


def to_and_fro(clip: Footage, count: int) -> Footage:
    """A sequence played forth and back until there are so many frames."""

    def scene() -> Iterator[Clip]:
        frames, masks = _read(clip)
        for index in range(count):
            yield frames[_to_and_fro(index, len(frames))], masks[_to_and_fro(index, len(frames))]

    return _made(f"{clip.name}, to and fro", clip, count, scene)


def _made(name: str, clip: Footage, count: int, scene: Callable[[], Iterator[Clip]]) -> Footage:
    def pictures() -> Iterator[ByteArray]:
        return (rgb for rgb, _ in scene())

    def truths() -> Iterator[Truth]:
        return (Truth(mask, (mask,)) for _, mask in scene())

    return Footage(name, clip.kind, clip.camera, None, lambda: GeneratedSource(name, pictures, count), truths)


def _to_and_fro(index: int, count: int) -> int:
    at = index % max(1, 2 * (count - 1))
    return min(at, 2 * (count - 1) - at) if count > 1 else 0


@lru_cache(maxsize=2)
def _read(clip: Footage) -> tuple[list[ByteArray], list[BoolArray]]:
    masks = [truth.object for truth in clip.truths() if truth.object is not None]
    return [frame.rgb for frame in clip.frames()], masks
