"""Queries at work on a device; `relevance/query_scorers.py` on tensors.

Each query has a scorer on the host, which keeps what must be known from frame to frame, and prepares a task for every
frame: tensors and constants. Tasks are answered on the device, all in one step that can be captured.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from arr_stream.gpu.flow import DeviceFlow
from arr_stream.gpu.memory import DeviceMemory, Trail
from arr_stream.gpu.region import Region, followed, region_relevance, sought
from arr_stream.gpu.warp import warp
from arr_stream.motion.anchor import DEFAULT, UNANCHORED, ColourModel, RegionTracker
from arr_stream.relevance.lexicon import ColourTerm, LightTerm, MotionTerm, PlaceTerm
from arr_stream.relevance.membership import MOVING, Senses, compile_colours, text_relevance
from arr_stream.relevance.query import ExampleQuery, Query, RegionQuery, TextQuery
from arr_stream.relevance.query_scorers import LEAST_MEANING, overlap
from arr_stream.relevance.words import word_mask
from arr_stream.texture.pictures import Pictures
from arr_stream.types import FloatArray, Frame, Grid

_CELL = 8
"""Side of a cell at a quarter of the texture's size."""


@dataclass(frozen=True, slots=True, eq=False)
class DeviceScene:
    """What a task may look at on one frame.

    Args:
        quarter: `[3, h, w]` float32, whole numbers in [0, 255], a quarter of the texture's size.
        eighth_motion: `[h/2, w/2]` in [0, 1].
        flow: To the frame before; None on the first frame and after a cut.
        keyframe_trail, text_trail, embedding_trail: Ways back to the newest keyframe in use and to those that text and
            embedding came from.
        trust: Confidence from which carried relevance is believed.
    """

    quarter: Tensor
    eighth_motion: Tensor
    flow: DeviceFlow | None
    keyframe_trail: Trail | None
    text_trail: Trail | None
    embedding_trail: Trail | None
    trust: float

    @property
    def hw(self) -> tuple[int, int]:
        return self.quarter.shape[1], self.quarter.shape[2]

    def enlarged(self, eighth: Tensor) -> Tensor:
        """`[h, w]` by linear interpolation."""
        return F.interpolate(eighth[None, None], self.hw, mode="bilinear")[0, 0]

    def nothing(self) -> Tensor:
        return torch.zeros(self.hw, device=self.quarter.device)


@dataclass(frozen=True, slots=True, eq=False)
class Answered:
    """One query's relevance on one frame.

    Args:
        relevance: `[h, w]` in [0, 1].
        carried: `[h, w]` 0 or 1, or `[]` for all of it: what came along the flow.
        keep: Whatever the scorer wants back.
    """

    relevance: Tensor
    carried: Tensor
    keep: Any = None


class Task(Protocol):
    """A query on one frame: a dataclass of tensors and constants."""

    def answer(self, scene: DeviceScene) -> Answered: ...


@dataclass(frozen=True, slots=True, eq=False)
class Now:
    """One frame as scorers see it on the host.

    Args:
        frame: The frame; pictures of it are made on the host only where something is learned.
        grid: Its cells.
        memory: What is carried.
        meanings: For each phrase that a model was asked about, `[h', w']` on the frame of the embedding in use.
    """

    frame: Frame
    grid: Grid
    memory: DeviceMemory
    meanings: Mapping[str, Tensor]

    @property
    def device(self) -> torch.device:
        return self.memory.device

    def quarter(self) -> Any:
        """`[h, w, 3]` uint8, on the host."""
        return Pictures(self.frame, self.grid).quarter

    def uploaded(self, values: FloatArray) -> Tensor:
        return torch.from_numpy(np.array(values, np.float32)).to(self.device)


@dataclass(frozen=True, slots=True, eq=False)
class TextTask:
    """A text on one frame.

    Args:
        table: `[65536]` membership of every colour, or None without words of colour and light.
        place: `[h, w]` fit of every place, or None.
        words: `[h, w]` on the frame of the text in use, for each word to read; None without such words.
        moving: What moves, what stands still, or None.
        meaning: `[h', w']` on the frame of the embedding in use, in place of colours; None without a model.
        base: `[h, w]` what was found on the keyframe in use, where that can be carried.
        by_model: A model is asked.
        carryable: It may be carried, and what is computed is worth keeping.
        embedded_before: The embedding in use is of an earlier frame.
    """

    table: Tensor | None
    place: Tensor | None
    words: tuple[Tensor, ...] | None
    moving: bool | None
    meaning: Tensor | None
    base: Tensor | None
    by_model: bool
    carryable: bool
    embedded_before: bool

    def answer(self, scene: DeviceScene) -> Answered:
        computed = self._computed(scene)
        trail, none = scene.keyframe_trail, torch.zeros((), device=computed.device)
        if self.by_model:
            relevance = torch.where(computed < LEAST_MEANING, 0.0, computed)
            return Answered(relevance, none + float(self.embedded_before))
        if not self.carryable or self.base is None or trail is None:
            return Answered(computed, none, computed if self.carryable else None)
        trusted = scene.enlarged(trail.confidence) >= scene.trust
        carried = warp(self.base, trail.flow(), outside=0.0)
        return Answered(torch.where(trusted, carried, computed), trusted.float(), computed)

    def _computed(self, scene: DeviceScene) -> Tensor:
        kinds = [self._meant(scene) if self.by_model else self._seen(scene), self._moved(scene), self.place]
        kinds.append(self._read(scene))
        maps = [kind for kind in kinds if kind is not None]
        if not maps:
            return scene.nothing()
        result = maps[0]
        for kind in maps[1:]:
            result = result * kind
        return result

    def _seen(self, scene: DeviceScene) -> Tensor | None:
        if self.table is None:
            return None
        red, green, blue = scene.quarter.to(torch.int32)
        packed = ((red >> 3) << 11) + ((green >> 2) << 5) + (blue >> 3)
        return self.table[packed]

    def _meant(self, scene: DeviceScene) -> Tensor:
        trail = scene.embedding_trail
        if self.meaning is None or trail is None:
            return scene.nothing()
        height, width = self.meaning.shape
        confidence = F.interpolate(trail.confidence[None, None], (height, width), mode="area")[0, 0]
        carried = warp(self.meaning, trail.flow(), outside=0.0)
        return scene.enlarged(carried * (confidence / max(scene.trust, 1e-6)).clamp(max=1))

    def _moved(self, scene: DeviceScene) -> Tensor | None:
        if self.moving is None:
            return None
        motion = scene.enlarged(scene.eighth_motion)
        rise = ((motion - MOVING[0]) / (MOVING[1] - MOVING[0])).clamp(0, 1)
        smooth = rise * rise * (3 - 2 * rise)
        return smooth if self.moving else 1 - smooth

    def _read(self, scene: DeviceScene) -> Tensor | None:
        if self.words is None:
            return None
        if not self.words or scene.text_trail is None:
            return scene.nothing()
        flow = scene.text_trail.flow()
        return torch.stack([warp(mask, flow, outside=0.0) for mask in self.words]).amax(0)


class TextScorer:
    """A text through the lexicon, or through a model that knows the words.

    Relevance that rests on colour and light alone is carried from keyframes where that can be trusted.
    """

    def __init__(self, query: TextQuery, by_model: bool) -> None:
        self._query = query
        self._by_model = by_model
        self._carryable = not by_model and all(isinstance(term, ColourTerm | LightTerm) for term in query.terms)
        self._known: dict[int, Tensor] = {}
        self._masks: tuple[object, tuple[Tensor, ...]] | None = None

    def task(self, now: Now) -> Task:
        terms, (height, width) = self._query.terms, now.memory.reduced_hw(4)
        coloured = any(isinstance(term, ColourTerm | LightTerm) for term in terms) and not self._by_model
        sides = {term.side for term in terms if isinstance(term, MotionTerm)}
        held = now.memory.origin("embedding")
        return TextTask(
            table=_table(self._query, now.device) if coloured else None,
            place=_place(self._query, (height, width), now.device),
            words=self._words(now) if self._query.words else None,
            # What moves or stands still is everything.
            moving="moving" in sides if len(sides) == 1 else None,
            meaning=now.meanings.get(self._query.phrase) if self._by_model else None,
            base=self._base(now),
            by_model=self._by_model,
            carryable=self._carryable,
            embedded_before=held is not None and held != now.frame.index,
        )

    def take(self, keep: Any, now: Now) -> None:
        anchors = now.memory.anchors
        self._known = {index: found for index, found in self._known.items() if index in anchors}
        if self._carryable and now.frame.index in anchors:
            self._known[now.frame.index] = keep

    def _base(self, now: Now) -> Tensor | None:
        """What this query found on the keyframe in use, if that was an earlier frame."""
        in_use = now.memory.keyframe_index
        return self._known.get(in_use) if in_use is not None and in_use != now.frame.index else None

    def _words(self, now: Now) -> tuple[Tensor, ...]:
        """Masks of the words on the frame that was read; made on the host, once a keyframe."""
        text = now.memory.text
        if text is None:
            return ()
        if self._masks is None or self._masks[0] is not text:
            hw = now.memory.reduced_hw(4)
            masks = tuple(now.uploaded(word_mask(text.regions, word, hw)) for word in self._query.words)
            self._masks = (text, masks)
        return self._masks[1]


@lru_cache(maxsize=32)
def _table(query: TextQuery, device: torch.device) -> Tensor:
    return torch.from_numpy(compile_colours(query.terms).membership.copy()).to(device)


@lru_cache(maxsize=32)
def _place(query: TextQuery, hw: tuple[int, int], device: torch.device) -> Tensor | None:
    """What the query's words of place alone say of every place."""
    places = tuple(term for term in query.terms if isinstance(term, PlaceTerm))
    if not places:
        return None
    found = text_relevance(TextQuery(query.text, places, ()), Senses(np.zeros((*hw, 3), np.uint8)))
    return torch.from_numpy(found.copy()).to(device)


@dataclass(frozen=True, slots=True, eq=False)
class RegionTask:
    """A region on one frame.

    Args:
        region: As it was on the frame before, or, where it was drawn on this frame, is now; None before its time.
        drawn: It was learned on this very frame.
    """

    region: Region | None
    drawn: bool

    def answer(self, scene: DeviceScene) -> Answered:
        came = torch.zeros((), device=scene.quarter.device)
        if self.region is None:
            return Answered(scene.nothing(), came)
        if self.drawn:
            return Answered(region_relevance(self.region), came, self.region)
        if scene.flow is None:
            region = sought(self.region, scene.quarter)
            return Answered(region_relevance(region), came, region)
        region = followed(self.region, scene.quarter, scene.flow)
        return Answered(region_relevance(region), came + 1, region)


class DeviceRegionScorer:
    """A box on one frame, followed through the stream; learned on the host, on the frame that it was drawn on."""

    def __init__(self, query: RegionQuery, *, anchored: bool) -> None:
        self._query = query
        self._anchoring = DEFAULT if anchored else UNANCHORED
        self._region: Region | None = None

    def task(self, now: Now) -> Task:
        if self._region is not None:
            return RegionTask(self._region, drawn=False)
        if now.frame.pts_seconds + 1e-6 < self._query.at_seconds:
            return RegionTask(None, drawn=False)
        tracker = RegionTracker(self._anchoring)
        tracker.start(now.quarter(), _box_mask(self._query, now.frame.size_wh, now.memory.reduced_hw(4)), exact=False)
        return RegionTask(Region.learned(tracker, self._anchoring, now.device), drawn=True)

    def take(self, keep: Any, now: Now) -> None:
        self._region = keep


def _box_mask(query: RegionQuery, size_wh: tuple[int, int], hw: tuple[int, int]) -> FloatArray:
    x, y, w, h = query.checked(size_wh).xywh
    down, across = overlap(hw[0], size_wh[1], y, y + h), overlap(hw[1], size_wh[0], x, x + w)
    return np.outer(down, across).astype(np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class ExampleTask:
    """An example picture, found by its colours.

    Args:
        table: `[32768]` how likely each colour is the example's.
    """

    table: Tensor

    def answer(self, scene: DeviceScene) -> Answered:
        red, green, blue = scene.quarter.to(torch.int32) >> 3
        return Answered(self.table[(red << 10) + (green << 5) + blue], torch.zeros((), device=scene.quarter.device))


class ExampleScorer:
    """An example picture; the scene's own colours are learned on the host, wherever generation was asked for."""

    def __init__(self, query: ExampleQuery) -> None:
        self._query = query
        self._table: Tensor | None = None

    def task(self, now: Now) -> Task:
        if self._table is None or now.frame.index in now.memory.anchors:
            model = ColourModel.from_example(self._query.rgb, now.quarter())
            self._table = now.uploaded(model.posterior(_every_colour()).ravel())
        return ExampleTask(self._table)

    def take(self, keep: Any, now: Now) -> None: ...


@lru_cache(maxsize=1)
def _every_colour() -> Any:
    """`[32768, 1, 3]` uint8: one of each colour that a `ColourModel` tells apart, in its order."""
    levels = np.arange(1 << 15)
    return (np.stack([levels >> 10, (levels >> 5) & 31, levels & 31], axis=1) << 3).astype(np.uint8)[:, None]


class Scorer(Protocol):
    """Prepares a query for each frame, and takes back what it wants to know on the next."""

    def task(self, now: Now) -> Task: ...

    def take(self, keep: Any, now: Now) -> None: ...


def make_scorer(query: Query, by_model: bool, *, anchored: bool) -> Scorer:
    """What answers a query."""
    match query:
        case TextQuery():
            return TextScorer(query, by_model)
        case RegionQuery():
            return DeviceRegionScorer(query, anchored=anchored)
        case ExampleQuery():
            return ExampleScorer(query)


@dataclass(frozen=True, slots=True, eq=False)
class DeviceAsked:
    """All queries' answers on one frame, a value a cell.

    Args:
        relevance: `[Q, gh, gw]` mean relevance of each cell to each query.
        combined: `[gh, gw]` the highest of them; zeros without a query.
        query: `[gh, gw]` int64, which query that was, -1 where none has any.
        carried: `[gh, gw]` bool, the winning query's relevance came along the flow.
        keep: For each scorer.
    """

    relevance: Tensor
    combined: Tensor
    query: Tensor
    carried: Tensor
    keep: tuple[Any, ...] = ()


def ask_all(tasks: tuple[Task, ...], scene: DeviceScene) -> DeviceAsked:
    """Every task's answer, and all as one."""
    rows, columns = scene.hw[0] // _CELL, scene.hw[1] // _CELL
    if not tasks:
        zeros = scene.quarter.new_zeros((rows, columns))
        return DeviceAsked(zeros[None][:0], zeros, zeros.long() - 1, zeros > 0)
    answers = [task.answer(scene) for task in tasks]
    relevance = F.avg_pool2d(torch.stack([answer.relevance for answer in answers]), _CELL)
    carried = F.avg_pool2d(torch.stack([answer.carried.expand(scene.hw) for answer in answers]), _CELL)
    combined, best = relevance.max(dim=0)
    query = torch.where(combined > 0, best, -1)
    winner = carried.gather(0, query.clamp(min=0)[None])[0]
    keep = tuple(answer.keep for answer in answers)
    return DeviceAsked(relevance, combined, query, (winner > 0.5) & (query >= 0), keep)


@dataclass(frozen=True, slots=True, eq=False)
class _AtWork:
    query: Query
    by_model: bool
    scorer: Scorer


class DeviceAsking:
    """Several queries at once; see `relevance.query_scorers.Asking`.

    Args:
        queries: What is asked; may be empty.
        phrases: Those of the queries that a model is asked about.
        before: What was asked until now; a query that is asked still goes on.
        anchored: Keep regions on what they look like.
    """

    def __init__(
        self,
        queries: Sequence[Query],
        phrases: Collection[str] = (),
        before: DeviceAsking | None = None,
        *,
        anchored: bool = True,
    ) -> None:
        left = list(before.at_work) if before is not None else []
        self.at_work: list[_AtWork] = []
        for query in queries:
            by_model = isinstance(query, TextQuery) and query.phrase in phrases
            kept = next((each for each in left if each.query == query and each.by_model == by_model), None)
            if kept is not None:
                left.remove(kept)
            self.at_work.append(kept or _AtWork(query, by_model, make_scorer(query, by_model, anchored=anchored)))

    def tasks(self, now: Now) -> tuple[Task, ...]:
        """What is to be answered on this frame."""
        return tuple(each.scorer.task(now) for each in self.at_work)

    def take(self, keep: Sequence[Any], now: Now) -> None:
        """Give each scorer what it wanted back."""
        for each, own in zip(self.at_work, keep, strict=True):
            each.scorer.take(own, now)
