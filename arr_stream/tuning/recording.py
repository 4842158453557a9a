"""Runs of the real pipeline that record the inputs of its choices.

The input of a scorer depends on earlier choices (fixation), so a record is valid for weights near those that it was
made with; `tuner` therefore records again after every fit.
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
from arr_stream.pipeline import Pipeline
from arr_stream.relevance.query import Query, RegionQuery, parse_text
from arr_stream.relevance.scorers import SCORED_CHANNELS, Change, Sample
from arr_stream.selection.frame_scores import change_of_cells
from arr_stream.selection.selector import CellValues
from arr_stream.stream import Models
from arr_stream.texture.array import CELL_LEVEL, Texture
from arr_stream.tuning.footage import Footage
from arr_stream.types import BoolArray, FloatArray, Frame

Kind = Literal["nothing", "region", "words"]
"""Query for the object: none, the box of its first mask, or its name."""

KINDS: tuple[Kind, ...] = ("nothing", "region", "words")


@dataclass(frozen=True, slots=True, eq=False)
class FrameTable:
    """Inputs of the scorers on one frame, and the cells that they should have found.

    Args:
        sample: Channels and relevance of all cells.
        answered: Highest relevance of any of them.
        share: `[cells]`, share of the object's pixels in each cell; sums to 1.
        fine: Number of fine cells that were chosen within the budget.
    """

    sample: Sample
    answered: float
    share: Tensor
    fine: int


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Run of one sequence with one query through the pipeline.

    Args:
        footage: The sequence.
        kind: Kind of query.
        indices: `[F]` frames that count: the object is visible on them, and they are not the first.
        coverage, context: `[F]` shares of the object in fine cells and of the frame in any, as `score_cells` returns
        them.
        tokens: `[F]` cells chosen.
        tables: Tables of the frames, if requested.
    """

    footage: Footage
    kind: Kind
    indices: tuple[int, ...]
    coverage: FloatArray
    context: FloatArray
    tokens: FloatArray
    tables: tuple[FrameTable, ...]


class _RecordingPipeline(Pipeline):
    """Pipeline that keeps the inputs of the last choice."""

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


def checked_kinds(names: Sequence[str]) -> tuple[Kind, ...]:
    """Return the kinds of query, each once.

    Raises:
        InvalidSetting: A name is not in `KINDS`.
    """
    for name in names:
        if name not in KINDS:
            raise InvalidSetting(f"--ask {name!r}", remedy=f"write {', '.join(KINDS[:-1])} or {KINDS[-1]}")
    return tuple(kind for kind in KINDS if kind in names)


def kinds_of(footage: Footage, kinds: Sequence[Kind]) -> tuple[Kind, ...]:
    """Return the kinds of query that this footage supports."""
    return tuple(kind for kind in kinds if kind != "words" or footage.words)


def run(footage: Footage, kind: Kind, settings: Settings, *, tables: bool = False) -> Run:
    """Send a sequence through the pipeline, every keyframe in step.

    Args:
        footage: The sequence.
        kind: Kind of query.
        settings: As for any stream; `selection.budget` is the token budget.
        tables: Record the scorers' inputs.

    Raises:
        EvaluationDataError: The masks do not fit the frames, or the object for the query is not visible.
    """
    frames, masks = read_paired(footage.sequence)
    check_visible(footage.sequence, masks, boxed=kind == "region")
    counted = tuple(index for index in range(1, len(masks)) if masks[index].any())
    models, queries = Models.load(settings), _queries(footage, kind, masks[0])
    keyframes = InStepKeyframes(models.generator)
    pipeline = _RecordingPipeline(settings, keyframes, queries, encoder=models.encoder, pca=models.pca)
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
        tuple(tables),
    )


def _table(sample: Sample, patches: PatchSet, mask: BoolArray) -> FrameTable:
    share = torch.from_numpy(object_shares(mask, patches.grid).ravel())
    return FrameTable(sample, float(sample.relevance.max()), share, int((patches.level <= 0).sum()))
