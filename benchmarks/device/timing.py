"""How long a step takes on a device, and what the device's memory allows at best."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from arr_stream.gpu.graphs import flatten

_ROUNDS = 5
_GPU_COPY_BYTES = 1 << 29
_CPU_COPY_BYTES = 1 << 26


def synchronize(device: torch.device) -> None:
    """Wait until the device has nothing left to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def replayed(step: Callable[[], Any], device: torch.device) -> Callable[[], Any]:
    """A step without what its launches cost the host: on a GPU it is captured and replayed.

    Raises:
        RuntimeError: It cannot be captured.
    """
    if device.type != "cuda":
        return step
    beside: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        held = step()

    def replay() -> Any:
        graph.replay()
        return held

    return replay


def step_ms(step: Callable[[], Any], device: torch.device, repeats: int) -> float:
    """Median milliseconds of a step over rounds of `repeats` runs, by the device's own clock where it has one."""
    step()
    synchronize(device)
    rounds: list[float] = []
    for _ in range(_ROUNDS):
        if device.type == "cuda":
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            start.record()
            for _ in range(repeats):
                step()
            end.record()
            end.synchronize()
            rounds.append(start.elapsed_time(end) / repeats)
        else:
            began = time.perf_counter()
            for _ in range(repeats):
                step()
            rounds.append((time.perf_counter() - began) * 1e3 / repeats)
    return statistics.median(rounds)


def copy_bytes_per_ms(device: torch.device) -> float:
    """What a large copy within the device's memory moves in a millisecond, what it reads and what it writes."""
    size = _GPU_COPY_BYTES if device.type == "cuda" else _CPU_COPY_BYTES
    source, target = (torch.zeros(size, dtype=torch.uint8, device=device) for _ in range(2))
    return float(2 * size / step_ms(lambda: target.copy_(source), device, 4))


def upload_bytes_per_ms(device: torch.device) -> float:
    """What a copy from pinned memory brings to a GPU in a millisecond."""
    source = torch.zeros(_CPU_COPY_BYTES, dtype=torch.uint8, pin_memory=True)
    target = torch.zeros(_CPU_COPY_BYTES, dtype=torch.uint8, device=device)
    return _CPU_COPY_BYTES / step_ms(lambda: target.copy_(source, non_blocking=True), device, 4)


def bytes_of(*values: Any) -> int:
    """Bytes of all tensors in some values, each place in memory once: the least that has to be read or written."""
    tensors: list[torch.Tensor] = []
    for value in values:
        flatten(value, tensors)
    places = {tensor.data_ptr(): tensor.numel() * tensor.element_size() for tensor in tensors if tensor.numel()}
    return sum(places.values())
