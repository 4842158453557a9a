"""The frame loop's steps on a torch device: a frame goes up once, and a few numbers a cell come back at its end.

Pictures, channels, flow and queries stay there. Two things come back: the change of colours, for which the host
waits while the device already searches the flow (a cut decides which channels are propagated), and the inputs of the
selection. Nothing else waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from arr_stream.errors import BackendUnavailable
from arr_stream.gpu.flow import DeviceFlow
from arr_stream.gpu.graphs import Captured, flatten, unflatten
from arr_stream.motion.device import Device
from arr_stream.motion.flow import FlowEstimator
from arr_stream.types import ByteArray

P = ParamSpec("P")
R = TypeVar("R")


class TorchDevice(Device):
    """Torch device of a `Pipeline`.

    Args:
        name: Such as `cuda`, or `cpu`, which tests use.
        graphs: Capture the steps as CUDA graphs; on a CPU there are none.

    Attributes:
        fetched_bytes: Size of the last fetch.

    Raises:
        BackendUnavailable: A CUDA device was requested and torch finds none.
    """

    on_host = False

    def __init__(self, name: str, *, graphs: bool = True) -> None:
        self._device = torch.device(name)
        if self._device.type == "cuda" and not torch.cuda.is_available():
            raise BackendUnavailable(
                f"the frame loop was to run on {self._device}, but torch finds no NVIDIA GPU that it can use",
                remedy="use --set loop.device=cpu, or install a build of torch with CUDA",
            )
        self._graphs = graphs
        self._steps: dict[Callable[..., Any], Captured[..., Any]] = {}
        self._pinned: Tensor | None = None
        self.fetched_bytes = 0

    @property
    def captures(self) -> int:
        """Number of cached CUDA graphs."""
        return sum(step.captures for step in self._steps.values())

    @contextmanager
    def working(self) -> Iterator[None]:
        # TF32 rounding in convolutions would change the selection.
        exact = torch.backends.cudnn.flags(enabled=True, allow_tf32=False) if self._device.type == "cuda" else None
        with torch.no_grad(), exact or nullcontext():
            yield

    def upload(self, rgb: ByteArray) -> Tensor:
        """Copy to the device through one pinned buffer a size; a frame must finish before the next upload."""
        if self._device.type == "cpu":
            return torch.from_numpy(np.array(rgb))
        if self._pinned is None or self._pinned.shape != rgb.shape:
            self._pinned = torch.empty(rgb.shape, dtype=torch.uint8, pin_memory=True)
        self._pinned.copy_(_as_tensor(rgb))  # on several threads, unlike a copy by NumPy
        return self._pinned.to(self._device, non_blocking=True)

    def put(self, values: npt.NDArray[Any]) -> Tensor:
        if self._device.type == "cpu":
            return torch.from_numpy(np.array(values))
        return torch.from_numpy(np.array(values)).pin_memory().to(self._device, non_blocking=True)

    def run(self, step: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        if step not in self._steps:
            self._steps[step] = Captured(step, self._device, enabled=self._graphs)
        result: R = self._steps[step](*args, **kwargs)
        return result

    def fetch(self, value: R) -> Callable[[], R]:
        """Transfer as one row of float32, in which whole numbers up to 2**24 are exact."""
        tensors: list[Tensor] = []
        form = flatten(value, tensors)
        row = torch.cat([tensor.reshape(-1).float() for tensor in tensors])
        self.fetched_bytes = row.nbytes
        arrived: Any = None
        if self._device.type == "cuda":
            pinned = torch.empty(row.shape, dtype=row.dtype, pin_memory=True)
            row, arrived = pinned.copy_(row, non_blocking=True), torch.cuda.Event()  # type: ignore[no-untyped-call]
            arrived.record()

        def wait() -> R:
            if arrived is not None:
                arrived.synchronize()
            parts = torch.split(row, [tensor.numel() for tensor in tensors])
            arrays = [
                part.to(tensor.dtype).reshape(tensor.shape).numpy() for part, tensor in zip(parts, tensors, strict=True)
            ]
            result: R = unflatten(form, arrays)
            return result

        return wait

    def make_flow(self) -> FlowEstimator:
        return DeviceFlow(self.run)


def _as_tensor(values: ByteArray) -> Tensor:
    """Return a read-only view, without torch's warning about read-only arrays."""
    values = np.ascontiguousarray(values)
    interface = {**values.__array_interface__, "data": (values.ctypes.data, False)}
    return torch.from_numpy(np.asarray(SimpleNamespace(__array_interface__=interface, values=values)))
