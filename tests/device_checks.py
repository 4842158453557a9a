"""What tests of device code share: where they run, and a guard against waiting for the device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=[pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU here")]
    ),
]

_WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal.", "unique")


class OnDeviceOnly(TorchDispatchMode):
    """Refuses operations whose result the host must know before it can go on, and counts all others but views.

    Attributes:
        operations: How many were run.
    """

    def __init__(self) -> None:
        super().__init__()
        self.operations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func).removeprefix("aten.")
        if name.startswith(_WAITING):
            raise AssertionError(f"{name} waits for the device")
        if name.startswith("index.") and any(
            isinstance(index, torch.Tensor) and index.dtype == torch.bool for index in args[1]
        ):
            raise AssertionError("an index of truth values waits for the device")
        self.operations += not func.is_view
        return func(*args, **(kwargs or {}))
