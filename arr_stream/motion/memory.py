"""Temporal cache: the state of a stream that is carried from frame to frame along the flow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from arr_stream.motion.carry import carry, compose
from arr_stream.motion.flow import Flow
from arr_stream.motion.history import History
from arr_stream.motion.keyframe_results import KeyframeResults
from arr_stream.texture.array import LazyPlane, Plane
from arr_stream.texture.arrays import Array
from arr_stream.types import Grid


@dataclass(frozen=True, slots=True, eq=False)
class Carried:
    """State that is warped with the picture.

    Args:
        history: `History.values`.
        flows: Flows back to earlier frames.
    """

    history: Array
    flows: tuple[Flow, ...]


def carried(before: Carried, flow: Flow) -> Carried:
    """Warp everything to the present frame along `flow`, the backward flow to the previous frame."""
    flows = tuple(compose(earlier, flow) for earlier in before.flows)
    return Carried(carry(before.history, flow, outside=0.0), flows)


def _as_it_is(values: npt.NDArray[Any]) -> Array:
    return values


class TemporalCache:
    """State of one stream at one frame size: channels 13 to 39.

    Args:
        grid: The cells; a changed size needs a new cache.
        put: Copies an array to the device.

    Attributes:
        keyframes: Results of keyframes, and the flows back to them (channels 13 to 33).
        history: Channels 34 to 39.
    """

    def __init__(self, grid: Grid, put: Callable[[npt.NDArray[Any]], Array] = _as_it_is) -> None:
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
