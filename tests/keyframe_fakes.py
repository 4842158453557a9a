"""Generators that misbehave in one way each, for the worker process to be tested with."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from arr_stream.errors import BackendUnavailable
from arr_stream.keyframes.base import KeyframeInput, ObjectFinding, PartName, PartValue, TextFinding
from arr_stream.keyframes.generate import Job, KeyframeGenerator, KeyframeRequest
from arr_stream.types import ByteArray, Clusters, Embedding, Frame, Grid

SIZE_WH = (96, 64)


def request(index: int, size_wh: tuple[int, int] = SIZE_WH) -> KeyframeRequest:
    """A frame whose every pixel tells its index."""
    rgb = np.full((size_wh[1], size_wh[0], 3), index % 251, np.uint8)
    return KeyframeRequest(Frame(index, index / 30, rgb), Grid.for_size(size_wh))


def seen(rgb: ByteArray) -> KeyframeInput:
    """A picture as the parts of generation see it."""
    return KeyframeInput(Frame(0, 0.0, rgb), Grid.for_size((rgb.shape[1], rgb.shape[0])))


def parts(made_from: KeyframeRequest) -> dict[PartName, tuple[PartValue, str]]:
    """One region; the embedding holds the picture's mean, so that tests see what arrived."""
    rows, columns = made_from.grid.rows, made_from.grid.columns
    clusters = Clusters(
        np.zeros((rows * 8, columns * 8), np.int32), np.ones(1, np.float32), np.full((1, 2), 0.5, np.float32), "fake"
    )
    embedding = np.full((16, rows * 2, columns * 2), made_from.frame.rgb.mean() / 255, np.float32)
    mask = np.zeros((rows * 8, columns * 8), np.float32)
    return {
        "clusters": (clusters, "fake"),
        "embedding": (Embedding(embedding, "fake"), str(os.getpid())),
        "text": (TextFinding(mask), "none"),
        "objects": (ObjectFinding(()), "none"),
    }


class Fake:
    """Does what `settings["do"]` says, on all frames or by the frame's index, else works.

    - `raise`, `nan`, `exit`, `segfault`: as named
    - `hang`: never comes back
    - `sleep`: takes `settings["seconds"]`
    - `priority`: reports its niceness as the backend of its clusters

    `settings["to"]` are the parts that it happens to (the first where not given).
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = settings

    def jobs(self, request: KeyframeRequest) -> Mapping[PartName, Job]:
        made = parts(request)
        return {part: lambda part=part: self._make(part, made[part], request) for part in request.parts}  # type: ignore[misc]

    def _make(self, part: PartName, made: tuple[PartValue, str], request: KeyframeRequest) -> tuple[PartValue, str]:
        if part not in self.settings.get("to", request.parts[:1]):
            return made
        do = self.settings.get("do")
        match do.get(request.frame.index) if isinstance(do, Mapping) else do:
            case "raise":
                raise ArithmeticError("raised by the fake")
            case "nan":
                return spoilt(made[0]), made[1]
            case "exit":
                sys.stderr.write("last words\n")
                sys.stderr.flush()
                os._exit(7)
            case "segfault":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "hang":
                time.sleep(3600)
            case "sleep":
                time.sleep(self.settings["seconds"])
            case "priority":
                return made[0], str(os.nice(0))
        return made


def spoilt(value: PartValue) -> PartValue:
    """The same with values that are not numbers."""
    match value:
        case Clusters():
            return replace(value, areas=np.full_like(value.areas, np.nan))
        case Embedding():
            return replace(value, values=np.full_like(value.values, np.nan))
        case TextFinding():
            return replace(value, mask=np.full_like(value.mask, np.nan))


def make_fake(settings: Mapping[str, Any], parts: Sequence[PartName]) -> KeyframeGenerator:
    return Fake(settings)


def make_unavailable(settings: Mapping[str, Any], parts: Sequence[PartName]) -> KeyframeGenerator:
    raise BackendUnavailable("text nothing needs a package", remedy="install it")


def make_broken(settings: Mapping[str, Any], parts: Sequence[PartName]) -> KeyframeGenerator:
    raise KeyError("no such thing")


def make_slowly(settings: Mapping[str, Any], parts: Sequence[PartName]) -> KeyframeGenerator:
    time.sleep(settings["start_seconds"])
    return Fake(settings)


def make_dying(settings: Mapping[str, Any], parts: Sequence[PartName]) -> KeyframeGenerator:
    os._exit(9)
