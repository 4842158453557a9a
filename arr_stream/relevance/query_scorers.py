"""Relevance of a frame's cells to all queries."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from arr_stream.relevance.kinds.base import QueryContext, QueryInput, QueryScorer, QueryTask
from arr_stream.relevance.kinds.region import Box, ExampleScorer, RegionScorer
from arr_stream.relevance.kinds.text import TextScorer
from arr_stream.relevance.query import ExampleQuery, Query, RegionQuery, TextQuery
from arr_stream.relevance.scorers import Change
from arr_stream.texture.arrays import Array, namespace, zeros
from arr_stream.texture.pixels import averaged
from arr_stream.types import FloatArray

_HALF_UNDERSTOOD = 0.3
"""Weight of a query of which only a property is understood, since other things have it too."""
_DETECTED = 0.8
"""Weight of a detected object."""
_STILL_OBJECT = 0.4
"""Share of that weight that a still object loses while something else moves."""
_BEFORE_BACKGROUND = 0.8
"""The same share before a known background."""
_MAY_BE_FOUND = 0.4
"""Weight of moving things that were not detected, if a query is for objects that move."""


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
        others: `[gh, gw]` in [0, 1], confidence that each cell is an object that no query names, if a detector answers
            all queries; else None.
        moves: A query is for detected objects of a kind that moves.
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

        A detector misses objects and reports false ones, so the selection follows it only in part. If anything moves,
        moving objects come first, and a moving thing may be an object that the detector missed. With a known
        background, `change` separates an object from the rest of its box.
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
        """`[gh, gw]` bool: the winning query asks for words; None if no query does."""
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
    states = tuple(answer.state for answer in answers)
    kinds = "half_understood", "of_words", "detected"
    half_understood, of_words, detected = (tuple(map(attrgetter(name), answers)) for name in kinds)
    others = [averaged(answer.other, cells_hw) for answer in answers if answer.other is not None]
    # An object that one query does not name may be named by another.
    common = xp.amin(xp.stack(others), 0) if len(others) == len(answers) else None
    moves = any(answer.moves for answer in answers)
    return QueryRelevance(most, combined, query, carried, half_understood, of_words, detected, common, moves), states


def _won_by(query: Array, which: Sequence[bool]) -> Array:
    """Return `[gh, gw]` bool: the cells whose winning query is one of those."""
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
    """

    def __init__(
        self,
        queries: Sequence[Query],
        phrases: Collection[str] = (),
        labels: Collection[str] = (),
        before: QueryScorers | None = None,
    ) -> None:
        left = list(before._scored) if before is not None else []
        self._scored: list[_ScoredQuery] = []
        for query in queries:
            by_model = isinstance(query, TextQuery) and query.phrase in phrases
            kept = next((each for each in left if each.query == query and each.by_model == by_model), None)
            if kept is not None:
                left.remove(kept)
            self._scored.append(kept or _ScoredQuery(query, by_model, _scorer(query, labels, by_model)))

    def tasks(self, inputs: QueryInput) -> tuple[QueryTask, ...]:
        return tuple(each.scorer.prepare(inputs) for each in self._scored)

    @property
    def region(self) -> Box | None:
        """Present box of the first region; None without one, or if it is out of sight."""
        return next((each.scorer.box for each in self._scored if isinstance(each.scorer, RegionScorer)), None)

    def host_views(self, states: Sequence[Any]) -> tuple[Array | None, ...]:
        """Return the parts of the state that the host must read on this frame."""
        return tuple(each.scorer.host_view(state) for each, state in zip(self._scored, states, strict=True))

    def finish(
        self, states: Sequence[Any], host_views: Sequence[FloatArray | None], inputs: QueryInput
    ) -> tuple[str, ...]:
        """Pass each scorer its state and the parts read by the host, and return the scorers' notices."""
        notices: list[str] = []
        for each, state, view in zip(self._scored, states, host_views, strict=True):
            if (notice := each.scorer.finish(state, view, inputs)) is not None:
                notices.append(notice)
        return tuple(notices)


def _scorer(query: Query, labels: Collection[str], by_model: bool) -> QueryScorer:
    match query:
        case TextQuery():
            return TextScorer(query.detected(labels), by_model)
        case RegionQuery():
            return RegionScorer(query)
        case ExampleQuery():
            return ExampleScorer(query)
