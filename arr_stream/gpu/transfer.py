"""The way to the device and back, through pinned memory, so that neither side waits before it must."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from arr_stream.types import ByteArray, FloatArray


class Upload:
    """Brings frames to a device.

    One buffer serves every frame of a size, so a frame must have arrived before the next one comes: the frame loop
    waits for its report in between.

    Args:
        device: Where to.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pinned: Tensor | None = None

    def __call__(self, rgb: ByteArray) -> Tensor:
        """A copy of `[H, W, 3]` on the device."""
        if self._device.type == "cpu":
            return torch.from_numpy(np.array(rgb))
        if self._pinned is None or self._pinned.shape != rgb.shape:
            self._pinned = torch.empty(rgb.shape, dtype=torch.uint8, pin_memory=True)
        np.copyto(self._pinned.numpy(), rgb)
        return self._pinned.to(self._device, non_blocking=True)


class Download:
    """Brings a row of numbers back, one at a time.

    Attributes:
        bytes_moved: What came back the last time.
    """

    def __init__(self) -> None:
        self._pinned: Tensor | None = None
        self.bytes_moved = 0

    def start(self, values: Tensor) -> Callable[[], FloatArray]:
        """Send `[N]` float32 on its way; calling the result waits for it.

        The numbers are good until the next start.
        """
        self.bytes_moved = values.nbytes
        if values.device.type == "cpu":
            return values.numpy
        if self._pinned is None or self._pinned.shape != values.shape:
            self._pinned = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        pinned = self._pinned
        arrived: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        pinned.copy_(values, non_blocking=True)
        arrived.record()

        def wait() -> npt.NDArray[np.float32]:
            arrived.synchronize()
            array: FloatArray = pinned.numpy()
            return array

        return wait
