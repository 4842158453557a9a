"""Several processes that train one model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed


class Together:
    """Two or more processes of one thread each that share their gradients once a step.

    On a machine with other work this is much faster than one process of two threads, which wait for each other in every
    operation.
    """

    def __init__(self, rank: int, processes: int, meeting_place: Path) -> None:
        self.rank, self.processes = rank, processes
        if processes > 1:
            store = torch.distributed.FileStore(str(meeting_place), processes)
            torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=processes)

    def average(self, parameters: Sequence[torch.nn.Parameter], spent: float) -> float:
        """Makes all gradients the mean over processes; returns the mean of `spent` too, so that all stop together."""
        if self.processes == 1:
            return spent
        grads = [p.grad if p.grad is not None else torch.zeros_like(p) for p in parameters]
        flat = torch.cat([torch.tensor([spent]), *(g.reshape(-1) for g in grads)])
        torch.distributed.all_reduce(flat)
        flat /= self.processes
        at = 1
        for parameter in parameters:
            parameter.grad = flat[at : at + parameter.numel()].view_as(parameter)
            at += parameter.numel()
        return float(flat[0])
