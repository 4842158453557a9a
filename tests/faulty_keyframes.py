"""Keyframe workers that fail when they are told to; otherwise they are the usual ones."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from arr_stream.config import Settings
from arr_stream.keyframes.base import PartName, PartValue
from arr_stream.keyframes.generate import Job, KeyframeGenerator, KeyframeRequest
from arr_stream.keyframes.worker import KeyframeWorker, standard_generator, worker_groups
from tests.keyframe_fakes import spoilt

ORDERS_VARIABLE = "ARR_STREAM_TEST_ORDERS"
ORDERS = ("raise", "memory", "nan", "hang")
"""What the next keyframe does, when a file of this name lies in the folder that the variable names."""

_MORE_THAN_THERE_IS = 1 << 46


def disturbed_workers(settings: Settings) -> tuple[KeyframeWorker, ...]:
    """The usual workers, with generators that take orders."""
    return tuple(
        KeyframeWorker(
            settings,
            parts=parts,
            factory="tests.faulty_keyframes:make_disturbed",
            timeout_seconds=settings.keyframes.timeout_seconds,
        )
        for parts in worker_groups(settings)
    )


def make_disturbed(settings: Mapping[str, Any], parts: Sequence[PartName]) -> KeyframeGenerator:
    """Called in the worker process."""
    return _Disturbed(standard_generator(settings, parts), Path(os.environ[ORDERS_VARIABLE]))


class _Disturbed:
    def __init__(self, usual: KeyframeGenerator, folder: Path) -> None:
        self._usual, self._folder = usual, folder

    def jobs(self, request: KeyframeRequest) -> Mapping[PartName, Job]:
        jobs = dict(self._usual.jobs(request))
        order = self._order()
        if order is not None:
            # The values of regions are not checked.
            part = "embedding" if order == "nan" else next(iter(jobs))
            usual = jobs[part]
            jobs[part] = lambda: _disturbed(order, usual)
        return jobs

    def _order(self) -> str | None:
        for order in ORDERS:
            try:
                (self._folder / order).unlink()
            except FileNotFoundError:
                continue
            return order
        return None


def _disturbed(order: str, usual: Job) -> tuple[PartValue, str]:
    match order:
        case "raise":
            raise ArithmeticError("the test told it to")
        case "memory":
            np.ones(_MORE_THAN_THERE_IS, np.uint8)
        case "hang":
            time.sleep(3600)
    value, backend = usual()
    return spoilt(value), backend
