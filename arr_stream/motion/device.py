"""Device of the frame loop: the processor here, a GPU in `arr_stream.gpu`."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from typing import Any, ParamSpec, Protocol, TypeVar

import numpy.typing as npt

from arr_stream.config import MotionSettings
from arr_stream.motion import make_flow
from arr_stream.motion.anchor import RegionTracker
from arr_stream.motion.flow import FlowEstimator
from arr_stream.texture.arrays import Array
from arr_stream.threads import one_blas_thread
from arr_stream.types import ByteArray

P = ParamSpec("P")
R = TypeVar("R")


class Device(Protocol):
    """Runs the steps of a frame, and brings arrays there and back."""

    @property
    def on_host(self) -> bool:
        """Values can be read without waiting."""
        ...

    def working(self) -> AbstractContextManager[None]:
        """Held while a frame is worked on."""
        ...

    def upload(self, rgb: ByteArray) -> Array:
        """A frame's pixels, there."""
        ...

    def put(self, values: npt.NDArray[Any]) -> Array:
        """Any array, there."""
        ...

    def put_region(self, tracker: RegionTracker) -> Any:
        """Move a tracker's newly learned state to the device."""
        ...

    def run(self, step: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a pure function of arrays on the device and of constants, and return its result."""
        ...

    def staged(
        self, step: Callable[P, Generator[str, None, R]], lap: Callable[[str], None], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Run a step in stages; call `lap` with the name of each finished stage, if the device can time them
        separately."""
        ...

    def fetch(self, value: R) -> Callable[[], R]:
        """Send a value with its arrays on its way to the host; calling the result waits for it."""
        ...

    def make_flow(self, settings: MotionSettings) -> FlowEstimator:
        """Return a flow estimator for pairs of lightness pictures on the device."""
        ...

    def forget(self) -> None:
        """Frames of another size come."""
        ...

    def notices(self) -> tuple[str, ...]:
        """One-line messages since the last call."""
        ...


class HostDevice:
    """The processor: everything is there already."""

    on_host = True

    def working(self) -> AbstractContextManager[None]:
        return one_blas_thread()

    def upload(self, rgb: ByteArray) -> Array:
        return rgb

    def put(self, values: npt.NDArray[Any]) -> Array:
        return values

    def put_region(self, tracker: RegionTracker) -> Any:
        return tracker

    def run(self, step: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return step(*args, **kwargs)

    def staged(
        self, step: Callable[P, Generator[str, None, R]], lap: Callable[[str], None], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        return result_of(step(*args, **kwargs), lap)

    def fetch(self, value: R) -> Callable[[], R]:
        return lambda: value

    def make_flow(self, settings: MotionSettings) -> FlowEstimator:
        return make_flow(settings.flow, settings.preset)

    def forget(self) -> None: ...

    def notices(self) -> tuple[str, ...]:
        return ()


def result_of(stages: Generator[str, None, R], lap: Callable[[str], None]) -> R:
    """Run a step in stages to its end, and return its result."""
    while True:
        try:
            lap(next(stages))
        except StopIteration as end:
            result: R = end.value
            return result
