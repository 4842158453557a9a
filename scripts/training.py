"""Parts shared by the training scripts: processes that share their gradients, learning rates, Ctrl-C."""

from __future__ import annotations

import math
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed
import torch.multiprocessing

Optimisers = Sequence[torch.optim.Optimizer]


def optimisers(
    matrices: Sequence[torch.nn.Parameter], rest: Sequence[torch.nn.Parameter], *, lr: float, muon_lr: float
) -> list[torch.optim.Optimizer]:
    """Muon for the blocks' matrices where there are any (Jordan et al., 2024), AdamW for the rest."""
    made: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(
            [
                {"params": [p for p in rest if p.ndim >= 2], "weight_decay": 0.05},
                {"params": [p for p in rest if p.ndim < 2], "weight_decay": 0.0},
            ],
            lr=lr,
            betas=(0.9, 0.98),
        )
    ]
    if matrices:
        made.append(torch.optim.Muon(matrices, lr=muon_lr, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"))
    for optimiser in made:
        for group in optimiser.param_groups:
            group["full_lr"] = group["lr"]
    return made


def set_rate(made: Optimisers, step: int, spent: float) -> None:
    """Warm-up over 100 steps, then level, then down along a cosine to 2% over the last 0.6 of the time."""
    fall = max(0.0, (spent - 0.4) / 0.6)
    factor = min(1.0, (step + 1) / 100) * max(0.02, 0.5 + 0.5 * math.cos(math.pi * fall))
    for optimiser in made:
        for group in optimiser.param_groups:
            group["lr"] = group["full_lr"] * factor


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

    def average(self, parameters: Sequence[torch.nn.Parameter], *figures: float) -> tuple[float, ...]:
        """Makes all gradients the mean over processes, and gives the means of figures that all must agree on."""
        if self.processes == 1:
            return figures
        grads = [p.grad if p.grad is not None else torch.zeros_like(p) for p in parameters]
        flat = torch.cat([torch.tensor(figures), *(g.reshape(-1) for g in grads)])
        torch.distributed.all_reduce(flat)
        flat /= self.processes
        at = len(figures)
        for parameter in parameters:
            parameter.grad = flat[at : at + parameter.numel()].view_as(parameter)
            at += parameter.numel()
        return tuple(flat[: len(figures)].tolist())


class Interruption:
    """Ctrl-C as a flag: a process that stopped within a step would leave the others waiting for its gradients."""

    def __init__(self) -> None:
        self.asked = False
        signal.signal(signal.SIGINT, self._ask)

    def _ask(self, *_: object) -> None:
        self.asked = True


class Means:
    """Running means of figures."""

    def __init__(self) -> None:
        self._mean: dict[str, float] = {}

    def note(self, figures: Iterable[tuple[str, float]]) -> None:
        for name, value in figures:
            self._mean[name] = 0.95 * self._mean.get(name, value) + 0.05 * value

    def __str__(self) -> str:
        return " ".join(f"{name} {value:.3f}" for name, value in self._mean.items())


def run(train: Callable[..., None], args: Any, processes: int, meeting_place: Path) -> None:
    """Call `train(rank, args)` in so many processes; the calling one waits through Ctrl-C until they have saved."""
    meeting_place.unlink(missing_ok=True)
    try:
        if processes == 1:
            train(0, args)
        else:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
            torch.multiprocessing.spawn(train, args=(args,), nprocs=processes, daemon=True)
    finally:
        meeting_place.unlink(missing_ok=True)
