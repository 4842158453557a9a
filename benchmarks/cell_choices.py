"""The pipeline's choice of cells on a picture, and the detail at which a choice shows each cell."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from arr_stream.config import Settings
from arr_stream.keyframes.base import PARTS, PartName, PartValue
from arr_stream.keyframes.embeddings import find_pca, make_text_encoder
from arr_stream.keyframes.generate import InStepKeyframes, Job, KeyframeGenerator, KeyframeRequest, make_generator
from arr_stream.pipeline import Pipeline
from arr_stream.relevance.query import parse_text
from arr_stream.selection.allocation import Allocation
from arr_stream.types import ByteArray, FloatArray, Frame


def shown_detail(cells: Allocation, shape_hw: tuple[int, int]) -> FloatArray:
    """`[gh, gw]`, share of the texture's pixels at which each cell is shown, by the finest that shows it: 0 for none,
    1 fine or finer."""
    shown = np.zeros(shape_hw, np.float32)
    for level in sorted(set(cells.level.tolist()), reverse=True):
        span = 1 << max(level, 0)
        for row, column in zip(cells.rows[cells.level == level], cells.columns[cells.level == level], strict=True):
            shown[row : row + span, column : column + span] = 0.25 ** max(level, 0)
    return shown


Made = dict[tuple[int, PartName], tuple[PartValue, str, float]]


class RememberedGenerator:
    """A generator that makes each part of a frame once, however often it is asked for.

    Args:
        inner: Makes them.
        made: What was made, by frame and part, and whether text was to be read.
        parts: What is made at all.

    Attributes:
        spent_ms, owed_ms: What making took, and what it would have taken without a memory.
    """

    def __init__(self, inner: KeyframeGenerator, made: Made, parts: Iterable[PartName]) -> None:
        self._inner = inner
        self._made = made
        self._parts = frozenset(parts)
        self.spent_ms = 0.0
        self.owed_ms = 0.0

    def jobs(self, request: KeyframeRequest) -> Mapping[PartName, Job]:
        # Text known from earlier frames would change the result, and differs from run to run.
        jobs = self._inner.jobs(replace(request, text_before=None))
        return {
            part: partial(self._make, (request.frame.index, part), jobs[part]) for part in jobs if part in self._parts
        }

    def _make(self, key: tuple[int, PartName], job: Job) -> tuple[PartValue, str]:
        if key not in self._made:
            started = time.perf_counter()
            value, backend = job()
            took_ms = (time.perf_counter() - started) * 1e3
            self._made[key] = value, backend, took_ms
            self.spent_ms += took_ms
        value, backend, took_ms = self._made[key]
        self.owed_ms += took_ms
        return value, backend


class OurChoice:
    """Choice of the pipeline for a picture and its query, as on the first frame of a stream.

    Args:
        settings: All but the budget.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._encoder = make_text_encoder(settings)
        self._pca = find_pca(settings, self._encoder)
        self._inner = make_generator(settings)
        self._picture: ByteArray | None = None
        self._made: Made = {}

    def choose(self, rgb: ByteArray, queries: Sequence[str], tokens: int) -> tuple[Allocation, float]:
        """The cells, and the milliseconds that it took, generation counted in even where it was remembered.

        It is remembered as long as the same array is asked about.
        """
        if self._picture is not rgb:
            self._picture, self._made = rgb, {}
        generator = RememberedGenerator(self._inner, self._made, PARTS)
        pipeline = Pipeline(
            self._settings.with_values({"selection.budget": str(tokens)}),
            InStepKeyframes(generator),
            [parse_text(query) for query in queries],
            encoder=self._encoder,
            pca=self._pca,
        )
        started = time.perf_counter()
        patches = pipeline.step(Frame(0, 0.0, rgb))
        milliseconds = (time.perf_counter() - started) * 1e3 + generator.owed_ms - generator.spent_ms
        return Allocation(patches.rows, patches.columns, patches.level, patches.score), milliseconds
