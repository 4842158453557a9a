"""A long stream with many rebuilds: whether memory stays flat and the cache within what was stated for it."""

from __future__ import annotations

import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from arr_stream.config import Settings
from arr_stream.evaluation.tables import ResultTable, fields_of
from arr_stream.extras import need
from arr_stream.keyframes.generate import InStepKeyframes, make_generator
from arr_stream.pipeline import Pipeline
from arr_stream.types import Frame
from arr_stream.vlm.qwen3_vl.viewer import QwenViewer
from benchmarks.scenes.clips import FPS, panning
from benchmarks.vlm.model import Timed
from benchmarks.vlm.passes import QUESTION

SIZE_WH = (448, 256)
TOKENS = 48
_FIFTHS = 5
_SCENES = 4
_ANSWER_TOKENS = 4
_ASK_EVERY = 50


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """A stream of which the model is shown every frame.

    Args:
        frames: Frames shown.
        asked: Questions asked on the way.
        context_tokens: Most tokens in the memory.
        budget_bytes: What that many take in the key-value cache.
        cache_peak_bytes: Largest cache, questions and answers included.
        tokens_peak: Most tokens after a frame.
        rebuilds: How often the memory was rebuilt, by reason.
        resident_mb: Median resident memory of the process in each fifth of the stream, in millions of bytes; the
            first holds what is set up once.
        resident_peak_mb: The most there was at the end of a frame.
        seconds: How long it took.
    """

    frames: int
    asked: int
    context_tokens: int
    budget_bytes: int
    cache_peak_bytes: int
    tokens_peak: int
    rebuilds: dict[str, int]
    resident_mb: tuple[float, ...]
    resident_peak_mb: float
    seconds: float

    @property
    def growth_mb(self) -> float:
        """Last fifth against the second: what leaks would show."""
        return self.resident_mb[-1] - self.resident_mb[1]

    @property
    def table(self) -> ResultTable:
        rebuilt = ", ".join(f"{count} x {why}" for why, count in self.rebuilds.items()) or "none"
        rows = (
            ("rebuilds", rebuilt),
            (
                f"cache, largest, of what {self.context_tokens} tokens take",
                f"{self.cache_peak_bytes / 1e6:.1f} of {self.budget_bytes / 1e6:.1f} MB",
            ),
            ("resident memory, median of each fifth", f"{', '.join(f'{each:.0f}' for each in self.resident_mb)} MB"),
            ("resident memory, last fifth against the second", f"{self.growth_mb:+.1f} MB"),
            ("resident memory, largest", f"{self.resident_peak_mb:.0f} MB"),
        )
        return ResultTable(f"{self.frames} frames, {self.asked} questions", ("what", "measured"), rows)

    def facts(self) -> Mapping[str, Any]:
        return {**dict(fields_of(self)), "growth_mb": self.growth_mb}


def bench_memory(
    model: Timed, settings: Settings, *, count: int, context_tokens: int, progress: Callable[[str], None]
) -> MemoryReport:
    """Show a model a long made-up stream with cuts in it, and ask now and then.

    Args:
        model: What to show it to.
        settings: Of perception and of the viewer; budget, context and length of answers are set here.
        count: Frames.
        context_tokens: `vlm.context_tokens`; small enough for many rebuilds.
        progress: Told how far it is.
    """
    need("psutil", "measuring memory")
    settings = settings.with_values(
        {
            "selection.budget": str(TOKENS),
            "vlm.context_tokens": context_tokens,
            "vlm.answer_tokens": _ANSWER_TOKENS,
        }
    )
    pipeline = Pipeline(settings, InStepKeyframes(make_generator(settings)))
    viewer = QwenViewer(model.loaded, settings)
    resident: list[float] = []
    rebuilds: Counter[str] = Counter()
    asked = cache_peak = tokens_peak = 0
    started = time.perf_counter()
    for frame in _scenes(count):
        feeding = viewer.see(frame, pipeline.step(frame))
        cache_peak, tokens_peak = max(cache_peak, feeding.cache_bytes), max(tokens_peak, feeding.memory_tokens)
        if feeding.rebuilt is not None:
            rebuilds[feeding.rebuilt] += 1
        if (frame.index + 1) % _ASK_EVERY == 0:
            cache_peak = max(cache_peak, viewer.ask(QUESTION).cache_bytes)
            asked += 1
            progress(f"memory, frame {frame.index + 1} of {count}")
        resident.append(_resident_bytes() / 1e6)
    context = viewer.context_tokens
    viewer.close()
    return MemoryReport(
        frames=count,
        asked=asked,
        context_tokens=context,
        budget_bytes=context * model.cache_bytes_per_token,
        cache_peak_bytes=cache_peak,
        tokens_peak=tokens_peak,
        rebuilds=dict(sorted(rebuilds.items())),
        resident_mb=tuple(statistics.median(fifth) for fifth in _fifths(resident)),
        resident_peak_mb=max(resident),
        seconds=time.perf_counter() - started,
    )


def _scenes(count: int) -> Iterator[Frame]:
    """One stream of several scenes, with a cut between them."""
    length = -(-count // _SCENES)
    for index in range(count):
        if index % length == 0:
            scene = panning(SIZE_WH, length, seed=index // length)
        frame = next(scene)
        yield Frame(index, index / FPS, frame.rgb)


def _fifths(values: list[float]) -> list[list[float]]:
    borders = [len(values) * fifth // _FIFTHS for fifth in range(_FIFTHS + 1)]
    return [values[start:end] for start, end in pairwise(borders)]


def _resident_bytes() -> int:
    import psutil  # type: ignore[import-untyped]

    return int(psutil.Process(os.getpid()).memory_info().rss)
