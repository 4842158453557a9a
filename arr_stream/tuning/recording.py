"""Runs of the real pipeline, with what its choice was made from written down.

What a scorer sees depends on earlier choices (fixation), so a record is good for weights near those that it was made
with; `tuner` therefore records again after every fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from arr_stream.config import Settings
from arr_stream.errors import InvalidSetting
from arr_stream.evaluation.coverage import object_shares, score_cells
from arr_stream.evaluation.davis import check_visible, read_paired, tight_box
from arr_stream.keyframes.generate import InStepKeyframes
from arr_stream.patch_set import PatchSet
from arr_stream.pipeline import CellValues, Pipeline, change_of_cells
from arr_stream.relevance.query import Query, RegionQuery, parse_text
from arr_stream.relevance.scorers import SCORED_CHANNELS, Change, Sample
from arr_stream.stream import Models
from arr_stream.texture.array import CELL_LEVEL, Texture
from arr_stream.tuning.footage import Footage
from arr_stream.types import BoolArray, ByteArray, FloatArray, Frame

Kind = Literal["nothing", "region", "words"]
"""How the object is asked for: not at all, by the box of its first mask, or by its name."""

KINDS: tuple[Kind, ...] = ("nothing", "region", "words")


@dataclass(frozen=True, slots=True, eq=False)
class FrameTable:
    """What the scorers saw on one frame, and what they should have found.

    Args:
        sample: Channels and relevance of all cells.
        answered: Highest relevance of any of them.
        share: `[cells]`, share of the object's pixels that lies in each cell; sums to 1.
        fine: Fine cells that were chosen; the budget left room for so many.
    """

    sample: Sample
    answered: float
    share: Tensor
    fine: int


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """One sequence, asked in one way, through the pipeline.

    Args:
        footage: What was seen.
        kind: What was asked.
        indices: `[F]` frames that count: the object is on them, and they are not the first.
        coverage, context: `[F]` shares of the object in fine cells and of the frame in any, as `score_cells` has them.
        tokens: `[F]` cells chosen.
        cells_xyxy: For each of the frames, the fine cells chosen, `[n, 4]` in source pixels.
        tables: For each of the frames, where they were asked for.
    """

    footage: Footage
    kind: Kind
    indices: tuple[int, ...]
    coverage: FloatArray
    context: FloatArray
    tokens: FloatArray
    cells_xyxy: tuple[FloatArray, ...]
    tables: tuple[FrameTable, ...]


class _RecordingPipeline(Pipeline):
    """Keeps what the last choice was made from."""

    sample: Sample | None = None

    def _choose(self, state: Any, texture: Texture, values: CellValues, eighth_grey: Any, frame: Frame) -> Any:
        table = texture.mip(CELL_LEVEL, SCORED_CHANNELS).reshape(len(SCORED_CHANNELS), -1).T
        asked = values.relevance
        cells = np.zeros_like(asked.combined) if asked.word_cells is None else asked.word_cells.astype(np.float32)
        given = asked.combined, values.figure, cells
        relevance, moving, words = (torch.from_numpy(each.ravel().copy()) for each in given)
        change = change_of_cells(state.change, state.background.known, state.grid)
        changed = Change(*(torch.tensor(each) for each in (change.cells, change.certainty, change.known)))
        self.sample = Sample(table.clone(), relevance, moving, moving.max().expand(len(moving)), words, changed)
        return super()._choose(state, texture, values, eighth_grey, frame)


def _recording(queries: Sequence[Query], settings: Settings, models: Models) -> _RecordingPipeline:
    keyframes = InStepKeyframes(models.generator)
    return _RecordingPipeline(settings, keyframes, list(queries), encoder=models.encoder, pca=models.pca)


def look(rgb: ByteArray, queries: Sequence[Query], settings: Settings, models: Models) -> tuple[Sample, PatchSet]:
    """What the scorers see on a picture, the first frame of a stream, and what is chosen.

    Args:
        rgb: `[H, W, 3]`.
        queries: What is looked for.
        settings: As for any stream; `selection.budget` says how many tokens.
        models: Of these settings.
    """
    pipeline = _recording(queries, settings, models)
    patches = pipeline.step(Frame(0, 0.0, rgb))
    assert pipeline.sample is not None
    return pipeline.sample, patches


def checked_kinds(names: Sequence[str]) -> tuple[Kind, ...]:
    """Ways to ask, each once.

    Raises:
        InvalidSetting: A name that is none of `KINDS`.
    """
    for name in names:
        if name not in KINDS:
            raise InvalidSetting(f"--ask {name!r}", remedy=f"write {', '.join(KINDS[:-1])} or {KINDS[-1]}")
    return tuple(kind for kind in KINDS if kind in names)


def kinds_of(footage: Footage, kinds: Sequence[Kind]) -> tuple[Kind, ...]:
    """Those of the ways to ask that this footage knows."""
    return tuple(kind for kind in kinds if kind != "words" or footage.words)


def run(footage: Footage, kind: Kind, settings: Settings, *, tables: bool = False) -> Run:
    """Send a sequence through the pipeline, every keyframe in step.

    Args:
        footage: What is seen.
        kind: What is asked.
        settings: As for any stream; `selection.budget` says how many tokens.
        tables: Write down what the scorers saw.

    Raises:
        EvaluationDataError: Masks that do not fit the frames, or an object that is not there to be asked for.
    """
    frames, masks = read_paired(footage.sequence)
    check_visible(footage.sequence, masks, boxed=kind == "region")
    counted = tuple(index for index in range(1, len(masks)) if masks[index].any())
    pipeline = _recording(_queries(footage, kind, masks[0]), settings, Models.load(settings))
    chosen, found = [], []
    for frame, mask in zip(frames, masks, strict=True):
        patches = pipeline.step(frame)
        if frame.index and mask.any():
            chosen.append((patches, mask))
            if tables and pipeline.sample is not None:
                found.append(_table(pipeline.sample, patches, mask))
    return _scored(footage, kind, counted, chosen, found)


def _queries(footage: Footage, kind: Kind, first: BoolArray) -> list[Query]:
    if kind == "region":
        return [RegionQuery(tight_box(first), 0.0)]
    return [parse_text(footage.words)] if kind == "words" else []


def _scored(
    footage: Footage,
    kind: Kind,
    indices: tuple[int, ...],
    chosen: list[tuple[PatchSet, BoolArray]],
    tables: list[FrameTable],
) -> Run:
    scores = [score_cells(mask, patches.cells_xyxy, patches.grid.cell_px) for patches, mask in chosen]
    coverage, context = np.array(scores, np.float32).T
    return Run(
        footage,
        kind,
        indices,
        coverage,
        context,
        np.array([patches.tokens for patches, _ in chosen], np.float32),
        tuple(patches.cells_xyxy[patches.level <= 0] for patches, _ in chosen),
        tuple(tables),
    )


def _table(sample: Sample, patches: PatchSet, mask: BoolArray) -> FrameTable:
    share = torch.from_numpy(object_shares(mask, patches.grid).ravel())
    return FrameTable(sample, float(sample.relevance.max()), share, int((patches.level <= 0).sum()))
