"""Queries by a box around an object, which is tracked and re-identified, and by an example picture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np

from arr_stream.motion.appearance import ColourModel
from arr_stream.motion.redetection import Redetector
from arr_stream.motion.region import LEAST_MASS_PX, Region
from arr_stream.relevance.kinds.base import (
    QueryAnswer,
    QueryContext,
    QueryInput,
    QueryScorer,
    QueryTask,
)
from arr_stream.relevance.query import ExampleQuery, RegionQuery
from arr_stream.texture.arrays import Array, take
from arr_stream.texture.pixels import packed_colours
from arr_stream.types import FloatArray

_LOOK_EVERY = 3
"""Frames between two checks that a region still shows its object."""

Box = tuple[float, float, float, float]
"""Left, top, right and bottom as shares of the frame."""


@dataclass(frozen=True, slots=True, eq=False)
class RegionTask:
    """A region on one frame.

    Args:
        region: State on the previous frame, or on this one if it was drawn on this one; None before its time.
        drawn: It was learned on this frame.
        confidence: `[1, 1]`, confidence in its tracked place.
    """

    region: Region | None
    drawn: bool
    confidence: Array | float = 1.0

    def answer(self, context: QueryContext) -> QueryAnswer:
        if self.region is None:
            return QueryAnswer(context.nothing(), False)
        region = self.region if self.drawn else self.region.follow(context.quarter, context.flow)
        relevance = region.relevance() * self.confidence
        return QueryAnswer(relevance, not self.drawn and context.flow is not None, region)


class RegionScorer(QueryScorer):
    """Scorer of a box, tracked through the stream and re-identified after a loss.

    Args:
        query: The region; the relevance is 0 before its time.
    """

    def __init__(self, query: RegionQuery) -> None:
        self._query = query
        self._learned: Region | None = None
        self._region: Region | None = None
        self._redetector: Redetector | None = None
        self._confidence: Array | float = 1.0
        self._steps = 0
        self._lost = False
        self._box: Box | None = None

    @property
    def box(self) -> Box | None:
        """Box of the region, updated on every third frame; None if it is out of sight."""
        return None if self._lost else self._box

    def prepare(self, inputs: QueryInput) -> QueryTask:
        if self._region is not None:
            return RegionTask(self._region, False, self._confidence)
        if inputs.frame.pts_seconds + 1e-6 < self._query.at_seconds:
            return RegionTask(None, drawn=False)
        mask = self._mask(inputs.frame.size_wh, inputs.keyframes.reduced_hw(4))
        self._learned = Region.learned(inputs.quarter, mask, exact=False)
        if self._learned.area_px >= LEAST_MASS_PX:
            self._redetector = Redetector(inputs.quarter, self._learned.posterior)
        self._box = _box_around(self._learned.posterior)
        return RegionTask(self._learned.on(inputs.put), drawn=True)

    def host_view(self, state: Any) -> Array | None:
        due = (self._steps + 1) % _LOOK_EVERY == 0
        return state.posterior if due and state is not None else None

    def finish(self, state: Any, host_view: FloatArray | None, inputs: QueryInput) -> str | None:
        self._region = state
        if state is None:
            return None
        self._steps += 1
        if host_view is None:
            return None
        self._box = _box_around(host_view)
        if self._redetector is None or self._learned is None:
            return None
        finding = self._redetector.search(inputs.quarter, host_view)
        self._confidence = inputs.put(np.full((1, 1), finding.confidence, np.float32))
        found = None if finding.mask is None else self._learned.resumed(inputs.quarter, finding.mask)
        if found is not None:
            self._region, self._box = found.on(inputs.put), _box_around(found.posterior)
        if self._redetector.lost == self._lost:
            return None
        self._lost, at = self._redetector.lost, f"{inputs.frame.pts_seconds:.1f} s"
        if self._lost:
            return f"{self._query.label}: lost at {at}; until it is found, cells are chosen without it"
        return f"{self._query.label}: found again at {at}"

    def _mask(self, size_wh: tuple[int, int], hw: tuple[int, int]) -> FloatArray:
        """`[h, w]` in [0, 1] at a quarter of the texture's size.

        Raises:
            RegionOutsideFrame: It does not fit the frame.
        """
        x, y, w, h = self._query.checked(size_wh).xywh
        width, height = size_wh
        mask: FloatArray = np.outer(overlap(hw[0], height, y, y + h), overlap(hw[1], width, x, x + w))
        return mask.astype(np.float32)


def _box_around(posterior: FloatArray) -> Box | None:
    """Return the box around all pixels that are more likely region than background; None if there are none."""
    x, y, width, height = cv2.boundingRect(cv2.inRange(posterior, 0.5, 2.0))
    rows, columns = posterior.shape
    return (x / columns, y / rows, (x + width) / columns, (y + height) / rows) if width else None


def overlap(samples: int, size: int, start: float, end: float) -> FloatArray:
    """Return `[samples]`: the share of each of `samples` equal parts of `size` pixels that is in `[start, end]`."""
    edges = np.linspace(0, size, samples + 1)
    inside = np.clip(np.minimum(edges[1:], end) - np.maximum(edges[:-1], start), 0, None)
    share: FloatArray = (inside / (size / samples)).astype(np.float32)
    return share


@dataclass(frozen=True, slots=True, eq=False)
class ExampleTask:
    """An example picture, found by its colours.

    Args:
        table: `[32768]` how likely each colour is the example's.
    """

    table: Array

    def answer(self, context: QueryContext) -> QueryAnswer:
        return QueryAnswer(take(self.table, packed_colours(context.quarter, 5)), False)


class ExampleScorer(QueryScorer):
    """Scorer of an example picture by its colours: likely under the example, unlikely under the scene.

    The scene's own colours are learned on the first frame and again on every frame that becomes a keyframe.
    """

    def __init__(self, query: ExampleQuery) -> None:
        self._query = query
        self._colours: ColourModel | None = None
        self._table: Array | None = None

    def prepare(self, inputs: QueryInput) -> QueryTask:
        if self._colours is None:
            self._colours = ColourModel()
            self._colours.learn(self._query.rgb, 1.0, 0.0)
        elif inputs.frame.index not in inputs.keyframes.flows:
            return ExampleTask(self._table)
        self._colours.learn(inputs.quarter, 0.0, 1.0)
        self._table = inputs.put(self._colours.table)
        return ExampleTask(self._table)
