"""Temporal cache: the state of a stream that is carried from frame to frame along the flow.

Channels 34 to 39 hold earlier relevance, saliency, selection, attention and gaze; `keyframe_results` has 13 to 33.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from arr_stream.motion.flow import Flow, carry, compose
from arr_stream.motion.keyframe_results import KeyframeResults
from arr_stream.motion.planes import HISTORY
from arr_stream.texture.array import DeferredPlane, LazyPlane, Plane
from arr_stream.texture.arrays import Array, channels_first, enlarged, namespace, replaced, zeros
from arr_stream.types import EIGHTH_PER_CELL, FloatArray, Grid

HISTORY_CHANNELS = ("previous_relevance", "previous_saliency", "fixation", "attention", "attention_history", "gaze")
"""Channels 34 to 39, in order."""

KEPT = ("fixation", "attention", "attention_history", "gaze")
"""Channels carried on every frame; the other two belong to the previous frame and are carried on access."""

FIXATION = HISTORY + HISTORY_CHANNELS.index("fixation")
FIXATION_DECAY = 0.9
_HALF_LIVES_SECONDS = {"attention_history": 3.0, "gaze": 0.5}
_SPENT = 1e-6
"""Level below which faded values become 0, to avoid slow denormal numbers."""


def with_selection(history: Array, chosen: Array) -> Array:
    """Return the history `[n, h, w]` with this frame's selection, `[gh, gw]` of 0 and 1, in the fixation channel."""
    looked = enlarged(chosen, EIGHTH_PER_CELL)
    return replaced(history, {0: FIXATION_DECAY * history[0] + (1 - FIXATION_DECAY) * looked})


class History:
    """History of one stream at one frame size.

    Args:
        eighth_hw: Rows and columns of the texture divided by 8; all maps have this size where none is given.
        put: Copies an array to the device.

    Attributes:
        values: `[1, h, w]` or `[4, h, w]`: fixation alone, or all of `KEPT` after the first attention or gaze.
        flows: Flows back to the frames whose attention is awaited, by frame index.
    """

    def __init__(self, eighth_hw: tuple[int, int], put: Callable[[npt.NDArray[Any]], Array]) -> None:
        self._hw, self._put = eighth_hw, put
        self.values = put(np.zeros((1, *eighth_hw), np.float32))
        self.flows: dict[int, Flow] = {}
        self._previous: tuple[Array, Array] | None = None
        self._flow: Flow | None = None
        self._levels: dict[str, float] = {}
        self._no_previous = Plane(HISTORY, zeros(self.values, (len(HISTORY_CHANNELS) - len(KEPT), 1, 1)))
        self._none_kept = Plane(FIXATION + 1, zeros(self.values, (len(KEPT) - 1, 1, 1)))

    def move(self, values: Array, flows: dict[int, Flow], flow: Flow) -> None:
        """Store the values and flows warped to the present frame along `flow`."""
        self.values, self.flows, self._flow = values, flows, flow

    def forget(self) -> None:
        """Reset all channels after a cut."""
        self.flows, self._previous = {}, None
        self._levels.clear()
        self.values = namespace(self.values).zeros_like(self.values)

    @property
    def planes(self) -> dict[int, Plane | LazyPlane]:
        """Return channels 34 to 39 of the present frame; no frame modifies the planes of an earlier one."""
        previous: Plane | LazyPlane = self._no_previous
        if self._previous is not None and self._flow is not None:
            previous = DeferredPlane(HISTORY, partial(_carried_previous, *self._previous, self._flow))
        planes: dict[int, Plane | LazyPlane] = {HISTORY: previous, FIXATION: Plane(FIXATION, self.values)}
        if len(self.values) < len(KEPT):
            planes[FIXATION + 1] = self._none_kept
        return planes

    def end_frame(self, values: Array, relevance: Array, saliency: Array) -> None:
        """Store what the next frame needs: `with_selection`, the relevance `[gh, gw]` and the saliency `[h, w]`."""
        self.values, self._previous = values, (relevance, saliency)

    def __getitem__(self, name: str) -> Array:
        """Return one of `KEPT` on the present frame, `[h, w]`."""
        index = KEPT.index(name)
        return self.values[index] if index < len(self.values) else zeros(self.values, self._hw)

    def __setitem__(self, name: str, value: Array) -> None:
        if name != KEPT[0] and len(self.values) < len(KEPT):
            # Channels last in memory, as the host's operators want them.
            all_kept = channels_first(zeros(self.values, (*self._hw, len(KEPT))))
            self.values = replaced(all_kept, {0: self.values[0]})
        self.values = replaced(self.values, {KEPT.index(name): value})

    def await_attention(self, index: int) -> None:
        """Keep the flow back to the present frame, for attention that arrives later; one frame at a time."""
        self.flows = {index: Flow.still(self._hw, self.values)}

    def add_attention(self, attention: Array) -> None:
        """Set channel 37 to a model's attention (`[h, w]` in [0, 1]), and add it to channel 38."""
        self["attention"] = attention
        self._add("attention_history", attention)

    def add_late_attention(self, attention: Array, index: int) -> bool:
        """Add attention to an earlier frame, carried to the present; return False if its scene has ended."""
        flow = self.flows.pop(index, None)
        if flow is None:
            return False
        self.add_attention(carry(attention, flow, outside=0.0))
        return True

    def forget_attention(self) -> None:
        """Reset channel 37; channel 38 keeps fading."""
        if len(self.values) == len(KEPT):
            self["attention"] = namespace(self.values).zeros_like(self["attention"])

    def add_relevance(self, relevance: FloatArray) -> None:
        """Add the relevance of an ended query (`[h, w]` in [0, 1]) to channel 38."""
        self._add("attention_history", self._put(relevance))

    def add_gaze(self, gaze: FloatArray) -> None:
        """Add new gaze (`[h, w]` in [0, 1]) to channel 39."""
        self._add("gaze", self._put(gaze))

    def fade(self, elapsed_seconds: float) -> None:
        """Fade channels 38 and 39 by the elapsed time."""
        faded = {}
        for name, level in list(self._levels.items()):
            factor = 0.5 ** (max(0.0, elapsed_seconds) / _HALF_LIVES_SECONDS[name])
            self._levels[name] = level * factor
            if self._levels[name] < _SPENT:
                del self._levels[name]
                factor = 0.0
            faded[KEPT.index(name)] = self[name] * factor
        if faded:
            self.values = replaced(self.values, faded)

    def _add(self, name: str, value: Array) -> None:
        before = self[name]
        self[name] = namespace(before).maximum(before, value)
        self._levels[name] = 1.0


def _carried_previous(relevance: Array, saliency: Array, flow: Flow) -> Array:
    """Return channels 34 and 35, from the relevance `[gh, gw]` and the saliency `[h, w]` of the frame before."""
    planes = enlarged(relevance, EIGHTH_PER_CELL), saliency
    return namespace(saliency).stack([carry(plane, flow, outside=0.0) for plane in planes])


@dataclass(frozen=True, slots=True, eq=False)
class Carried:
    """State that is warped with the picture: `History.values`, and flows back to earlier frames."""

    history: Array
    flows: tuple[Flow, ...]


def carried(before: Carried, flow: Flow) -> Carried:
    """Warp everything to the present frame along `flow`, the backward flow to the previous frame."""
    flows = tuple(compose(earlier, flow) for earlier in before.flows)
    return Carried(carry(before.history, flow, outside=0.0), flows)


class TemporalCache:
    """State of one stream at one frame size: channels 13 to 39.

    Args:
        grid: The cells; a changed size needs a new cache.
        put: Copies an array to the device.

    Attributes:
        keyframes: Results of keyframes, and the flows back to them (channels 13 to 33).
        history: Channels 34 to 39.
    """

    def __init__(self, grid: Grid, put: Callable[[npt.NDArray[Any]], Array]) -> None:
        self.keyframes = KeyframeResults(grid, put)
        self.history = History(self.keyframes.reduced_hw(8), put)

    @property
    def moving(self) -> Carried:
        """Return the state to warp to the next frame."""
        return Carried(self.history.values, (*self.keyframes.flows.values(), *self.history.flows.values()))

    def move(self, moved: Carried, flow: Flow) -> None:
        """Store the result of `carried` on `moving`, along the same flow."""
        flows = iter(moved.flows)
        self.keyframes.flows = {index: next(flows) for index in self.keyframes.flows}
        self.history.move(moved.history, {index: next(flows) for index in self.history.flows}, flow)

    def forget(self) -> None:
        """Drop all carried state after a cut."""
        self.keyframes.forget()
        self.history.forget()

    @property
    def planes(self) -> dict[int, Plane | LazyPlane]:
        """Return channels 13 to 39 of the present frame; those of keyframes are carried on first access."""
        return {**self.keyframes.planes, **self.history.planes}
