"""Queries by an example picture, found by its colours."""

from __future__ import annotations

from dataclasses import dataclass

from arr_stream.motion.anchor import ColourModel
from arr_stream.relevance.kinds.base import QueryAnswer, QueryContext, QueryInput, QueryScorer, QueryTask
from arr_stream.relevance.query import ExampleQuery
from arr_stream.texture.arrays import Array, take
from arr_stream.texture.pixels import packed_colours


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
            self._colours = ColourModel.from_example(self._query.rgb, inputs.quarter)
        elif inputs.frame.index in inputs.keyframes.anchors:
            self._colours.against(inputs.quarter)
        else:
            return ExampleTask(self._table)
        self._table = inputs.put(self._colours.table)
        return ExampleTask(self._table)
