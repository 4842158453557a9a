"""Scorers of queries: each keeps its state from frame to frame and gives one relevance map per frame.

A scorer prepares a task on the host: arrays and constants. All tasks run on the frame's device, in one step that reads
nothing but its arguments, so that a device can capture it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from typing import Any, Protocol

import cv2
import numpy as np
import numpy.typing as npt

from arr_stream.motion.anchor import DEFAULT, UNANCHORED, ColourModel, RegionTracker
from arr_stream.motion.carry import carry
from arr_stream.motion.flow import Flow
from arr_stream.motion.keyframe_results import KeyframeResults
from arr_stream.motion.redetection import Redetector
from arr_stream.relevance.detected import object_maps
from arr_stream.relevance.meaning import still_meant
from arr_stream.relevance.membership import Senses, text_relevance
from arr_stream.relevance.query import ExampleQuery, MaskQuery, Query, RegionQuery, TextQuery
from arr_stream.relevance.scorers import Change
from arr_stream.relevance.words import word_mask
from arr_stream.texture.arrays import Array, namespace, take, zeros
from arr_stream.texture.pictures import Pictures
from arr_stream.texture.pixels import averaged, packed_colours, picture_hw, resized
from arr_stream.types import FloatArray, Frame, Grid

LEAST_MEANING = 0.02
"""Score of a model up to which a match counts as chance: its scores never quite reach 0."""


_LOOK_EVERY = 3
"""Frames from one look at whether a region still shows its object to the next."""

_AROUND_WORDS = np.ones((9, 9), np.uint8)
_AROUND_SHARE = 0.5
"""Weight of the margin around words: cells that hold only the end of a word rank last."""
_WITHIN_SAMPLES = 5
"""Words count as means over so many samples each way: cells that are full of one come first."""


Box = tuple[float, float, float, float]
"""Left, top, right and bottom as shares of the frame."""


class Region(Protocol):
    """A region on its way through the stream, at a quarter of the texture's size."""

    @property
    def posterior(self) -> Array:
        """`[h, w]` in [0, 1]: where it is."""
        ...

    def follow(self, rgb: Array, flow: Flow | None) -> Region:
        """The region on the next picture; see `RegionTracker.step`."""
        ...

    def relevance(self) -> Array:
        """`[h, w]` in [0, 1]."""
        ...


def _as_it_is(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True, eq=False)
class QueryInput:
    """One frame as scorers see it on the host.

    Args:
        frame: The frame; its pictures are made on the host only if a scorer learns from them.
        grid: Its cells.
        keyframes: Results of the stream's keyframes.
        meanings: For each phrase that a model scores, `[h', w']` in [0, 1], its fit to the places on the frame of the
            embedding in use; empty before the first embedding.
        put: Moves an array to the loop's device.
        put_region: The same for a region that was just learned.
        picture: Returns the host's picture at a quarter of the texture's size, if it was already made.
    """

    frame: Frame
    grid: Grid
    keyframes: KeyframeResults
    meanings: Mapping[str, Array] = field(default_factory=dict)
    put: Callable[[npt.NDArray[Any]], Array] = _as_it_is
    put_region: Callable[[RegionTracker], Region] = _as_it_is
    picture: Array | None = None

    @property
    def quarter(self) -> Any:
        """`[h, w, 3]` uint8, on the host."""
        if isinstance(self.picture, np.ndarray):
            return self.picture
        return Pictures(self.frame, self.grid).quarter


@dataclass(frozen=True, eq=False)
class QueryContext:
    """Inputs of a task on one frame; relevance maps are at a quarter of the texture's size.

    Args:
        quarter: The picture at that size.
        eighth_motion: `[h/2, w/2]` in [0, 1], the motion channel.
        figure: `[gh, gw]` in [0, 1], how surely each cell belongs to what moves.
        flow: To the frame before; None on the first frame and after a cut.
        text_way, embedding_way, object_way: Flow back to the keyframes of text, embedding and objects, or None.
        trust: Confidence of the flow from which a model's results count fully.
    """

    quarter: Array
    eighth_motion: Array
    figure: Array
    flow: Flow | None
    text_way: Flow | None
    embedding_way: Flow | None
    object_way: Flow | None
    trust: float

    @property
    def hw(self) -> tuple[int, int]:
        """`(h, w)` of relevance maps."""
        hw: tuple[int, int] = picture_hw(self.quarter)
        return hw

    def nothing(self) -> Array:
        return zeros(self.quarter, self.hw)

    @cached_property
    def motion(self) -> Array:
        """`[h, w]` in [0, 1], the motion channel."""
        return resized(self.eighth_motion, self.hw)


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """Relevance of one frame to one query.

    Args:
        relevance: `[h, w]` in [0, 1], a quarter of the texture's size.
        carried: The relevance was carried along the flow.
        keep: State that the scorer keeps for the next frame.
        half_understood: The query is understood only as a property, such as a colour: the word for the thing is
            unknown.
        of_words: The query is for words, whose places are known, so that saliency does not matter.
        detected: The query is for objects that a detector finds, which misses some.
        other: `[h/2, w/2]` in [0, 1], how surely each place is an object that the query does not name; None: unknown.
        moves: The query is for a kind of object that moves.
    """

    relevance: Array
    carried: bool
    keep: Any = None
    half_understood: bool = False
    of_words: bool = False
    detected: bool = False
    other: Array | None = None
    moves: bool = False


_STILL_DOUBT = 0.5
"""Share of its relevance that a still place loses where something surely moves."""


_HALF_UNDERSTOOD = 0.3
"""Weight in the choice of a query of which only a property is understood: much else has it."""
_DETECTED = 0.8
"""Weight of a detected object in the choice."""
_STILL_OBJECT = 0.4
"""Share of that weight that an object loses if it stands still while something else moves."""
_BEFORE_BACKGROUND = 0.8
"""The same share before a known background."""
_MAY_BE_FOUND = 0.4
"""Weight of moving things that were not detected, if a query is for objects that move."""


class QueryTask(Protocol):
    """A query on one frame: a dataclass of arrays and constants."""

    def answer(self, context: QueryContext) -> Answer: ...


class QueryScorer(Protocol):
    """Scorer of one query: prepares a task for each frame, in order, and keeps its state for the next."""

    def task(self, given: QueryInput) -> QueryTask: ...

    def watched(self, keep: Any) -> Array | None:
        """Return the part of the state that the host must read on this frame; a device transfers it with its other
        results."""

    def take(self, keep: Any, watched: FloatArray | None, given: QueryInput) -> str | None:
        """Keep the task's state for the next frame; return a notice if the user should know something."""


@dataclass(frozen=True, slots=True, eq=False)
class TextTask:
    """Task of a text query on one frame.

    Args:
        query: The text.
        words: For each word to read, `[h, w]`, how well each place of the keyframe matches it; None before the first
            text.
        by_model: A model scores the query, in place of the lexicon's colours.
        meaning: `[h', w']`, the model's scores on the frame of the embedding in use; None before the first.
        embedded_before: That frame was an earlier one.
        objects: `[2, h/2, w/2]`, how surely each place of the keyframe is an object that the query names, and another;
            None before the first detection.
    """

    query: TextQuery
    words: tuple[Array, ...] | None = None
    by_model: bool = False
    meaning: Array | None = None
    embedded_before: bool = False
    objects: Array | None = None

    def answer(self, context: QueryContext) -> Answer:
        motion = context.motion if self.query.needs_motion else None
        meaning = self._meant(context) if self.by_model else None
        objects = self._detected(context) if self.query.objects and not self.by_model else None
        named = None if objects is None else resized(objects[0], context.hw)
        word_maps = dict(zip(self.query.words, self._read(context), strict=True))
        senses = Senses(context.quarter, motion, word_maps.__getitem__, meaning, named)
        computed = text_relevance(self.query, senses)
        if objects is not None:
            moves = any(term.moves for term in self.query.objects)
            words = bool(self.query.words)
            return Answer(computed, True, of_words=words, detected=True, other=objects[1], moves=moves)
        if not self.by_model:
            half = self.query.names_the_unknown
            if half:
                computed = computed * _as_it_moves(context)
            return Answer(computed, False, half_understood=half, of_words=bool(self.query.words))
        chance = computed < LEAST_MEANING
        meant = namespace(computed).where(chance, 0.0, computed)
        return Answer(meant, self.embedded_before, of_words=bool(self.query.words))

    def _read(self, context: QueryContext) -> list[Array]:
        """Return the match of each place with each word, carried to this frame."""
        if self.words is None or context.text_way is None:
            return [context.nothing() for _ in self.query.words]
        return [carry(mask, context.text_way, outside=0.0) for mask in self.words]

    def _detected(self, context: QueryContext) -> Array:
        """Return how surely each place is an object that the query names, and another, carried to this frame."""
        if self.objects is None or context.object_way is None:
            return zeros(context.eighth_motion, (2, *context.eighth_motion.shape))
        return carry(self.objects, context.object_way, outside=0.0)

    def _meant(self, context: QueryContext) -> Array:
        """Return the fit of each place to the phrase, carried to this frame."""
        way, found = context.embedding_way, self.meaning
        if way is None or found is None:
            return context.nothing()
        return resized(still_meant(found, way, context.trust), context.hw)


def _as_it_moves(context: QueryContext) -> Array:
    """Return, as `[h, w]` in [0, 1], the share of its relevance that each place keeps if the lexicon does not know the
    thing.

    Most queries are for things: where anything moves, a still place of the same colour is less likely to be the thing.
    """
    figure = resized(context.figure, context.hw)
    return 1 - _STILL_DOUBT * context.figure.max() * (1 - figure)


class TextScorer:
    """Scorer of a text query through the lexicon, or through a model that knows the words.

    Relevance by the lexicon is computed on every frame, which costs less than carrying it; regions of words are
    carried. Relevance by a model is computed on keyframes and carried between them; places, motion and quoted words
    narrow it on every frame.

    Args:
        query: The text.
        by_model: A model scores the query.
    """

    def __init__(self, query: TextQuery, by_model: bool = False) -> None:
        self._query, self._by_model = query, by_model
        self._masks: tuple[object, tuple[Array, ...]] | None = None
        self._objects: tuple[object, Array] | None = None

    def task(self, given: QueryInput) -> QueryTask:
        embedded = given.keyframes.origin("embedding")
        return TextTask(
            query=self._query,
            words=self._words(given) if self._query.words else None,
            by_model=self._by_model,
            meaning=given.meanings.get(self._query.phrase) if self._by_model else None,
            embedded_before=embedded is not None and embedded != given.frame.index,
            objects=self._detected(given) if self._query.objects and not self._by_model else None,
        )

    def watched(self, keep: Any) -> None: ...

    def take(self, keep: Any, watched: FloatArray | None, given: QueryInput) -> None: ...

    def _detected(self, given: QueryInput) -> Array | None:
        """Return how surely each place is an object that the query names, on the keyframe of the objects; computed once
        a keyframe."""
        finding = given.keyframes.objects
        if finding is None:
            return None
        if self._objects is None or self._objects[0] is not finding:
            self._objects = finding, given.put(object_maps(self._query, finding.objects, given.keyframes.reduced_hw(8)))
        return self._objects[1]

    def _words(self, given: QueryInput) -> tuple[Array, ...] | None:
        """Return the match of each place with each word on the keyframe of the text; computed once a keyframe."""
        text = given.keyframes.text
        if text is None:
            return None
        if self._masks is None or self._masks[0] is not text:
            hw = given.keyframes.reduced_hw(4)
            masks = (word_mask(text.regions, word, hw) if word else text.mask for word in self._query.words)
            self._masks = (text, tuple(given.put(_asked_for(mask)) for mask in masks))
        return self._masks[1]


def _asked_for(mask: FloatArray) -> FloatArray:
    """`[h, w]` in [0, 1]: how much each place is wanted for words on a mask `[h, w]` at a quarter of the texture's
    size."""
    around = cv2.dilate(mask, _AROUND_WORDS) * np.float32(_AROUND_SHARE)
    wanted: FloatArray = np.maximum(cv2.blur(mask, (_WITHIN_SAMPLES, _WITHIN_SAMPLES)), around)
    return wanted


@dataclass(frozen=True, slots=True, eq=False)
class RegionTask:
    """A region on one frame.

    Args:
        region: As it was on the frame before, or, where it was drawn on this frame, is now; None before its time.
        drawn: It was learned on this very frame.
        confidence: `[1, 1]`, how surely it is where it is followed.
    """

    region: Region | None
    drawn: bool
    confidence: Array | float = 1.0

    def answer(self, context: QueryContext) -> Answer:
        if self.region is None:
            return Answer(context.nothing(), False)
        region = self.region if self.drawn else self.region.follow(context.quarter, context.flow)
        relevance = region.relevance() * self.confidence
        return Answer(relevance, not self.drawn and context.flow is not None, region)


class RegionScorer:
    """Scorer of a box, or of an object's mask, followed through the stream and found again after it was lost.

    Args:
        query: The region or mask; before its time the relevance is 0.
        anchored: Correct the region by its appearance, instead of only carrying it along the flow.
    """

    def __init__(self, query: RegionQuery | MaskQuery, *, anchored: bool = True) -> None:
        self._query = query
        self._tracker = RegionTracker(DEFAULT if anchored else UNANCHORED)
        self._anchored = anchored
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

    def task(self, given: QueryInput) -> QueryTask:
        if self._region is not None:
            return RegionTask(self._region, False, self._confidence)
        if given.frame.pts_seconds + 1e-6 < self._query.at_seconds:
            return RegionTask(None, drawn=False)
        mask = self._mask(given.frame.size_wh, given.keyframes.reduced_hw(4))
        self._tracker.start(given.quarter, mask, exact=isinstance(self._query, MaskQuery))
        if self._anchored and self._tracker.confidence:
            self._redetector = Redetector(given.quarter, self._tracker.posterior)
        self._box = _box_around(self._tracker.posterior)
        return RegionTask(given.put_region(self._tracker), drawn=True)

    def watched(self, keep: Any) -> Array | None:
        due = (self._steps + 1) % _LOOK_EVERY == 0
        return keep.posterior if due and keep is not None else None

    def take(self, keep: Any, watched: FloatArray | None, given: QueryInput) -> str | None:
        self._region = keep
        if keep is None:
            return None
        self._steps += 1
        if watched is None:
            return None
        self._box = _box_around(watched)
        if self._redetector is None:
            return None
        finding = self._redetector.look(given.quarter, watched)
        self._confidence = given.put(np.full((1, 1), finding.confidence, np.float32))
        if finding.mask is not None and self._tracker.resume(given.quarter, finding.mask):
            self._region = given.put_region(self._tracker)
            self._box = _box_around(self._tracker.posterior)
        if self._redetector.lost == self._lost:
            return None
        self._lost, at = self._redetector.lost, f"{given.frame.pts_seconds:.1f} s"
        if self._lost:
            return f"{self._query.label}: lost at {at}; until it is found, cells are chosen without it"
        return f"{self._query.label}: found again at {at}"

    def _mask(self, size_wh: tuple[int, int], hw: tuple[int, int]) -> FloatArray:
        """`[h, w]` in [0, 1] at a quarter of the texture's size.

        Raises:
            RegionOutsideFrame: It does not fit the frame.
        """
        query, (width, height) = self._query.checked(size_wh), size_wh
        if isinstance(query, MaskQuery):
            share: FloatArray = averaged(query.mask.astype(np.float32), hw)
            return share
        x, y, w, h = query.xywh
        mask: FloatArray = np.outer(overlap(hw[0], height, y, y + h), overlap(hw[1], width, x, x + w))
        return mask.astype(np.float32)


def _box_around(posterior: FloatArray) -> Box | None:
    """Return the box around what is more likely the region than not; None if nothing is."""
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

    def answer(self, context: QueryContext) -> Answer:
        return Answer(take(self.table, packed_colours(context.quarter, 5)), False)


class ExampleScorer:
    """Scorer of an example picture by its colours: likely under the example, unlikely under the scene.

    The scene's own colours are learned on the first frame and again on every frame that becomes a keyframe.
    """

    def __init__(self, query: ExampleQuery) -> None:
        self._query = query
        self._colours: ColourModel | None = None
        self._table: Array | None = None

    def task(self, given: QueryInput) -> QueryTask:
        if self._colours is None:
            self._colours = ColourModel.from_example(self._query.rgb, given.quarter)
        elif given.frame.index in given.keyframes.anchors:
            self._colours.against(given.quarter)
        else:
            return ExampleTask(self._table)
        self._table = given.put(self._colours.table)
        return ExampleTask(self._table)

    def watched(self, keep: Any) -> None: ...

    def take(self, keep: Any, watched: FloatArray | None, given: QueryInput) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class QueryRelevance:
    """Relevance of one frame to all queries.

    Args:
        best: `[Q]` highest relevance of any cell to each query.
        combined: `[gh, gw]` the highest relevance of each cell; zeros without a query.
        query: `[gh, gw]` int, the query of that relevance, -1 where it is 0.
        carried: `[gh, gw]` bool, the winning query's relevance was carried along the flow.
        half_understood: For each query, whether only a property of the thing is understood.
        of_words: For each query, whether it asks for words.
        detected: For each query, whether a detector answers it.
        others: `[gh, gw]` in [0, 1], how surely each cell is an object that no query names, where all are answered by a
            detector; else None.
        moves: A query is for objects of a detector that move.
    """

    best: Array
    combined: Array
    query: Array
    carried: Array
    half_understood: tuple[bool, ...] = ()
    of_words: tuple[bool, ...] = ()
    detected: tuple[bool, ...] = ()
    others: Array | None = None
    moves: bool = False

    def followed(self, figure: Array, change: Change | None = None) -> Array:
        """Return `[gh, gw]` in [0, 1]: how far the selection follows the queries in each cell.

        A detector misses objects and reports false ones, so the selection follows it only in part. Where anything
        moves, moving objects come first; and a moving thing may be an object of a moving kind that the detector missed.

        Args:
            figure: `[gh, gw]` in [0, 1], how surely each cell belongs to what moves.
            change: Evidence of change; before a background that is known it tells an object from its box.
        """
        asked = self.combined
        if any(self.half_understood):
            asked = asked * namespace(asked).where(_won_by(self.query, self.half_understood), _HALF_UNDERSTOOD, 1.0)
        if not any(self.detected):
            return asked
        still_object: Array | float = _STILL_OBJECT
        if change is not None:
            sharp = change.known * change.certainty
            figure = namespace(figure).maximum(figure, change.cells.reshape(figure.shape) * sharp)
            still_object = still_object + (_BEFORE_BACKGROUND - still_object) * sharp
        doubt = 1 - still_object * figure.max() * (1 - figure)
        found = namespace(figure).where(_won_by(self.query, self.detected), _DETECTED * doubt, 1.0) * asked
        if not self.moves:
            return found
        may_be = figure if self.others is None else figure * (1 - self.others)
        return 1 - (1 - found) * (1 - _MAY_BE_FOUND * may_be)

    @property
    def word_cells(self) -> Array | None:
        """`[gh, gw]` bool: the winning query asks for words; None where none does."""
        return _won_by(self.query, self.of_words) if any(self.of_words) else None


def answer_queries(
    tasks: tuple[QueryTask, ...], context: QueryContext, cells_hw: tuple[int, int]
) -> tuple[QueryRelevance, tuple[Any, ...]]:
    """Combine the answers of all tasks into one relevance per cell, and return it with the scorers' state."""
    if not tasks:
        nothing = zeros(context.quarter, cells_hw)
        none = namespace(nothing).zeros_like(nothing, dtype=namespace(nothing).int32) - 1
        return QueryRelevance(nothing.reshape(-1)[:0], nothing, none, nothing > 0), ()
    xp = namespace(context.eighth_motion)
    answers = [task.answer(context) for task in tasks]
    relevance = xp.stack([averaged(answer.relevance, cells_hw) for answer in answers])
    combined = xp.amax(relevance, 0)
    query = xp.where(combined > 0, xp.argmax(relevance, 0), -1)
    carried = _won_by(query, [answer.carried for answer in answers])
    most = xp.amax(relevance.reshape(len(answers), -1), 1)
    keep = tuple(answer.keep for answer in answers)
    kinds = "half_understood", "of_words", "detected"
    half_understood, of_words, detected = (tuple(map(attrgetter(name), answers)) for name in kinds)
    others = [averaged(answer.other, cells_hw) for answer in answers if answer.other is not None]
    # A thing that one query does not name may be named by another.
    common = xp.amin(xp.stack(others), 0) if len(others) == len(answers) else None
    moves = any(answer.moves for answer in answers)
    return QueryRelevance(most, combined, query, carried, half_understood, of_words, detected, common, moves), keep


def _won_by(query: Array, which: Sequence[bool]) -> Array:
    """`[gh, gw]` bool: the cells whose winning query is one of those."""
    won = query < -1  # nowhere yet
    for index, counts in enumerate(which):
        if counts:
            won = won | (query == index)
    return won


@dataclass(frozen=True, slots=True, eq=False)
class _ScoredQuery:
    query: Query
    by_model: bool
    scorer: QueryScorer


class QueryScorers:
    """Scorers of several queries at once.

    Args:
        queries: The queries; may be empty.
        phrases: Phrases of the queries that a model scores.
        labels: Labels that the detector in use can find.
        before: The previous scorers; an unchanged query keeps its state, and a region is followed from its current
            place.
        anchored: Correct regions by their appearance.
    """

    def __init__(
        self,
        queries: Sequence[Query],
        phrases: Collection[str] = (),
        labels: Collection[str] = (),
        before: QueryScorers | None = None,
        *,
        anchored: bool = True,
    ) -> None:
        left = list(before._scored) if before is not None else []
        self._scored: list[_ScoredQuery] = []
        for query in queries:
            by_model = isinstance(query, TextQuery) and query.phrase in phrases
            kept = next((each for each in left if each.query == query and each.by_model == by_model), None)
            if kept is not None:
                left.remove(kept)
            self._scored.append(
                kept or _ScoredQuery(query, by_model, _scorer(query.detected(labels), by_model, anchored))
            )

    def tasks(self, given: QueryInput) -> tuple[QueryTask, ...]:
        """Return the tasks of this frame."""
        return tuple(each.scorer.task(given) for each in self._scored)

    @property
    def region(self) -> Box | None:
        """Present box of the first region or mask; None without one, or if it is out of sight."""
        return next((each.scorer.box for each in self._scored if isinstance(each.scorer, RegionScorer)), None)

    def watched(self, keep: Sequence[Any]) -> tuple[Array | None, ...]:
        """Return the parts of the state that the host must read on this frame."""
        return tuple(each.scorer.watched(own) for each, own in zip(self._scored, keep, strict=True))

    def take(self, keep: Sequence[Any], watched: Sequence[FloatArray | None], given: QueryInput) -> tuple[str, ...]:
        """Pass each scorer its state and the parts read by the host, and return the scorers' notices."""
        notices: list[str] = []
        for each, own, seen in zip(self._scored, keep, watched, strict=True):
            if (notice := each.scorer.take(own, seen, given)) is not None:
                notices.append(notice)
        return tuple(notices)


def _scorer(query: Query, by_model: bool, anchored: bool) -> QueryScorer:
    match query:
        case TextQuery():
            return TextScorer(query, by_model)
        case RegionQuery() | MaskQuery():
            return RegionScorer(query, anchored=anchored)
        case ExampleQuery():
            return ExampleScorer(query)
