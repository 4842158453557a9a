"""Keeps libraries from spending more on their threads than the threads save."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Run torch on the calling thread alone, and restore the setting afterwards.

    The frame loop's tensors are small. After each parallel operation torch's helper threads go on spinning for a while,
    and beside a video encoder and OpenCV's own threads that has cost ten times what the operations take.
    """
    before = torch.get_num_threads()
    if before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
