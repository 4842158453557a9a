"""Queries at work: each keeps what it needs from frame to frame and gives one relevance map a frame."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import cv2
import numpy as np
import numpy.typing as npt

from arr_stream.motion.anchor import DEFAULT, UNANCHORED, ColourModel, RegionTracker
from arr_stream.motion.carry import carry
from arr_stream.motion.flow import Flow
from arr_stream.motion.memory import TemporalCache
from arr_stream.relevance.lexicon import ColourTerm, LightTerm
from arr_stream.relevance.membership import Senses, combine, text_relevance
from arr_stream.relevance.query import ExampleQuery, Query, RegionQuery, TextQuery
from arr_stream.relevance.words import word_mask
from arr_stream.texture.pictures import Pictures
from arr_stream.types import FloatArray

Mask = npt.NDArray[np.bool_]

LEAST_MEANING = 0.02
"""What a model scores below this is chance: its scores never quite reach 0."""


@dataclass(slots=False, eq=False)
class Scene:
    """What a query may look at on one frame; relevance maps are at a quarter of the texture's size.

    Args:
        pictures: The frame and its reductions.
        pts_seconds: Its time.
        flow: To the frame before; None on the first frame and after a cut.
        eighth_motion: `[h/2, w/2]` in [0, 1], the motion channel at an eighth of the texture's size.
        cache: What is carried from keyframes.
        trust: Confidence from which carried relevance is believed.
        meanings: For each phrase that a model was asked about, `[h', w']` in [0, 1], how well places fit it on the
            frame of the embedding in use; empty before the first embedding.
    """

    pictures: Pictures
    pts_seconds: float
    flow: Flow | None
    eighth_motion: FloatArray
    cache: TemporalCache
    trust: float
    meanings: Mapping[str, FloatArray] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, int]:
        """`(h, w)` of relevance maps."""
        width, height = self.pictures.reduced_wh(4)
        return height, width

    @cached_property
    def motion(self) -> FloatArray:
        """`[h, w]` in [0, 1], the motion channel."""
        resized: FloatArray = cv2.resize(self.eighth_motion, self.shape[::-1], interpolation=cv2.INTER_LINEAR)
        return resized

    @cached_property
    def trusted(self) -> Mask:
        """`[h, w]`: where what the keyframe knew can be carried here."""
        flow = self.cache.keyframe_way
        if flow is None:
            return np.zeros(self.shape, bool)
        confidence = cv2.resize(flow.confidence, self.shape[::-1], interpolation=cv2.INTER_LINEAR)
        trusted: Mask = confidence.reshape(self.shape) >= self.trust
        return trusted

    def word_map(self, word: str) -> FloatArray:
        """`[h, w]` in [0, 1]: where the keyframe read the word, carried to this frame."""
        text = self.cache.text
        if text is None:
            return np.zeros(self.shape, np.float32)
        mask = word_mask(text.value.regions, word, self.shape)
        return carry(mask, text.flow, outside=0.0)

    def meaning(self, phrase: str) -> FloatArray:
        """`[h, w]` in [0, 1]: how well places fit a phrase, carried to this frame; fades where carrying lost track."""
        embedding = self.cache.embedding
        found = self.meanings.get(phrase)
        if embedding is None or found is None:
            return np.zeros(self.shape, np.float32)
        confidence = cv2.resize(embedding.flow.confidence, found.shape[::-1], interpolation=cv2.INTER_AREA)
        carried = carry(found, embedding.flow, outside=0.0)
        carried *= np.minimum(confidence.reshape(found.shape) / max(self.trust, 1e-6), 1.0)
        resized: FloatArray = cv2.resize(carried, self.shape[::-1], interpolation=cv2.INTER_LINEAR)
        return resized


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """One query's relevance on one frame.

    Args:
        relevance: `[h, w]` in [0, 1], a quarter of the texture's size.
        carried: `[h, w]`, which of it came along the flow.
    """

    relevance: FloatArray
    carried: Mask


class QueryScorer(Protocol):
    """Answers one query, frame by frame, in order."""

    def score(self, scene: Scene) -> Answer: ...


class TextScorer:
    """A text through the lexicon.

    Relevance that rests on colour and light alone is computed on keyframes, carried between them, and computed anew
    where the carried value cannot be trusted. Places, motion and recognised words change their meaning under motion,
    so queries with such terms are computed on every frame (the words' own regions are carried).
    """

    def __init__(self, query: TextQuery) -> None:
        self._query = query
        self._carryable = all(isinstance(term, ColourTerm | LightTerm) for term in query.terms)
        self._known: dict[int, FloatArray] = {}

    def score(self, scene: Scene) -> Answer:
        nothing = np.zeros(scene.shape, bool)
        motion = scene.motion if self._query.needs_motion else None
        computed = text_relevance(self._query, Senses(scene.pictures.quarter, motion, scene.word_map))
        if not self._carryable:
            return Answer(computed, nothing)
        base, flow = self._base(scene, computed), scene.cache.keyframe_way
        if base is None or flow is None:
            return Answer(computed, nothing)
        carried = carry(base, flow, outside=0.0)
        return Answer(np.where(scene.trusted, carried, computed), scene.trusted)

    def _base(self, scene: Scene, computed: FloatArray) -> FloatArray | None:
        """What this query found on the keyframe in use, if that was an earlier frame."""
        index, anchors = scene.pictures.frame.index, scene.cache.anchors
        in_use = scene.cache.keyframe_index
        base = self._known.get(in_use) if in_use is not None and in_use != index else None
        self._known = {key: value for key, value in self._known.items() if key in anchors}
        if index in anchors:
            self._known[index] = computed
        return base


class MeaningScorer:
    """A text through a model that knows the words, on keyframes, carried between them.

    Places, motion and quoted words are not the model's business: they narrow what it finds, on every frame.
    """

    def __init__(self, query: TextQuery) -> None:
        self._query = query

    def score(self, scene: Scene) -> Answer:
        motion = scene.motion if self._query.needs_motion else None
        meaning = scene.meaning(self._query.phrase)
        relevance = text_relevance(self._query, Senses(scene.pictures.quarter, motion, scene.word_map, meaning))
        relevance[relevance < LEAST_MEANING] = 0.0
        embedding = scene.cache.embedding
        carried = embedding is not None and embedding.index != scene.pictures.frame.index
        return Answer(relevance, np.full(scene.shape, carried))


class RegionScorer:
    """A box on one frame, followed through the stream.

    Args:
        query: The region; before its time comes the relevance is 0.
        anchored: Keep it on what it looks like, instead of carrying it along the flow alone.
    """

    def __init__(self, query: RegionQuery, *, anchored: bool = True) -> None:
        self._query = query
        self._anchoring = DEFAULT if anchored else UNANCHORED
        self._tracker: RegionTracker | None = None

    def score(self, scene: Scene) -> Answer:
        shape = scene.shape
        if self._tracker is None:
            if scene.pts_seconds + 1e-6 < self._query.at_seconds:
                return Answer(np.zeros(shape, np.float32), np.zeros(shape, bool))
            self._tracker = RegionTracker(self._anchoring)
            found = self._tracker.start(scene.pictures.quarter, self._box_mask(scene, shape), exact=False)
            return Answer(found, np.zeros(shape, bool))
        found = self._tracker.step(scene.pictures.quarter, scene.flow)
        return Answer(found, np.full(shape, scene.flow is not None))

    def _box_mask(self, scene: Scene, shape: tuple[int, ...]) -> FloatArray:
        width, height = scene.pictures.frame.size_wh
        x, y, w, h = self._query.checked((width, height)).xywh
        across = overlap(shape[1], width, x, x + w)
        down = overlap(shape[0], height, y, y + h)
        mask: FloatArray = np.outer(down, across).astype(np.float32)
        return mask


def overlap(samples: int, size: int, start: float, end: float) -> FloatArray:
    """`[samples]`: the share of each of `samples` equal parts of `size` pixels that lies in `[start, end]`."""
    edges = np.linspace(0, size, samples + 1)
    inside = np.clip(np.minimum(edges[1:], end) - np.maximum(edges[:-1], start), 0, None)
    share: FloatArray = (inside / (size / samples)).astype(np.float32)
    return share


class ExampleScorer:
    """An example picture, found by its colours: likely under the example, unlikely under the scene.

    The scene's own colours are learned on the first frame and again on every frame that generation was asked for.
    """

    def __init__(self, query: ExampleQuery) -> None:
        self._query = query
        self._model: ColourModel | None = None

    def score(self, scene: Scene) -> Answer:
        picture = scene.pictures.quarter
        if self._model is None or scene.pictures.frame.index in scene.cache.anchors:
            self._model = ColourModel.from_example(self._query.rgb, picture)
        return Answer(self._model.posterior(picture), np.zeros(scene.shape, bool))


def make_scorer(query: Query, phrases: Collection[str], *, anchored: bool = True) -> QueryScorer:
    """What answers a query; `phrases` are those that a model is asked about."""
    match query:
        case TextQuery():
            return MeaningScorer(query) if _asks_model(query, phrases) else TextScorer(query)
        case RegionQuery():
            return RegionScorer(query, anchored=anchored)
        case ExampleQuery():
            return ExampleScorer(query)


def _asks_model(query: Query, phrases: Collection[str]) -> bool:
    return isinstance(query, TextQuery) and query.phrase in phrases


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """All queries' answers on one frame.

    Args:
        relevance: `[Q, gh, gw]` mean relevance of each cell to each query.
        combined: `[gh, gw]` the highest of them; zeros without a query.
        query: `[gh, gw]` int32, which query that was, -1 where none has any.
        carried: `[gh, gw]`, the winning query's relevance came along the flow.
    """

    relevance: FloatArray
    combined: FloatArray
    query: npt.NDArray[np.int32]
    carried: Mask


@dataclass(frozen=True, slots=True, eq=False)
class _AtWork:
    """A query with what answers it.

    Args:
        query: The query.
        by_model: A model is asked about it.
        scorer: Answers it.
    """

    query: Query
    by_model: bool
    scorer: QueryScorer


class Asking:
    """Several queries at once: their own scores, and one combined.

    Args:
        queries: What is asked; may be empty.
        cells_hw: Rows and columns of the grid.
        phrases: Those of the queries that a model is asked about.
        before: What was asked until now; a query that is asked still goes on, and a region is followed from where it
            is by now.
        anchored: Keep regions on what they look like.
    """

    def __init__(
        self,
        queries: Sequence[Query],
        cells_hw: tuple[int, int],
        phrases: Collection[str] = (),
        before: Asking | None = None,
        *,
        anchored: bool = True,
    ) -> None:
        left: list[_AtWork] = list(before.at_work) if before is not None else []
        self.at_work: list[_AtWork] = []
        for query in queries:
            by_model = _asks_model(query, phrases)
            kept = next((each for each in left if each.query == query and each.by_model == by_model), None)
            if kept is not None:
                left.remove(kept)
            self.at_work.append(kept or _AtWork(query, by_model, make_scorer(query, phrases, anchored=anchored)))
        self._cells_hw = cells_hw

    def ask(self, scene: Scene) -> Asked:
        rows, columns = self._cells_hw
        if not self.at_work:
            zeros = np.zeros((rows, columns), np.float32)
            none = np.full((rows, columns), -1, np.int32)
            return Asked(np.zeros((0, rows, columns), np.float32), zeros, none, np.zeros((rows, columns), bool))
        answers = [each.scorer.score(scene) for each in self.at_work]
        relevance = np.stack([_cell_means(answer.relevance, (columns, rows)) for answer in answers])
        combined, best = combine(relevance)
        query = np.where(combined > 0, best, -1).astype(np.int32)
        carried = np.stack([_cell_means(answer.carried.astype(np.float32), (columns, rows)) for answer in answers])
        winner = np.take_along_axis(carried, np.maximum(query, 0)[None], axis=0)[0]
        return Asked(relevance, combined, query, (winner > 0.5) & (query >= 0))


def _cell_means(values: FloatArray, columns_rows: tuple[int, int]) -> FloatArray:
    means: FloatArray = cv2.resize(values, columns_rows, interpolation=cv2.INTER_AREA)
    return means.reshape(columns_rows[1], columns_rows[0])
