"""A patch set from a frame's record: what can be drawn of it, without the channels behind the choice."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from arr_stream.answers import CELLS_MOST, CELLS_SHARE, answer_record
from arr_stream.errors import EvaluationDataError
from arr_stream.patch_set import Answer, Feeding, PatchSet
from arr_stream.records.json_lines import AnswerRecord, FrameRecord, Header, frame_record
from arr_stream.texture.array import Texture
from arr_stream.types import SCORERS, FloatArray, Grid, IntArray

_ROUNDING_PX = 0.02
_HIGHEST_LEVEL = 5
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
    level = np.array([reason[4] for reason in record.reasons], np.int32)
    if level.size and not 0 <= level.min() <= level.max() <= _HIGHEST_LEVEL:
        raise _wrong(record, f"level of detail {level.min()} to {level.max()}", f"it is 0 to {_HIGHEST_LEVEL}")
    rows, columns = _places(cells[:, :4], level, grid, record)
    return PatchSet(
        index=record.index,
        pts_seconds=record.pts_seconds if pts_seconds is None else pts_seconds,
        grid=grid,
        rows=rows,
        columns=columns,
        level=level,
        score=cells[:, 4].astype(np.float32),
        scorer=np.array([_scorer(reason[0], record) for reason in record.reasons], np.int32),
        query=np.array([-1 if reason[1] is None else reason[1] for reason in record.reasons], np.int32),
        carried=np.array([reason[2] == "carried" for reason in record.reasons], np.bool_),
        fresh=np.array([reason[3] == "fresh" for reason in record.reasons], np.bool_),
        confidence=record.confidence,
        keyframe=record.keyframe,
        refresh_reason=record.refresh_reason,
        keyframe_age=record.keyframe_age,
        keyframe_index=record.keyframe_index,
        query_scores=tuple(record.query_scores),
        cells_scored=record.cells_scored or 0,
        texture=Texture(grid.texture_wh, {}),
        relevance=np.zeros((grid.rows, grid.columns), np.float32),
        parts={name: part for name, part in record.parts.items() if part is not None},
        latency_ms=record.latency_ms,
        notices=tuple(record.notices),
        feeding=_feeding(record),
        answers=tuple(rebuilt_answer(answer) for answer in answers),
        quality=record.quality,
    )


def rebuilt_answer(record: AnswerRecord) -> Answer:
    """The answer that a record tells of; marks of what it rested on are drawn as from the whole one.

    Raises:
        EvaluationDataError: More cells than are ever written, or a share that is none.
    """
    where = f"the answer after frame {record.frame_index}"
    shares = [cell[4] for cell in record.cells]
    if len(shares) > CELLS_MOST or not all(0 <= share <= 1 for share in shares):
        raise EvaluationDataError(
            f"{where}: {len(shares)} cells, or a share outside [0, 1]", remedy="was it written by arr-stream?"
        )
    rest = _rest(shares)
    told: FloatArray = np.array([cell[:5] for cell in record.cells], np.float32).reshape(-1, 5)
    frames: IntArray = np.array([cell[5] for cell in record.cells], np.int32)
    return Answer(
        question=record.question,
        text=record.text,
        frame_index=record.frame_index,
        pts_seconds=record.pts_seconds,
        model=record.model,
        cells=np.concatenate([told, rest]),
        cell_frames=np.concatenate([frames, np.full(len(rest), -1, np.int32)]),
        visual_tokens=record.visual_tokens,
        prompt_tokens=record.prompt_tokens,
        answer_tokens=record.answer_tokens,
        prefill_ms=record.prefill_ms or 0.0,
        decode_ms=record.decode_ms or 0.0,
        memory_tokens=record.memory_tokens,
        cache_bytes=record.cache_bytes,
        finish=record.finish,
        error=record.error,
    )


def as_recorded(patches: PatchSet) -> PatchSet:
    """A patch set whose numbers are rounded as in its record: what is drawn of it can be drawn again from that."""
    record = frame_record(patches)
    return replace(
        patches,
        score=np.array([cell[4] for cell in record["cells"]], np.float32),
        confidence=record["confidence"],
        latency_ms=record["latency_ms"],
        answers=tuple(_answer_as_recorded(answer) for answer in patches.answers),
    )


def _answer_as_recorded(answer: Answer) -> Answer:
    return replace(rebuilt_answer(AnswerRecord.model_validate(answer_record(answer))), fed=answer.fed)


def _rest(shares: Sequence[float]) -> FloatArray:
    """`[n, 5]`: cells without area for the attention that is not told of.

    What is told of carries 90% of all. With these beside it, it still does, and is marked whole.
    """
    sure = [share for share in shares if share >= _LEAST_SHARE]
    if not sure:
        return np.zeros((0, 5), np.float32)
    missing, largest = math.fsum(sure) * (1 / CELLS_SHARE - 1), min(sure)
    count = math.ceil(missing / largest)
    rest = np.zeros((count, 5), np.float32)
    rest[:, 4] = missing / count
    return rest


def _grid(record: FrameRecord, header: Header) -> Grid:
    """The grid of a frame: the header's, or its own where its size is another."""
    own: dict[str, Any] = record.model_extra or {}
    size_wh, grid_hw = own.get("frame_size_wh", header.frame_size_wh), own.get("grid_hw", header.grid_hw)
    for pair in (size_wh, grid_hw):
        if not (isinstance(pair, tuple | list) and len(pair) == 2 and all(isinstance(n, int) for n in pair)):
            raise _wrong(record, f"size {size_wh!r} with a grid of {grid_hw!r}", "both are two whole numbers")
    (width, height), (rows, columns) = size_wh, grid_hw
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
        span = np.left_shift(1, level).astype(np.int32)
        if np.allclose(grid.cells_xyxy(*placed, span), boxes, rtol=0, atol=_ROUNDING_PX):
            return placed
    raise _wrong(record, "a cell is none of the frame's grid", "was it written by arr-stream?")


def _scorer(name: str, record: FrameRecord) -> int:
    if name not in SCORERS:
        raise _wrong(record, f"reason {name!r} is not known", f"it is one of {', '.join(SCORERS)}")
    return SCORERS.index(name)


def _feeding(record: FrameRecord) -> Feeding | None:
    if record.model is None:
        return None
    model = record.model
    return Feeding(
        sent=model.sent,
        held=model.held,
        memory_tokens=model.memory_tokens,
        cache_bytes=model.cache_bytes,
        vision_ms=model.vision_ms or 0.0,
        prefill_ms=model.prefill_ms or 0.0,
        rebuilt=model.rebuilt,
        error=model.error,
        frame_index=model.frame_index,
    )


def _wrong(record: FrameRecord, what: str, remedy: str) -> EvaluationDataError:
    return EvaluationDataError(f"frame {record.index}: {what}", remedy=remedy)
