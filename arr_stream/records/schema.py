"""Schema of records: every field of the header, a frame, an answer and the end.

    {"type": "header", "version": 1, "source": ..., "frame_size_wh": [W, H], "fine_cell_px": [cw, ch],
     "grid_hw": [gh, gw], "query": ..., "budget_tokens": ..., "config": {...}, "provenance": {...}}
    {"type": "frame", "index": 0, "pts_seconds": 0.0, "keyframe": true, "refresh_reason": "first", "keyframe_age": 0,
     "confidence": 1.0, "cells": [[x0, y0, x1, y1, score], ...], "latency_ms": {"flow": ...},
     "reasons": [[scorer, query, origin, novelty, level], ...], "keyframe_index": 0,
     "parts": {"clusters": [0, "slic-skimage"], "embedding": [0, "appearance"], "text": null},
     "query_scores": [0.9], "cells_scored": 312, "notices": [],
     "model": {"sent": 40, "held": 12, "memory_tokens": 1843, "cache_bytes": 9437184, "vision_ms": 31.5,
               "prefill_ms": 48.2, "rebuilt": null, "error": null, "frame_index": 0}}
    {"type": "answer", "frame_index": 0, "pts_seconds": 0.0, "question": "What is red?", "text": "A bus.",
     "model": "Qwen3-VL-2B-Instruct", "cells": [[x0, y0, x1, y1, share, frame_index], ...], "visual_tokens": 1790,
     "prompt_tokens": 14, "answer_tokens": 4, "prefill_ms": 61.0, "decode_ms": 120.4, "memory_tokens": 1843,
     "cache_bytes": 9529458, "finish": "stop", "error": null}
    {"type": "end", "frames": N, "dropped": 0, "reason": "finished", "digest": "5f70bf18..."}

A field's type defines the values a reader accepts; `Written` defines the rest. A field has
the value of the same name in the `PatchSet`, `Feeding` or `Answer`; `frame_record` and `answer_record` make the fields
that have another form.

`cells` are pixels of the upright source frame. `reasons` goes with `cells`, entry by entry: the scorer with the largest
contribution, the index of the query that wanted the cell (null: none), `carried` or `computed`, `fresh` or `seen`
(the model has it already), and the level of detail (0: one fine cell, 1: 2x2, 2: 4x4; -1: one fine cell as four tokens,
from the source's own pixels). `parts` holds for each part of generation its keyframe and its backend (null: missing,
late or failed). A frame whose size differs from the header's has its own `frame_size_wh`, `fine_cell_px` and `grid_hw`.

`objects` is present if a query asks for objects and a detector found some: class, score, number, and box in pixels of
each, at its position on this frame. An object keeps its number while it is tracked.
`cached_tokens` is present if a server had computed a part of the prompt before.
`damaged` is present, and true, on frames that the decoder concealed or that may refer to lost or concealed ones.
`quality` is present while quality is lowered to hold the frame rate of a live stream: the level, see
`arr_stream.live.live_stream`; `notices` report each change.

If a model watches, `model` describes the frame's addition to its memory; it is absent on frames that the model did not
receive. Each answer is a line of its own after the line of the frame on which it arrived; its `frame_index` is the
newest frame that the model had seen. Its `cells` are those it attended to: rectangles, the share of the attention of
each, and the frame of each; the fewest that carry 90% of the attention, at most 100, largest share first. `finish` is
`stop`, `length`, `cancelled` or `failed`, the last with one line in `error`; `note` holds a remark on the answer.

Times differ from run to run. If they are left out (`records.timings`), `latency_ms` is empty and the times of `model`
and of answers are null; the same input, settings and versions then give the same file, byte for byte. `provenance`
holds the data for repeating the run, see `arr_stream.records.provenance`; `digest` is the hash of
`arr_stream.records.json_lines.Digest` over all lines before the last.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from arr_stream.consumer import EndReason, Outcome
from arr_stream.keyframes.base import PARTS
from arr_stream.patch_set import Answer, PatchSet, most_attended
from arr_stream.plain_text import model_name, one_line, redact_url
from arr_stream.records.provenance import Provenance
from arr_stream.types import SCORERS, Grid

Record = dict[str, Any]
"""One line, as plain JSON values."""


@dataclass(frozen=True, slots=True)
class Written:
    """Format of a field beyond its type.

    Args:
        value: Makes the plain JSON value; None stays None.
        volatile: May differ between two equal runs: not part of the digest, and without a value if times are not
        written.
        optional: Left out if it is empty.
    """

    value: Callable[[Any], Any] = lambda value: value
    volatile: bool = False
    optional: bool = False


def _rounded(digits: int) -> Callable[[Any], float]:
    return lambda value: round(float(value), digits)


def _each(write: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda values: [write(value) for value in values]


def _rounded_times(stages: Mapping[str, float]) -> dict[str, float]:
    return {stage: round(float(ms), 3) for stage, ms in stages.items()}


Count = Annotated[int, Field(ge=0), Written(int)]
Seconds = Annotated[float, Written(_rounded(6))]
Milliseconds = Annotated[float | None, Written(_rounded(3), volatile=True)]
StageTimes = Annotated[dict[str, float], Written(_rounded_times, volatile=True)]
Text = Annotated[str, Written(redact_url)]
Line = Annotated[str | None, Written(one_line)]
SizePx = tuple[int, int]
CellPx = tuple[float, float]


class Cell(NamedTuple):
    """Chosen cell: its rectangle in pixels, and its score."""

    x0: float
    y0: float
    x1: float
    y1: float
    score: float


class Reason(NamedTuple):
    """Reason for choosing a cell, and its level of detail."""

    scorer: str
    query: int | None
    origin: Literal["carried", "computed"]
    novelty: Literal["fresh", "seen"]
    level: int


class Part(NamedTuple):
    """Keyframe that a part of generation came from, and its backend."""

    keyframe: int
    method: str


class ObjectRecord(NamedTuple):
    """Detected object: its class, score and number, and its box in pixels."""

    label: str
    score: float
    track: int
    x0: float
    y0: float
    x1: float
    y1: float


class CellOfFrame(NamedTuple):
    """Cell that an answer used: its rectangle in pixels, its share of the attention, and its frame."""

    x0: float
    y0: float
    x1: float
    y1: float
    share: float
    frame_index: int


class _Line(BaseModel):
    # Unknown keys are kept: a later version may add fields, which this reader ignores.
    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False)


class Header(_Line):
    """First line: the source, the query, and the grid of cells.

    Args:
        source: Path or address; secrets in addresses are blanked on writing.
        frame_size_wh: Size of the upright source frame in pixels.
        fine_cell_px: Width and height of a fine cell in source pixels.
        grid_hw: Rows and columns of fine cells.
        query: The query; None without one.
        unknown_words: Words of the query that no model understands; left out if every word is understood.
        budget_tokens: Most visual tokens a frame; an entry of `cells` is one, or four at level -1.
        config: All settings of the run.
        provenance: Data for repeating the run, see `arr_stream.records.provenance`; None if it was not recorded.
    """

    type: Literal["header"] = "header"
    version: Literal[1] = 1
    source: Annotated[str, Written(volatile=True)]
    frame_size_wh: SizePx
    fine_cell_px: CellPx
    grid_hw: SizePx
    query: JsonValue = None
    # They follow from the query and from the models that are installed.
    unknown_words: Annotated[list[str], Written(volatile=True)] = Field(default_factory=list)
    budget_tokens: int = Field(ge=0)
    config: Annotated[dict[str, JsonValue], Written(volatile=True)] = Field(default_factory=dict)
    provenance: Annotated[Provenance | None, Written(volatile=True)] = None

    @classmethod
    def for_grid(cls, grid: Grid, **said: Any) -> Header:
        """Return the header of a run whose first frame has this grid; `said` are the other fields.

        Raises:
            pydantic.ValidationError: A field is missing, or of another type.
        """
        return cls(**_geometry(grid), **said)


class FeedingRecord(_Line):
    """A frame's addition to a model's memory; see `arr_stream.patch_set.Feeding`."""

    sent: Count
    held: Count
    memory_tokens: Count
    cache_bytes: Count
    vision_ms: Milliseconds = None
    prefill_ms: Milliseconds = None
    rebuilt: str | None = None
    error: Line = None
    frame_index: Count = 0


class FrameRecord(_Line):
    """One frame; see the module's text, and `arr_stream.patch_set.PatchSet`, for the fields."""

    type: Literal["frame"] = "frame"
    index: Count
    pts_seconds: Seconds
    keyframe: Annotated[bool, Written(bool)]
    refresh_reason: str | None
    keyframe_age: Count
    confidence: Annotated[float, Field(ge=0.0, le=1.0), Written(_rounded(4))]
    cells: list[Cell]
    latency_ms: StageTimes = Field(default_factory=dict)
    reasons: list[Reason] = Field(default_factory=list)
    keyframe_index: int | None = None
    parts: dict[str, Part | None] = Field(default_factory=dict)
    query_scores: Annotated[list[float], Written(_each(_rounded(4)))] = Field(default_factory=list)
    cells_scored: Annotated[int | None, Written(int)] = None
    notices: Annotated[list[str], Written(_each(redact_url))] = Field(default_factory=list)
    frame_size_wh: Annotated[SizePx | None, Written(optional=True)] = None
    fine_cell_px: Annotated[CellPx | None, Written(optional=True)] = None
    grid_hw: Annotated[SizePx | None, Written(optional=True)] = None
    objects: Annotated[list[ObjectRecord] | None, Written(optional=True)] = None
    quality: Annotated[int, Field(ge=0), Written(int, optional=True)] = 0
    damaged: Annotated[bool, Written(bool, optional=True)] = False
    model: Annotated[FeedingRecord | None, Written(optional=True)] = None


class AnswerRecord(_Line):
    """One answer; see `arr_stream.patch_set.Answer` and the module's text for the fields."""

    type: Literal["answer"] = "answer"
    frame_index: Annotated[int, Written(int)]
    pts_seconds: Seconds
    question: Text
    text: Text
    model: Annotated[str, Written(model_name)]
    cells: list[CellOfFrame] = Field(default_factory=list)
    visual_tokens: Count
    prompt_tokens: Count
    cached_tokens: Annotated[int, Field(ge=0), Written(int, optional=True)] = 0
    answer_tokens: Count
    prefill_ms: Milliseconds = None
    decode_ms: Milliseconds = None
    memory_tokens: Count
    cache_bytes: Count
    finish: Literal["stop", "length", "cancelled", "failed"]
    error: Line = None
    note: Line = None


class EndRecord(_Line):
    """Last line, with the reason for the end of the run."""

    type: Literal["end"] = "end"
    frames: int = Field(ge=0)
    dropped: int = Field(ge=0)
    reason: EndReason | None = None
    error: str | None = None
    digest: str | None = None


@functools.cache
def written_fields(kind: type[BaseModel]) -> dict[str, Written]:
    """Return the format of each field of a record, in their order."""
    return {
        name: next((how for how in field.metadata if isinstance(how, Written)), Written())
        for name, field in kind.model_fields.items()
    }


VOLATILE = frozenset(
    name
    for kind in (FrameRecord, FeedingRecord, AnswerRecord)
    for name, how in written_fields(kind).items()
    if how.volatile
)
"""Keys of times in frames, in their `model`, and in answers."""


def header_record(header: Header) -> Record:
    """Return the first line, without the secrets of an address."""
    left_out = None if header.unknown_words else {"unknown_words"}
    return header.model_dump(mode="json", exclude=left_out) | {"source": redact_url(header.source)}


def recorded_scores(patches: PatchSet) -> npt.NDArray[np.float64]:
    """Return the `[N]` scores as they are written, to 4 decimals."""
    scores: npt.NDArray[np.float64] = patches.score.astype(np.float64).round(4)
    return scores


def frame_record(patches: PatchSet, header: Header | None = None) -> Record:
    """Return the record of a frame: pixels to 2 decimals, scores and confidence to 4, milliseconds to 3.

    Raises:
        ValueError: A number is not finite.
    """
    boxes = patches.cells_xyxy.round(2).astype(float).round(2).tolist()
    scores = recorded_scores(patches).tolist()
    if not all(map(math.isfinite, scores)):
        raise ValueError(f"frame {patches.index}: a score is not finite")
    grid, feeding = patches.grid, patches.feeding
    usual = header is None or (grid.size_wh, (grid.rows, grid.columns)) == (header.frame_size_wh, header.grid_hw)
    return _record(
        FrameRecord,
        patches,
        type="frame",
        cells=[[*box, score] for box, score in zip(boxes, scores, strict=True)],
        reasons=_reasons(patches),
        # A part that is optional for a run appears only if it is in use.
        parts={name: patches.parts.get(name) for name in PARTS if name != "objects" or name in patches.parts},
        objects=_objects(patches),
        model=None if feeding is None else _record(FeedingRecord, feeding),
        **dict.fromkeys(GEOMETRY) if usual else _geometry(grid),
    )


def answer_record(answer: Answer) -> Record:
    """Return the record of an answer: pixels to 2 decimals, shares to 4, milliseconds to 3.

    It keeps the cells that carry 90% of the attention, at most 100, largest share first.

    Raises:
        ValueError: A number is not finite.
    """
    kept = most_attended(answer.cells)
    boxes = answer.cells[kept, :4].astype(float).round(2).tolist()
    shares = answer.cells[kept, 4].astype(float).round(4).tolist()
    if not all(map(math.isfinite, (answer.pts_seconds, answer.prefill_ms, answer.decode_ms))):
        raise ValueError(f"the answer after frame {answer.frame_index}: a time is not finite")
    frames = answer.cell_frames[kept].tolist()
    cells = [[*box, share, frame] for box, share, frame in zip(boxes, shares, frames, strict=True)]
    return _record(AnswerRecord, answer, type="answer", cells=cells)


def frame_lines(patches: PatchSet, header: Header, *, timings: bool = True) -> list[Record]:
    """Return the lines of a frame and of the answers that arrived on it; leave out times without `timings`.

    Raises:
        ValueError: A number is not finite.
    """
    lines = [frame_record(patches, header), *map(answer_record, patches.answers)]
    return lines if timings else [without_times(line) for line in lines]


def end_record(frames: int, outcome: Outcome, digest: str) -> Record:
    """Return the last line."""
    end: Record = {"type": "end", "frames": frames, "dropped": outcome.dropped, "reason": outcome.reason}
    if outcome.error is not None:
        end["error"] = one_line(outcome.error)
    return end | {name: value for name, value in outcome.counters.items() if name not in end} | {"digest": digest}


def to_json(record: Mapping[str, Any]) -> bytes:
    """Return the line without its line break.

    Raises:
        ValueError: A number is not finite.
    """
    text = json.dumps(record, ensure_ascii=False, allow_nan=False)
    # File names may hold bytes that are not text; JSON has an escape for them.
    return text.encode("utf-8", "backslashreplace")


def without_times(record: Record) -> Record:
    """Return a frame or an answer with empty values for the keys of times."""
    kept = dict(record)
    for key in VOLATILE & kept.keys():
        kept[key] = {} if isinstance(kept[key], dict) else None
    if isinstance(model := kept.get("model"), dict):
        kept["model"] = without_times(model)
    return kept


GEOMETRY = ("frame_size_wh", "fine_cell_px", "grid_hw")


def _geometry(grid: Grid) -> dict[str, list[Any]]:
    cell_w, cell_h = grid.cell_px
    values = list(grid.size_wh), [round(cell_w, 4), round(cell_h, 4)], [grid.rows, grid.columns]
    return dict(zip(GEOMETRY, values, strict=True))


def _record(kind: type[_Line], of: object, **made: Any) -> Record:
    """Return the fields of `of` in their written format, except those already `made`."""
    record: Record = {}
    for name, how in written_fields(kind).items():
        value = made.get(name) if name in made else getattr(of, name)
        if value is not None and name not in made:
            value = how.value(value)
        if value or not how.optional:
            record[name] = value
    return record


def _objects(patches: PatchSet) -> list[list[Any]]:
    width, height = patches.grid.size_wh
    return [
        [
            each.label,
            round(each.score, 4),
            each.track,
            *np.multiply(each.box_xyxy, (width, height) * 2).round(2).tolist(),
        ]
        for each in patches.objects
    ]


def _reasons(patches: PatchSet) -> list[list[Any]]:
    told = patches.scorer, patches.query, patches.carried, patches.fresh, patches.level
    return [
        [
            SCORERS[scorer],
            None if query < 0 else query,
            ("computed", "carried")[carried],
            ("seen", "fresh")[fresh],
            level,
        ]
        for scorer, query, carried, fresh, level in zip(*(array.tolist() for array in told), strict=True)
    ]
