"""Devices that process frames: the CPU here, a GPU in `arr_stream.gpu`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, ParamSpec, TypeVar

import numpy.typing as npt

from arr_stream.motion.flow import DisFlow, FlowEstimator
from arr_stream.texture.arrays import Array
from arr_stream.threads import one_blas_thread
from arr_stream.types import ByteArray

P = ParamSpec("P")
R = TypeVar("R")


class Device:
    """Device that runs the steps of a frame and transfers arrays: the CPU, on which transfers are no-ops.

    Attributes:
        on_host: True if values can be read without waiting.
    """

    on_host = True

    def working(self) -> AbstractContextManager[None]:
        """Return a context that the pipeline holds while it processes a frame."""
        return one_blas_thread()

    def upload(self, rgb: ByteArray) -> Array:
        """Upload a frame's pixels."""
        return rgb

    def put(self, values: npt.NDArray[Any]) -> Array:
        """Copy any array to the device."""
        return values

    def run(self, step: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a pure function of device arrays and constants."""
        return step(*args, **kwargs)

    def fetch(self, value: R) -> Callable[[], R]:
        """Start the transfer of a value with its arrays to the host; the returned function waits for it."""
        return lambda: value

    def make_flow(self) -> FlowEstimator:
        """Return the flow estimator for lightness pictures on the device."""
        return DisFlow()
