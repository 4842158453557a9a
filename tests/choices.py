"""Patch sets, and answers on them, for tests of what is made of them."""

from __future__ import annotations

import functools
import os
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from arr_stream.consumer import Consumer
from arr_stream.motion.flow import Flow
from arr_stream.patch_set import Answer, Feeding, PatchSet
from arr_stream.records.schema import Header
from arr_stream.sources.base import SourceInfo, SourceKind
from arr_stream.types import FINER, SCORERS, ByteArray, Frame, Grid
from tests.textures import random_texture


@dataclass(frozen=True)
class PlainSource(SourceInfo):
    """A silent file of 30 frames a second."""

    name: str = "street.mp4"
    kind: SourceKind = "file"
    size_wh: tuple[int, int] = (96, 64)
    codec: str = "h264"
    average_fps: float | None = 30.0


FED = Feeding(40, 12, 1843, 9 << 20, 31.5, 48.25, "cut")

texture = functools.cache(random_texture)


def header(size_wh: tuple[int, int] = (200, 120), **changes: Any) -> Header:
    """The header of records of frames of this size."""
    values = {"source": "street.mp4", "query": ["red"], "budget_tokens": 20, "config": {"keyframes": {"interval": 30}}}
    return Header.for_grid(Grid.for_size(size_wh), **(values | changes))


def choose(frame: Frame, **changes: Any) -> PatchSet:
    """About half of the cells at random, one of them finer, and a coarse one; `changes` replace fields of the set."""
    grid = changes.get("grid") or Grid.for_size(frame.size_wh)
    rng = np.random.default_rng(frame.index)
    count = max(1, grid.cells // 2)
    places = rng.permutation(grid.cells)[:count]
    rows, columns = (axis.astype(np.int32) for axis in np.unravel_index(places, (grid.rows, grid.columns)))
    level = np.zeros(count, np.int32)
    if count > 1:
        level[-1] = 2
    if count > 2:
        level[0] = FINER
    flow = Flow.still((max(1, frame.size_wh[1] // 4), max(1, frame.size_wh[0] // 4)))
    keyframe = frame.index % 5 == 0
    fields: dict[str, Any] = {
        "index": frame.index,
        "pts_seconds": frame.pts_seconds,
        "grid": grid,
        "rows": rows,
        "columns": columns,
        "level": level,
        "score": np.sort(rng.random(count).astype(np.float32))[::-1].copy(),
        "scorer": rng.integers(0, len(SCORERS), count).astype(np.int32),
        "query": rng.integers(-1, 2, count).astype(np.int32),
        "carried": rng.random(count) < 0.5,
        "fresh": rng.random(count) < 0.5,
        "confidence": 0.75,
        "keyframe": keyframe,
        "refresh_reason": ("interval" if frame.index else "first") if keyframe else None,
        "keyframe_age": frame.index % 5,
        "keyframe_index": frame.index - frame.index % 5,
        "query_scores": (0.5, 0.25),
        "cells_scored": count,
        "texture": texture(),
        "relevance": rng.random((grid.rows, grid.columns)).astype(np.float32),
        "flow": flow,
        "latency_ms": {"flow": 1.5, "select": 2.0 + frame.index % 3, "keyframe": 40.0 if keyframe else 0.0},
    }
    return PatchSet(**(fields | changes))


def answer_on(patches: PatchSet, **changes: Any) -> Answer:
    """An answer that rested on the chosen cells, on the first of them most; `changes` replace fields of it."""
    weight = 0.5 ** np.arange(len(patches), dtype=np.float32)
    cells = np.concatenate([patches.cells_xyxy, (weight / weight.sum())[:, None]], axis=1)
    fields: dict[str, Any] = {
        "question": "What is red?",
        "text": "A square that goes right.",
        "frame_index": patches.index,
        "pts_seconds": patches.pts_seconds,
        "model": "Qwen/Qwen3-VL-2B-Instruct",
        "cells": cells,
        "cell_frames": np.full(len(cells), patches.index, np.int32),
        "visual_tokens": 1790,
        "prompt_tokens": 14,
        "answer_tokens": 6,
        "prefill_ms": 61.0,
        "decode_ms": 120.4,
        "memory_tokens": 1843,
        "cache_bytes": 9 << 20,
    }
    return Answer(**(fields | changes))


def without_cells(frame: Frame, **changes: Any) -> PatchSet:
    """A patch set in which nothing was chosen."""
    names = ("rows", "columns", "level", "score", "scorer", "query", "carried", "fresh")
    return choose(frame, **{name: getattr(choose(frame), name)[:0] for name in names} | changes)


def frames_of(pictures: list[ByteArray], pts: list[float] | None = None, *, fps: float = 30.0) -> list[Frame]:
    """Pictures as frames at given or even times."""
    times = pts if pts is not None else [index / fps for index in range(len(pictures))]
    return [Frame(index, time, picture) for index, (picture, time) in enumerate(zip(pictures, times, strict=True))]


def killed_after_consuming(make: Callable[[], Consumer], frames: list[Frame]) -> None:
    """What a run leaves that dies without a word: a copy of this process hands the frames over, then kills itself."""
    child = os.fork()
    if not child:
        try:
            consumer = make()
            for frame in frames:
                consumer.consume(frame, choose(frame))
            os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL


@contextmanager
def files_no_larger_than(size_bytes: int) -> Iterator[None]:
    """As if the disk were full then."""
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def boxes(path: Path) -> list[str]:
    """Names of the top-level boxes of an MP4."""
    data, place, names = path.read_bytes(), 0, []
    while place + 8 <= len(data):
        size, name = int.from_bytes(data[place : place + 4], "big"), data[place + 4 : place + 8].decode("latin1")
        names.append(name)
        if size == 1:
            size = int.from_bytes(data[place + 8 : place + 16], "big")
        if size < 8:
            break
        place += size
    return names
