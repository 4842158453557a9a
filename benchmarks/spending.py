"""A budget over time beside one for every frame: what does an event get, and what do quiet stretches cost?

Clips are quiet, then something moves, then they are quiet again. Each is run with a budget over time, and then with
as many tokens on every frame as that came to in the mean. Two figures tell of the object while it moves: the share of
it in cells of that frame (`sent`), and in cells that a model has as they now look, sent on that frame or before
(`up to date`, by the measure of `selection.novelty`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from arr_stream.config import Settings
from arr_stream.evaluation.coverage import object_shares
from arr_stream.evaluation.tables import Report, ResultTable
from arr_stream.selection.allocation import Allocation
from arr_stream.selection.novelty import SeenCells
from arr_stream.stream import Stream
from arr_stream.texture.pictures import Pictures
from arr_stream.types import ByteArray
from benchmarks.scenes.camera import GeneratedSource, with_grain
from benchmarks.scenes.footage import Footage, Truth

OVER_TIME, EACH_FRAME, EACH_FRAME_NEW = "over time", "every frame", "every frame, new cells first"
METHODS = (OVER_TIME, EACH_FRAME, EACH_FRAME_NEW)


@dataclass(frozen=True, slots=True)
class SpendingRow:
    """One way to spend on one clip.

    Args:
        kind: Of the footage.
        clip: Its name.
        method: One of `METHODS`.
        per_second: Tokens a second that were allowed.
        tokens_per_frame, tokens_per_second: Tokens that were spent, the first frame included.
        event: Tokens a second while something moves.
        quiet: Tokens a second while nothing does, the first frame left out.
        sent: Share of the object in cells of the same frame, mean over the frames on which it moves.
        up_to_date: Share of it in cells that the model has as they are.
    """

    kind: str
    clip: str
    method: str
    per_second: float
    tokens_per_frame: float
    tokens_per_second: float
    event: float
    quiet: float
    sent: float
    up_to_date: float


_FIGURES = ("tokens_per_second", "event", "quiet", "sent", "up_to_date")


@dataclass(frozen=True, slots=True)
class SpendingReport(Report):
    """All rows."""

    rows: tuple[SpendingRow, ...]

    @property
    def tables(self) -> tuple[ResultTable, ...]:
        return tuple(self._table(kind) for kind in dict.fromkeys(row.kind for row in self.rows))

    def facts(self) -> Mapping[str, Any]:
        return {"rows": self.rows}

    def _table(self, kind: str) -> ResultTable:
        rows = [row for row in self.rows if row.kind == kind]
        clips = len({row.clip for row in rows})
        columns = ("allowed /s", "tokens", "spent /s", "moving /s", "quiet /s", "sent", "up to date")
        return ResultTable(f"The object while it moves, {kind}, {clips} clips", columns, tuple(_means(rows)), digits=2)


def _means(rows: Sequence[SpendingRow]) -> Iterator[tuple[str | int | float, ...]]:
    for per_second in dict.fromkeys(row.per_second for row in rows):
        for method in METHODS:
            alike = [row for row in rows if (row.per_second, row.method) == (per_second, method)]
            yield per_second, method, *(float(np.mean([getattr(row, name) for row in alike])) for name in _FIGURES)


def evaluate_spending(
    clips: Iterable[Footage],
    rates: Sequence[float],
    settings: Settings,
    progress: Callable[[str], None] = lambda _: None,
) -> SpendingReport:
    """Run every clip at every rate, three ways.

    Args:
        clips: Footage whose truths tell the object and when it moves.
        rates: Tokens a second.
        settings: Everything else.
        progress: Told which clip comes next.
    """
    rows: list[SpendingRow] = []
    for clip in clips:
        progress(clip.name)
        for rate in rates:
            over_time = score_spending(clip, OVER_TIME, rate, settings.with_values({"selection.per_second": rate}))
            each = max(1, round(over_time.tokens_per_frame))
            fixed = {"selection.per_second": 0.0, "selection.budget": str(each)}
            rows += [
                over_time,
                score_spending(clip, EACH_FRAME, rate, settings.with_values(fixed)),
                score_spending(clip, EACH_FRAME_NEW, rate, settings.with_values(fixed | {"selection.novelty": "skip"})),
            ]
    return SpendingReport(tuple(rows))


def score_spending(clip: Footage, method: str, per_second: float, settings: Settings) -> SpendingRow:
    """Run a clip once, without a query."""
    seen: SeenCells | None = None
    sent, current, moving, tokens, times = [], [], [], [], []
    with Stream(clip.open(), settings) as stream:
        for patches, truth in zip(stream, clip.truths(), strict=True):
            assert stream.frame is not None and truth.object is not None
            seen = seen or SeenCells(patches.grid)
            eighth = Pictures(stream.frame, patches.grid).eighth_grey
            seen.send(Allocation(patches.rows, patches.columns, patches.level, patches.score), eighth)
            fine, object_ = patches.level <= 0, object_shares(truth.object, patches.grid)
            tokens.append(patches.tokens)
            times.append(patches.pts_seconds)
            moving.append(truth.moving is not None and bool(truth.moving.any()))
            sent.append(float(object_[patches.rows[fine], patches.columns[fine]].sum()))
            current.append(float(object_[seen.known(eighth)].sum()))
    event, spent = np.array(moving), np.array(tokens)
    frames_per_second = (len(times) - 1) / (times[-1] - times[0])
    quiet = spent[1:][~event[1:]]
    return SpendingRow(
        kind=clip.kind,
        clip=clip.name,
        method=method,
        per_second=per_second,
        tokens_per_frame=float(spent.mean()),
        tokens_per_second=float(spent.mean() * frames_per_second),
        event=float(spent[event].mean() * frames_per_second),
        quiet=float(quiet.mean() * frames_per_second),
        sent=float(np.mean(np.array(sent)[event])),
        up_to_date=float(np.mean(np.array(current)[event])),
    )


def held_footage(clip: Footage, quiet_frames: int = 90) -> Footage:
    """A clip between its first and its last frame, each held so long under a sensor's noise."""

    def pictures() -> Iterator[ByteArray]:
        frames = [frame.rgb for frame in clip.frames()]
        yield from (with_grain(frames[0], index) for index in range(quiet_frames))
        yield from frames
        yield from (with_grain(frames[-1], index) for index in range(quiet_frames))

    def truths() -> Iterator[Truth]:
        masks = [truth.object for truth in clip.truths()]
        for mask in (masks[0],) * quiet_frames:
            yield Truth(mask)
        for mask in masks:
            yield Truth(mask, moving=mask)
        for mask in (masks[-1],) * quiet_frames:
            yield Truth(mask)

    count = 2 * quiet_frames + sum(1 for _ in clip.truths())
    name = f"{clip.name}, held"
    return Footage(name, clip.kind, clip.camera, clip.words, lambda: GeneratedSource(name, pictures, count), truths)
