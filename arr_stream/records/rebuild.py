"""A patch set from a frame's record: what can be drawn of it, without the channels behind the choice."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import MISSING, fields, replace
from typing import Any

import numpy as np
from pydantic import BaseModel

from arr_stream.answers import MOST_TOLD_CELLS, TOLD_SHARE
from arr_stream.errors import EvaluationDataError
from arr_stream.patch_set import Answer, Feeding, PatchSet
from arr_stream.records.schema import (
    AnswerRecord,
    FrameRecord,
    Header,
    ObjectRecord,
    answer_record,
    recorded_scores,
    written_fields,
)
from arr_stream.texture.array import Texture
from arr_stream.types import FINER, SCORERS, DetectedObject, FloatArray, Grid, IntArray, span_cells

_ROUNDING_PX = 0.02
_LOWEST_LEVEL, _HIGHEST_LEVEL = FINER, 5
_LEAST_SHARE = 1e-4
"""The last decimal of a share that is written."""


def rebuilt(
    record: FrameRecord, header: Header, answers: Sequence[AnswerRecord] = (), pts_seconds: float | None = None
) -> PatchSet:
    """The patch set that a record tells of; recording it again gives the record.

    It has no channels, no flow, and no relevance of cells that were not chosen: views other than `patches` and `source`
    cannot be drawn from it.

    Args:
        record: A frame's record.
        header: The header that it stands below.
        answers: Answers that came on the frame.
        pts_seconds: The frame's time to more digits than the record has.

    Raises:
        EvaluationDataError: The record contradicts itself; names the frame.
    """
    grid = _grid(record, header)
    if len(record.reasons) != len(record.cells):
        raise _wrong(record, f"{len(record.cells)} cells and {len(record.reasons)} reasons", "each cell has one")
    cells = np.array(record.cells, np.float64).reshape(-1, 5)
    level = np.array([reason.level for reason in record.reasons], np.int32)
    if level.size and not _LOWEST_LEVEL <= level.min() <= level.max() <= _HIGHEST_LEVEL:
        told = f"level of detail {level.min()} to {level.max()}"
        raise _wrong(record, told, f"it is {_LOWEST_LEVEL} to {_HIGHEST_LEVEL}")
    rows, columns = _places(cells[:, :4], level, grid, record)
    made: dict[str, Any] = {
        "grid": grid,
        "rows": rows,
        "columns": columns,
        "level": level,
        "score": cells[:, 4].astype(np.float32),
        "scorer": np.array([_scorer(reason.scorer, record) for reason in record.reasons], np.int32),
        "query": np.array([-1 if reason.query is None else reason.query for reason in record.reasons], np.int32),
        "carried": np.array([reason.origin == "carried" for reason in record.reasons], np.bool_),
        "fresh": np.array([reason.novelty == "fresh" for reason in record.reasons], np.bool_),
        "cells_scored": record.cells_scored or 0,
        "texture": Texture(grid.texture_wh, {}),
        "relevance": np.zeros((grid.rows, grid.columns), np.float32),
        "parts": {name: part for name, part in record.parts.items() if part is not None},
        "objects": _objects(record, grid),
        "feeding": None if record.model is None else Feeding(**_shared(record.model, Feeding)),
        "answers": tuple(map(rebuilt_answer, answers)),
    }
    if pts_seconds is not None:
        made["pts_seconds"] = pts_seconds
    return PatchSet(**_shared(record, PatchSet) | made)


def rebuilt_answer(record: AnswerRecord) -> Answer:
    """The answer that a record tells of; marks of what it rested on are drawn as from the whole one.

    Raises:
        EvaluationDataError: More cells than are ever written, or a share that is none.
    """
    shares = [cell.share for cell in record.cells]
    if len(shares) > MOST_TOLD_CELLS or not all(0 <= share <= 1 for share in shares):
        raise EvaluationDataError(
            f"the answer after frame {record.frame_index}: {len(shares)} cells, or a share outside [0, 1]",
            remedy="was it written by arr-stream?",
        )
    rest = _rest(shares)
    told: FloatArray = np.array([cell[:5] for cell in record.cells], np.float32).reshape(-1, 5)
    frames: IntArray = np.array([cell.frame_index for cell in record.cells], np.int32)
    made = {
        "cells": np.concatenate([told, rest]),
        "cell_frames": np.concatenate([frames, np.full(len(rest), -1, np.int32)]),
    }
    return Answer(**_shared(record, Answer) | made)


def rounded_as_recorded(patches: PatchSet) -> PatchSet:
    """A patch set whose numbers are rounded as in its record: what is drawn of it can be drawn again from that."""
    written = written_fields(FrameRecord)
    return replace(
        patches,
        score=recorded_scores(patches).astype(np.float32),
        confidence=written["confidence"].value(patches.confidence),
        latency_ms=written["latency_ms"].value(patches.latency_ms),
        answers=tuple(
            replace(rebuilt_answer(AnswerRecord.model_validate(answer_record(answer))), fed=answer.fed)
            for answer in patches.answers
        ),
    )


def _objects(record: FrameRecord, grid: Grid) -> tuple[DetectedObject, ...]:
    def rebuilt(each: ObjectRecord) -> DetectedObject:
        box = each.x0 / width, each.y0 / height, each.x1 / width, each.y1 / height
        return DetectedObject(each.label, each.score, box, each.track)

    width, height = grid.size_wh
    return tuple(map(rebuilt, record.objects or ()))


def _shared(record: BaseModel, kind: Any) -> dict[str, Any]:
    """What a record says under the names of a dataclass's fields; where it says nothing, their defaults stay."""
    said = {one.name: getattr(record, one.name) for one in fields(kind) if one.name in type(record).model_fields}
    optional = {one.name for one in fields(kind) if (one.default, one.default_factory) != (MISSING, MISSING)}
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in said.items()
        if value is not None or name not in optional
    }


def _rest(shares: Sequence[float]) -> FloatArray:
    """`[n, 5]`: cells without area for the attention that is not told of.

    What is told of carries 90% of all. With these beside it, it still does, and is marked whole.
    """
    sure = [share for share in shares if share >= _LEAST_SHARE]
    if not sure:
        return np.zeros((0, 5), np.float32)
    missing, largest = math.fsum(sure) * (1 / TOLD_SHARE - 1), min(sure)
    count = math.ceil(missing / largest)
    rest = np.zeros((count, 5), np.float32)
    rest[:, 4] = missing / count
    return rest


def _grid(record: FrameRecord, header: Header) -> Grid:
    """The grid of a frame: the header's, or its own where its size is another."""
    width, height = record.frame_size_wh or header.frame_size_wh
    rows, columns = record.grid_hw or header.grid_hw
    if not (1 <= columns <= width and 1 <= rows <= height):
        raise _wrong(record, f"{rows}x{columns} cells on {width}x{height} pixels", "a cell has at least a pixel")
    return Grid((width, height), rows, columns)


def _places(boxes: Any, level: IntArray, grid: Grid, record: FrameRecord) -> tuple[IntArray, IntArray]:
    """Rows and columns of cells, each `[N]` int32, from rectangles in pixels."""
    cell_w, cell_h = grid.cell_px
    columns, rows = np.rint(boxes[:, 0] / cell_w), np.rint(boxes[:, 1] / cell_h)
    inside = (columns >= 0) & (columns < grid.columns) & (rows >= 0) & (rows < grid.rows)
    if inside.all():
        placed = rows.astype(np.int32), columns.astype(np.int32)
        if np.allclose(grid.cells_xyxy(*placed, span_cells(level)), boxes, rtol=0, atol=_ROUNDING_PX):
            return placed
    raise _wrong(record, "a cell is none of the frame's grid", "was it written by arr-stream?")


def _scorer(name: str, record: FrameRecord) -> int:
    if name not in SCORERS:
        raise _wrong(record, f"reason {name!r} is not known", f"it is one of {', '.join(SCORERS)}")
    return SCORERS.index(name)


def _wrong(record: FrameRecord, what: str, remedy: str) -> EvaluationDataError:
    return EvaluationDataError(f"frame {record.index}: {what}", remedy=remedy)
