"""Queries in words: colours, motion and places by the lexicon, words to read, detected objects, or a model's scores."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

from arr_stream.motion.flow import carry
from arr_stream.relevance.kinds.base import QueryAnswer, QueryContext, QueryInput, QueryScorer, QueryTask
from arr_stream.relevance.meaning import still_meant
from arr_stream.relevance.membership import object_maps, text_relevance
from arr_stream.relevance.query import TextQuery
from arr_stream.relevance.words import word_mask
from arr_stream.texture.arrays import Array, namespace, zeros
from arr_stream.texture.pixels import resized
from arr_stream.types import FloatArray

LEAST_MEANING = 0.02
"""Score of a model up to which a match counts as chance, since its scores rarely reach 0."""
_STILL_DOUBT = 0.5
"""Share of its relevance that a still place loses if something on the frame moves with full confidence."""
_AROUND_WORDS = np.ones((9, 9), np.uint8)
_AROUND_SHARE = 0.5
"""Weight of the margin around words: cells that hold only the end of a word rank last."""
_WITHIN_SAMPLES = 5
"""Samples, each way, over which words are averaged, so that cells full of a word rank first."""


@dataclass(frozen=True, slots=True, eq=False)
class TextTask:
    """Task of a text query on one frame.

    Args:
        query: The text.
        words: For each word to read, `[h, w]`, how well each place of the keyframe matches it; None before the first
            text.
        by_model: A model scores the query, in place of the lexicon's colours.
        meaning: `[h', w']`, the model's scores on the frame of the embedding in use; None before the first.
        embedded_before: The frame of the embedding is an earlier one.
        objects: `[2, h/2, w/2]`, confidence that each place of the keyframe is an object that the query names, or
            another; None before the first detection.
    """

    query: TextQuery
    words: tuple[Array, ...] | None = None
    by_model: bool = False
    meaning: Array | None = None
    embedded_before: bool = False
    objects: Array | None = None

    def answer(self, context: QueryContext) -> QueryAnswer:
        motion = context.motion if self.query.needs_motion else None
        meaning = self._meant(context) if self.by_model else None
        objects = self._detected(context) if self.query.objects and not self.by_model else None
        named = None if objects is None else resized(objects[0], context.hw)
        computed = text_relevance(
            self.query, context.quarter, motion=motion, words=self._read(context), meaning=meaning, objects=named
        )
        if objects is not None:
            moves = any(term.moves for term in self.query.objects)
            words = bool(self.query.words)
            return QueryAnswer(computed, True, of_words=words, detected=True, other=objects[1], moves=moves)
        if not self.by_model:
            half = self.query.names_the_unknown
            if half:
                computed = computed * _as_it_moves(context)
            return QueryAnswer(computed, False, half_understood=half, of_words=bool(self.query.words))
        chance = computed < LEAST_MEANING
        meant = namespace(computed).where(chance, 0.0, computed)
        return QueryAnswer(meant, self.embedded_before, of_words=bool(self.query.words))

    def _read(self, context: QueryContext) -> list[Array]:
        """Return the match of each place with each word, carried to this frame."""
        if self.words is None or context.text_flow is None:
            return [context.nothing() for _ in self.query.words]
        return [carry(mask, context.text_flow, outside=0.0) for mask in self.words]

    def _detected(self, context: QueryContext) -> Array:
        """Return the confidence that each place is a named object, and another one, carried to this frame."""
        if self.objects is None or context.object_flow is None:
            return zeros(context.eighth_motion, (2, *context.eighth_motion.shape))
        return carry(self.objects, context.object_flow, outside=0.0)

    def _meant(self, context: QueryContext) -> Array:
        """Return the fit of each place to the phrase, carried to this frame."""
        flow, found = context.embedding_flow, self.meaning
        if flow is None or found is None:
            return context.nothing()
        return resized(still_meant(found, flow, context.trust), context.hw)


def _as_it_moves(context: QueryContext) -> Array:
    """Return the share of relevance, `[h, w]` in [0, 1], that places keep if the lexicon lacks the object's word.

    Most queries are for objects: if anything moves, a still place of the same colour is less likely to be the object.
    """
    figure = resized(context.figure, context.hw)
    return 1 - _STILL_DOUBT * context.figure.max() * (1 - figure)


class TextScorer(QueryScorer):
    """Scorer of a text query through the lexicon, or through a model that knows the words.

    Relevance by the lexicon is computed on every frame, which costs less than carrying it; regions of words are
    carried. Relevance by a model is computed on keyframes and carried between them; places, motion and quoted words
    narrow it on every frame.
    """

    def __init__(self, query: TextQuery, by_model: bool = False) -> None:
        self._query, self._by_model = query, by_model
        self._masks: tuple[object, tuple[Array, ...]] | None = None
        self._objects: tuple[object, Array] | None = None

    def prepare(self, inputs: QueryInput) -> QueryTask:
        embedded = inputs.keyframes.origin("embedding")
        return TextTask(
            query=self._query,
            words=self._words(inputs) if self._query.words else None,
            by_model=self._by_model,
            meaning=inputs.meanings.get(self._query.phrase) if self._by_model else None,
            embedded_before=embedded is not None and embedded != inputs.frame.index,
            objects=self._detected(inputs) if self._query.objects and not self._by_model else None,
        )

    def _detected(self, inputs: QueryInput) -> Array | None:
        """Return the places of named and of other objects on the objects' keyframe; computed once a keyframe."""
        finding = inputs.keyframes.objects
        if finding is None:
            return None
        if self._objects is None or self._objects[0] is not finding:
            self._objects = (
                finding,
                inputs.put(object_maps(self._query, finding.objects, inputs.keyframes.reduced_hw(8))),
            )
        return self._objects[1]

    def _words(self, inputs: QueryInput) -> tuple[Array, ...] | None:
        """Return the match of each place with each word on the keyframe of the text; computed once a keyframe."""
        text = inputs.keyframes.text
        if text is None:
            return None
        if self._masks is None or self._masks[0] is not text:
            hw = inputs.keyframes.reduced_hw(4)
            masks = (word_mask(text.regions, word, hw) if word else text.mask for word in self._query.words)
            self._masks = (text, tuple(inputs.put(_asked_for(mask)) for mask in masks))
        return self._masks[1]


def _asked_for(mask: FloatArray) -> FloatArray:
    """Return `[h, w]` in [0, 1]: relevance by words on a mask `[h, w]` at a quarter of the texture's size."""
    around = cv2.dilate(mask, _AROUND_WORDS) * np.float32(_AROUND_SHARE)
    wanted: FloatArray = np.maximum(cv2.blur(mask, (_WITHIN_SAMPLES, _WITHIN_SAMPLES)), around)
    return wanted
