"""Several settings on the same footage, frame by frame in turns, so that what differs is the settings alone.

What keyframes find depends on the picture and not on who asks, so each part is made once a frame and handed to every
variant that makes it the same way; its time is booked to each of them.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from arr_stream.config import Settings
from arr_stream.consumer import total_ms
from arr_stream.errors import EvaluationDataError
from arr_stream.evaluation.coverage import object_shares
from arr_stream.evaluation.davis import Sequence as Footage
from arr_stream.evaluation.davis import check_visible, load_sequences, read_paired, tight_box
from arr_stream.keyframes.base import PARTS, PartName, PartValue, TextEncoder
from arr_stream.keyframes.embeddings import find_pca, make_text_encoder
from arr_stream.keyframes.embeddings.pca import Pca
from arr_stream.keyframes.generate import InStepKeyframes, Job, KeyframeGenerator, KeyframeRequest, make_generator
from arr_stream.keyframes.sharing import maker_values
from arr_stream.patch_set import PatchSet
from arr_stream.pipeline import Pipeline
from arr_stream.relevance.query import Query, RegionQuery
from arr_stream.selection.allocation import Allocation
from arr_stream.selection.novelty import SeenCells
from arr_stream.texture.pictures import Pictures
from arr_stream.types import BoolArray, ByteArray, FloatArray, Frame, Grid

SAMPLES = Path(__file__).parent.parent / "sample_videos"
"""Generated clips with their truth, which lie beside the package."""


@dataclass(frozen=True, slots=True)
class Variant:
    """Settings to compare.

    Args:
        name: What stands in the report; unique.
        values: Settings that differ, by dotted key.
        parts: What keyframes make.
    """

    name: str
    values: Mapping[str, Any] = field(default_factory=dict)
    parts: tuple[PartName, ...] = PARTS


@dataclass(frozen=True, slots=True)
class Question:
    """How the object is looked for.

    Args:
        name: What stands in the report.
        region: By the tight box of the first mask; otherwise nothing is asked.
        budget: As `selection.budget`.
    """

    name: str
    region: bool
    budget: str


QUESTIONS = (
    Question("region 10%", True, "10%"),
    Question("region 25%", True, "25%"),
    Question("no query 10%", False, "10%"),
    Question("no query 25%", False, "25%"),
)


@dataclass(frozen=True, slots=True)
class Run:
    """One variant on one sequence under one question, means over its frames but the first.

    Args:
        variant, question, sequence: Which.
        coverage: Share of the object's pixels inside fine cells.
        context: Share of the frame inside any cell.
        held: Share of the object's pixels inside fine cells, chosen now or sent since the last refresh and unchanged.
        kept: Share of the fine cells that were chosen on the frame before as well.
        sent: Share of the chosen cells that are new to a model.
        frame_ms: Median time of a frame, what keyframes make left out.
        keyframe_ms: What keyframes made, spread over all frames.
        keyframe_share: Share of the frames that were keyframes, the first one included.
        choice: Hash of every choice; equal where nothing was chosen otherwise.
    """

    variant: str
    question: str
    sequence: str
    coverage: float
    context: float
    held: float
    kept: float
    sent: float
    frame_ms: float
    keyframe_ms: float
    keyframe_share: float
    choice: int

    @property
    def amortised_ms(self) -> float:
        return self.frame_ms + self.keyframe_ms


def usual_footage(folder: Path | None, most_frames: int | None = None) -> list[Footage]:
    """Sequences of a folder, or the generated clips that come with the project.

    Args:
        folder: None for the generated clips.
        most_frames: Frames of a sequence, from its first; None for all.

    Raises:
        EvaluationDataError: There are none.
    """
    if folder is None and not SAMPLES.is_dir():
        raise EvaluationDataError(
            f"{SAMPLES}: the generated clips are not there", remedy="name a folder with sequences and their masks"
        )
    return [_begun(footage, most_frames) for footage in load_sequences(folder or SAMPLES)]


def footage_name(folder: Path | None) -> str:
    """What `usual_footage` is called in a table."""
    return folder.name if folder is not None else "generated clips"


def _begun(footage: Footage, most_frames: int | None) -> Footage:
    if most_frames is None:
        return footage
    return replace(footage, frames=lambda: footage.frames()[:most_frames], masks=lambda: footage.masks()[:most_frames])


def run_in_turns(
    sequences: Sequence[Footage],
    variants: Sequence[Variant],
    *,
    settings: Settings | None = None,
    questions: Sequence[Question] = QUESTIONS,
    progress: Callable[[str], None] = lambda _: None,
) -> list[Run]:
    """Score every variant on every sequence under every question.

    Args:
        sequences: Footage with masks.
        variants: What is compared.
        settings: What all variants start from; the defaults for None.
        questions: What is asked.
        progress: Told what comes next.

    Raises:
        EvaluationDataError: Masks that do not fit, or an object that is not on the first frame and a later one.
    """
    makers = _Makers()
    runs: list[Run] = []
    for footage in sequences:
        frames, masks = read_paired(footage)
        check_visible(footage, masks)
        made: dict[str, Made] = {}
        for question in questions:
            progress(f"{footage.name}: {question.name}")
            running = []
            for variant in variants:
                chosen = (settings or Settings()).with_values({**variant.values, "selection.budget": question.budget})
                queries = [RegionQuery(tight_box(masks[0]))] if question.region else []
                running.append(_Running(variant, chosen, queries, makers, made))
            for index, mask in enumerate(masks):
                looked = _Looked(frames[index], mask)
                # Whoever comes first finds the picture cold.
                for each in random.Random(index).sample(running, len(running)):
                    each.step(index, looked)
            runs += [each.result(question.name, footage.name) for each in running]
    return runs


@dataclass(frozen=True, slots=True)
class _Maker:
    generator: KeyframeGenerator
    encoder: TextEncoder | None
    pca: Pca | None


class _Makers:
    """Models are loaded once for all variants that make keyframes the same way."""

    def __init__(self) -> None:
        self._known: dict[str, _Maker] = {}

    def of(self, settings: Settings) -> tuple[str, _Maker]:
        settings = _regions_at_once(settings)
        key = maker_values(settings)
        if key not in self._known:
            encoder = make_text_encoder(settings)
            self._known[key] = _Maker(make_generator(settings), encoder, find_pca(settings, encoder))
        return key, self._known[key]


def _regions_at_once(settings: Settings) -> Settings:
    """Regions that a variant reads are made with its keyframes: made when first read, one variant would pay for all."""
    reads = settings.selection.strategy != "topk" or settings.selection.cascade == "on"
    if reads and settings.keyframes.clusters == "auto":
        return settings.with_values({"keyframes.clusters": "slic"})
    return settings


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
        # What is found in a part of the picture depends on what was known before, which differs from run to run.
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


class _Looked:
    """What scoring needs of a frame, made once for all variants."""

    def __init__(self, frame: Frame, mask: BoolArray) -> None:
        self.frame = frame
        self._mask = mask
        self._by_grid: dict[tuple[int, int], tuple[FloatArray, ByteArray]] = {}

    def on(self, grid: Grid) -> tuple[FloatArray, ByteArray]:
        """`[gh, gw]` share of the object in each cell (zeros where it is absent), and the frame's lightness."""
        key = grid.rows, grid.columns
        if key not in self._by_grid:
            self._by_grid[key] = object_shares(self._mask, grid), Pictures(self.frame, grid).eighth_grey
        return self._by_grid[key]


class _Running:
    """One variant on one sequence."""

    def __init__(
        self,
        variant: Variant,
        settings: Settings,
        queries: Sequence[Query],
        makers: _Makers,
        made: dict[str, Made],
    ) -> None:
        key, maker = makers.of(settings)
        self._variant = variant
        self._generator = RememberedGenerator(maker.generator, made.setdefault(key, {}), variant.parts)
        keyframes = InStepKeyframes(self._generator)
        self._pipeline = Pipeline(
            settings, keyframes, queries, encoder=maker.encoder, pca=maker.pca, clock=time.perf_counter
        )
        self._seen: SeenCells | None = None
        self._before: BoolArray | None = None
        self._values: list[tuple[float, ...]] = []
        self._steps_ms: list[float] = []
        self._choice = self._frames_seen = self._keyframes = 0

    def step(self, index: int, looked: _Looked) -> None:
        generating_ms = self._generator.spent_ms
        patches = self._pipeline.step(looked.frame)
        generating_ms = self._generator.spent_ms - generating_ms
        patches.texture.planes.clear()
        self._frames_seen += 1
        self._keyframes += patches.keyframe
        shares, eighth_grey = looked.on(patches.grid)
        fine, shown = shown_cells(patches)
        held = fine | self._hold(patches, eighth_grey)
        if index > 0:
            self._steps_ms.append(total_ms(patches.latency_ms) - generating_ms)
            kept = float((fine & self._before).sum() / max(1, fine.sum())) if self._before is not None else 1.0
            seen = float(shares.sum()) > 0
            coverage, holding = (float(shares[cells].sum()) if seen else np.nan for cells in (fine, held))
            self._values.append((coverage, float(shown.mean()), holding, kept, float(patches.fresh.mean())))
        self._before = fine
        self._choice = hash((self._choice, fine.tobytes(), shown.tobytes()))

    def _hold(self, patches: PatchSet, eighth_grey: ByteArray) -> BoolArray:
        """`[gh, gw]`: cells that a model still has from before; the choice is then noted as sent."""
        if self._seen is None:
            self._seen = SeenCells(patches.grid)
        if patches.refresh_reason is not None:
            self._seen.forget()
        known = self._seen.known(eighth_grey)
        self._seen.send(Allocation(patches.rows, patches.columns, patches.level, patches.score), eighth_grey)
        return known

    def result(self, question: str, sequence: str) -> Run:
        coverage, context, held, kept, sent = np.nanmean(np.array(self._values), axis=0).tolist()
        return Run(
            variant=self._variant.name,
            question=question,
            sequence=sequence,
            coverage=coverage,
            context=context,
            held=held,
            kept=kept,
            sent=sent,
            frame_ms=float(np.median(self._steps_ms)),
            keyframe_ms=self._generator.owed_ms / self._frames_seen,
            keyframe_share=self._keyframes / self._frames_seen,
            choice=self._choice,
        )


def shown_cells(patches: PatchSet) -> tuple[BoolArray, BoolArray]:
    """`[gh, gw]` twice: cells that were chosen fine, and cells that are shown at any level of detail."""
    fine = np.zeros((patches.grid.rows, patches.grid.columns), bool)
    exact = patches.level <= 0
    fine[patches.rows[exact], patches.columns[exact]] = True
    shown = fine.copy()
    for row, column, span in zip(patches.rows[~exact], patches.columns[~exact], patches.span[~exact], strict=True):
        shown[row : row + span, column : column + span] = True
    return fine, shown
