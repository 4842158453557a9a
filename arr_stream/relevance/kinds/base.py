"""Contract of a kind of query: a scorer prepares a task for each frame, and the task answers on the frame's device.

A task is a dataclass of arrays and constants. All tasks run in one step that reads nothing but its arguments, so that a
device can capture it as a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from arr_stream.motion.flow import Flow
from arr_stream.motion.keyframe_results import KeyframeResults
from arr_stream.texture.arrays import Array, zeros
from arr_stream.texture.pictures import Pictures
from arr_stream.texture.pixels import picture_hw, resized
from arr_stream.types import FloatArray, Frame, Grid


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
        picture: Returns the host's picture at a quarter of the texture's size, if it exists already.
    """

    frame: Frame
    grid: Grid
    keyframes: KeyframeResults
    meanings: Mapping[str, Array]
    put: Callable[[npt.NDArray[Any]], Array]
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
        flow: To the frame before; None on the first frame and after a cut.
        text_flow, embedding_flow, object_flow: Flow back to the keyframes of text, embedding and objects, or None.
        trust: Confidence of the flow at which a model's results have full weight.
        figure: `[gh, gw]` in [0, 1], confidence that each cell belongs to a moving object; None before it is computed.
    """

    quarter: Array
    eighth_motion: Array
    flow: Flow | None
    text_flow: Flow | None
    embedding_flow: Flow | None
    object_flow: Flow | None
    trust: float
    figure: Array = None

    @property
    def hw(self) -> tuple[int, int]:
        hw: tuple[int, int] = picture_hw(self.quarter)
        return hw

    def nothing(self) -> Array:
        return zeros(self.quarter, self.hw)

    @cached_property
    def motion(self) -> Array:
        """`[h, w]` in [0, 1], the motion channel."""
        return resized(self.eighth_motion, self.hw)


@dataclass(frozen=True, slots=True, eq=False)
class QueryAnswer:
    """Relevance of one frame to one query.

    Args:
        relevance: `[h, w]` in [0, 1], a quarter of the texture's size.
        carried: The relevance was carried along the flow.
        state: State that the scorer keeps for the next frame.
        half_understood: Only a property in the query, such as a colour, is understood; the word for the object is
            unknown.
        of_words: The query is for words, whose places are known, so saliency is ignored.
        detected: A detector, which misses some objects, answers the query.
        other: `[h/2, w/2]` in [0, 1], confidence that each place is an object that the query does not name; None:
            unknown.
        moves: The query is for a kind of object that moves.
    """

    relevance: Array
    carried: bool
    state: Any = None
    half_understood: bool = False
    of_words: bool = False
    detected: bool = False
    other: Array | None = None
    moves: bool = False


class QueryTask(Protocol):
    """Task of a query on one frame: a dataclass of arrays and constants."""

    def answer(self, context: QueryContext) -> QueryAnswer: ...


class QueryScorer:
    """Scorer of one query, which keeps its state from frame to frame; `prepare` is called for each frame, in order."""

    def prepare(self, inputs: QueryInput) -> QueryTask:
        """Return the task of this frame."""
        raise NotImplementedError

    def host_view(self, state: Any) -> Array | None:
        """Return the part of the task's state that `finish` must read on this frame; a device transfers it with its
        other results."""
        return None

    def finish(self, state: Any, host_view: FloatArray | None, inputs: QueryInput) -> str | None:
        """Keep the task's state for the next frame; return a notice if the user should know something."""
        return None
