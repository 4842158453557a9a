"""Runs of the real pipeline that record the inputs of its choices.

The input of a scorer depends on earlier choices (fixation), so a record is valid for weights near those that it was
made with; `tuner` therefore records again after every fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch

from arr_stream.config import Settings
from arr_stream.evaluation.coverage import object_shares, score_cells
from arr_stream.evaluation.footage import Footage, read_paired, tight_box
from arr_stream.keyframes.generate import InStepKeyframes
from arr_stream.pipeline import Pipeline
from arr_stream.relevance.query import Query, RegionQuery
from arr_stream.relevance.scorers import SCORED_CHANNELS, Change, Sample
from arr_stream.selection.selector import CellValues, change_of_cells
from arr_stream.stream import Models
from arr_stream.texture.array import CELL_LEVEL, Texture
from arr_stream.tuning.fitting import FrameTable
from arr_stream.types import FloatArray, Frame

Kind = Literal["nothing", "region"]
"""Query for the object: none, or the box of its first mask."""

KINDS = get_args(Kind)


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Run of the pipeline with one query over the `F` frames that count: the object is visible, and not the first.

    Args:
        footage: Its frames and masks.
        kind: Kind of query.
        coverage: `[F]`, share of the object in fine cells, see `score_cells`.
        tables: Inputs of the scorers on each frame.
    """

    footage: Footage
    kind: Kind
    coverage: FloatArray
    tables: tuple[FrameTable, ...]


class _RecordingPipeline(Pipeline):
    """Pipeline that keeps the inputs of the last choice."""

    sample: Sample

    def _choose(self, state: Any, texture: Texture, values: CellValues, eighth_grey: Any, frame: Frame) -> Any:
        table = texture.mip(CELL_LEVEL, SCORED_CHANNELS).reshape(len(SCORED_CHANNELS), -1).T
        asked, change = values.relevance, change_of_cells(state.change, state.background.known, state.grid)

        def every(value: Any) -> torch.Tensor:
            return torch.as_tensor(value, dtype=torch.float32).clone().ravel().expand(len(table))

        words = 0.0 if asked.word_cells is None else asked.word_cells
        self.sample = Sample(
            table.clone(),
            every(asked.combined),
            every(values.figure),
            every(values.figure.max()),
            every(words),
            Change(*map(every, (change.cells, change.certainty, change.known))),
        )
        return super()._choose(state, texture, values, eighth_grey, frame)


def run(footage: Footage, kind: Kind, settings: Settings) -> Run:
    """Send footage through the pipeline, every keyframe in step.

    Args:
        footage: Its frames and masks.
        kind: Kind of query.
        settings: As for any stream; `selection.budget` is the token budget.

    Raises:
        EvaluationDataError: The masks do not fit the frames, or the object for the query is not visible.
    """
    frames, masks = read_paired(footage, boxed=kind == "region")
    models = Models.load(settings)
    queries: list[Query] = [RegionQuery(tight_box(masks[0]))] if kind == "region" else []
    keyframes = InStepKeyframes(models.generator)
    pipeline = _RecordingPipeline(settings, keyframes, queries, encoder=models.encoder, pca=models.pca)
    coverage: list[float] = []
    tables: list[FrameTable] = []
    for frame, mask in zip(frames, masks, strict=True):
        patches = pipeline.step(frame)
        if not frame.index or not mask.any():
            continue
        coverage.append(score_cells(mask, patches.cells_xyxy, patches.grid.cell_px)[0])
        share = torch.from_numpy(object_shares(mask, patches.grid).ravel())
        tables.append(FrameTable(pipeline.sample, share, int((patches.level <= 0).sum())))
    return Run(footage, kind, np.array(coverage, np.float32), tuple(tables))
