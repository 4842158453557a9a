"""Queries on every frame: each keeps what it needs from frame to frame and gives one relevance map a frame.

A scorer prepares a task on the host: arrays and constants. Tasks are answered where the frame is, all in one step that
reads nothing but its arguments, so that a device can capture it.
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
from arr_stream.motion.memory import TemporalCache
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
"""What a model scores below this is chance: its scores never quite reach 0."""


_LOOK_EVERY = 3
"""Frames from one look at whether a region still shows its object to the next."""

_AROUND_WORDS = np.ones((9, 9), np.uint8)
_AROUND_SHARE = 0.5
"""Words are asked for with a little around them, at half their worth: cells that hold but the end of one come last."""
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
        frame: The frame; pictures of it are made on the host only where something is learned.
        grid: Its cells.
        cache: What is carried.
        meanings: For each phrase that a model was asked about, `[h', w']` in [0, 1], how well places fit it on the
            frame of the embedding in use; empty before the first embedding.
        put: Brings an array to where the loop works.
        put_region: The same for a region that was just learned.
        picture: Gives the host's picture at a quarter of the texture's size, where there is one already.
    """

    frame: Frame
    grid: Grid
    cache: TemporalCache
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
    """What a task may look at on one frame; relevance maps are at a quarter of the texture's size.

    Args:
        quarter: The picture at that size.
        eighth_motion: `[h/2, w/2]` in [0, 1], the motion channel.
        figure: `[gh, gw]` in [0, 1], how surely each cell belongs to what moves.
        flow: To the frame before; None on the first frame and after a cut.
        text_way, embedding_way, object_way: Flow back to the keyframes of text, embedding and objects, or None.
        trust: Confidence from which what a model found is fully believed.
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
    """One query's relevance on one frame.

    Args:
        relevance: `[h, w]` in [0, 1], a quarter of the texture's size.
        carried: It came along the flow.
        keep: What the scorer wants to know on the next frame.
        half_understood: It is of a property alone, such as a colour: the word for the thing is not known.
        of_words: It is of words, which are where they were read whatever else stands out.
        detected: It is of objects that a detector found, which misses some.
        other: `[h/2, w/2]` in [0, 1], how surely each place is an object that is not asked for; None: nobody knows.
        moves: What is asked for is of a kind that moves.
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
"""What the relevance of a still place loses where something surely moves."""


_HALF_UNDERSTOOD = 0.3
"""Weight in the choice of a query of which only a property is understood: much else has it."""
_DETECTED = 0.8
"""Weight of a detected object in the choice."""
_STILL_OBJECT = 0.4
"""Share of that weight that an object loses when it stands still while something else moves."""
_BEFORE_BACKGROUND = 0.8
"""The same share before a known background."""
_MAY_BE_FOUND = 0.4
"""Weight of what moves and was not detected, when a query asks for objects that move."""


class QueryTask(Protocol):
    """A query on one frame: a dataclass of arrays and constants."""

    def answer(self, context: QueryContext) -> Answer: ...


class QueryScorer(Protocol):
    """Prepares a query for each frame, in order, and takes back what it wants to know on the next."""

    def task(self, given: QueryInput) -> QueryTask: ...

    def watched(self, keep: Any) -> Array | None:
        """What of it the host must see on this frame; a device brings it with all else that comes back."""

    def take(self, keep: Any, watched: FloatArray | None, given: QueryInput) -> str | None:
        """Keep what the task handed back for the next frame; a notice where the user should know something."""


@dataclass(frozen=True, slots=True, eq=False)
class TextTask:
    """A text on one frame.

    Args:
        query: The text.
        words: For each word to read, `[h, w]` how much each place of the keyframe is wanted for it; None before there
            was text.
        by_model: A model is asked, in place of the lexicon's colours.
        meaning: `[h', w']` what it found on the frame of the embedding in use; None before there is one.
        embedded_before: That frame was an earlier one.
        objects: `[2, h/2, w/2]` how surely each place of the keyframe is an object that is named, and another; None
            before any were looked for.
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
        """How much each place is wanted for each word, carried to this frame."""
        if self.words is None or context.text_way is None:
            return [context.nothing() for _ in self.query.words]
        return [carry(mask, context.text_way, outside=0.0) for mask in self.words]

    def _detected(self, context: QueryContext) -> Array:
        """How surely each place is an object of a kind that is named, and another, carried to this frame."""
        if self.objects is None or context.object_way is None:
            return zeros(context.eighth_motion, (2, *context.eighth_motion.shape))
        return carry(self.objects, context.object_way, outside=0.0)

    def _meant(self, context: QueryContext) -> Array:
        """How well places fit the phrase, carried to this frame."""
        way, found = context.embedding_way, self.meaning
        if way is None or found is None:
            return context.nothing()
        return resized(still_meant(found, way, context.trust), context.hw)


def _as_it_moves(context: QueryContext) -> Array:
    """`[h, w]` in [0, 1]: what is left of the relevance of something that the lexicon has no word for.

    Most of what is asked for is a thing: where anything moves, what is of the colour and stands still is less likely
    to be it.
    """
    figure = resized(context.figure, context.hw)
    return 1 - _STILL_DOUBT * context.figure.max() * (1 - figure)


class TextScorer:
    """A text through the lexicon, or through a model that knows the words.

    What the lexicon knows is computed on every frame, which costs less than to carry it; the regions of words that
    were read are carried. What a model finds on keyframes is carried between them; places, motion and quoted words
    are not its business: they narrow what it finds, on every frame.

    Args:
        query: The text.
        by_model: A model is asked.
    """

    def __init__(self, query: TextQuery, by_model: bool = False) -> None:
        self._query, self._by_model = query, by_model
        self._masks: tuple[object, tuple[Array, ...]] | None = None
        self._objects: tuple[object, Array] | None = None

    def task(self, given: QueryInput) -> QueryTask:
        embedded = given.cache.origin("embedding")
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
        """How surely each place is an object that is asked for, on the frame that was looked at; once a keyframe."""
        finding = given.cache.objects
        if finding is None:
            return None
        if self._objects is None or self._objects[0] is not finding:
            self._objects = finding, given.put(object_maps(self._query, finding.objects, given.cache.reduced_hw(8)))
        return self._objects[1]

    def _words(self, given: QueryInput) -> tuple[Array, ...] | None:
        """How much each place is wanted for each word on the frame that was read; made once a keyframe."""
        text = given.cache.text
        if text is None:
            return None
        if self._masks is None or self._masks[0] is not text:
            hw = given.cache.reduced_hw(4)
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
    """A box, or an object's mask, on one frame, followed through the stream, and found again where it was lost.

    Args:
        query: Which; before its time comes the relevance is 0.
        anchored: Keep it on what it looks like, instead of carrying it along the flow alone.
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
        """Where the region is, looked at on every third frame; None if it is not in sight."""
        return None if self._lost else self._box

    def task(self, given: QueryInput) -> QueryTask:
        if self._region is not None:
            return RegionTask(self._region, False, self._confidence)
        if given.frame.pts_seconds + 1e-6 < self._query.at_seconds:
            return RegionTask(None, drawn=False)
        mask = self._mask(given.frame.size_wh, given.cache.reduced_hw(4))
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
    """`[samples]`: the share of each of `samples` equal parts of `size` pixels that lies in `[start, end]`."""
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
    """An example picture, found by its colours: likely under the example, unlikely under the scene.

    The scene's own colours are learned on the first frame and again on every frame that generation was asked for.
    """

    def __init__(self, query: ExampleQuery) -> None:
        self._query = query
        self._colours: ColourModel | None = None
        self._table: Array | None = None

    def task(self, given: QueryInput) -> QueryTask:
        if self._colours is None:
            self._colours = ColourModel.from_example(self._query.rgb, given.quarter)
        elif given.frame.index in given.cache.anchors:
            self._colours.against(given.quarter)
        else:
            return ExampleTask(self._table)
        self._table = given.put(self._colours.table)
        return ExampleTask(self._table)

    def watched(self, keep: Any) -> None: ...

    def take(self, keep: Any, watched: FloatArray | None, given: QueryInput) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class QueryRelevance:
    """All queries' answers on one frame.

    Args:
        best: `[Q]` highest relevance of any cell to each query.
        combined: `[gh, gw]` the highest relevance of each cell; zeros without a query.
        query: `[gh, gw]` int, which query that was, -1 where none has any.
        carried: `[gh, gw]` bool, the winning query's relevance came along the flow.
        half_understood: For each query, whether only a property of the thing is understood.
        of_words: For each query, whether it asks for words.
        detected: For each query, whether a detector answers it.
        others: `[gh, gw]` in [0, 1], how surely each cell is an object that no query names, where all are answered by a
            detector; else None.
        moves: Some query asks a detector for what moves.
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
        """Return `[gh, gw]` in [0, 1]: how far the choice follows the queries in each cell.

        A detector misses some objects and finds some that are none, so that its word alone is not followed all the way.
        Where anything moves, those that move come first; and what moves may be an object of a kind that does, though it
        was not found.

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
    """Every task's answer as one relevance a cell, and what the scorers keep."""
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
    # What one query does not name another may.
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
    """Several queries at once.

    Args:
        queries: What is asked; may be empty.
        phrases: Those of the queries that a model is asked about.
        labels: What the detector in use can find.
        before: What was asked until now; a query that is asked still goes on, and a region is followed from where it
            is by now.
        anchored: Keep regions on what they look like.
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
        """What is to be answered on this frame."""
        return tuple(each.scorer.task(given) for each in self._scored)

    @property
    def region(self) -> Box | None:
        """Where the first box or mask is by now; None if there is none, or it is not in sight."""
        return next((each.scorer.box for each in self._scored if isinstance(each.scorer, RegionScorer)), None)

    def watched(self, keep: Sequence[Any]) -> tuple[Array | None, ...]:
        """What of all that the host must see on this frame."""
        return tuple(each.scorer.watched(own) for each, own in zip(self._scored, keep, strict=True))

    def take(self, keep: Sequence[Any], watched: Sequence[FloatArray | None], given: QueryInput) -> tuple[str, ...]:
        """Give each scorer what it wanted to keep, and to see, and return their notices."""
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
