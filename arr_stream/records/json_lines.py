"""Patch records: one JSON line a frame, between a header and an end line.

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

`cells` are pixels of the upright source frame. `reasons` goes with `cells`, entry by entry: the way of knowing that
spoke loudest, the index of the query that wanted the cell (null: none), `carried` or `computed`, `fresh` or `seen`
(the model has it already), and the level of detail (0: one fine cell, 1: 2x2, 2: 4x4). `parts` says for each part of
generation which keyframe it came from and what made it (null: missing, late or failed). A frame whose size differs
from the header's has `frame_size_wh`, `fine_cell_px` and `grid_hw` of its own.

`quality` is there while quality is lowered to hold the frame rate of a live stream: how far, see
`arr_stream.live.quality`; `notices` tell each change.

Where a model watches, `model` says what the frame added to its memory; it is absent on frames that were not given to
the model. Each answer is a line of its own after the line of the frame on which it came; its `frame_index` is the
newest frame that the model had seen. Its `cells` are what it rested on: rectangles, the share of the attention that
each got, and the frame that each was taken from; the fewest that carry 90% of the attention, at most 100, largest
share first. `finish` is `stop`, `length`, `cancelled` or `failed`, the last with one line in `error`.

What took how long differs from run to run. Where it is left out (`records.timings`), `latency_ms` is empty and the
times of `model` and of answers are null; the same input, settings and versions then give the same file, byte for byte.
`provenance` says what it takes to run it again, see `arr_stream.records.provenance`; `digest` is the hash of
`arr_stream.records.digest` over all lines before the last.

Every line is handed to the system before `consume` returns, so a killed run leaves valid lines.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from arr_stream.answers import answer_record, feeding_record
from arr_stream.consumer import EndReason, Outcome
from arr_stream.errors import EvaluationDataError, OutputUnwritable
from arr_stream.files import prepare_output
from arr_stream.keyframes.base import PARTS
from arr_stream.patch_set import PatchSet
from arr_stream.plain_text import redact_url
from arr_stream.records.digest import TIMINGS, Digest
from arr_stream.records.line_file import LineFile
from arr_stream.records.provenance import Provenance
from arr_stream.types import SCORERS, Frame, Grid

Pair = tuple[int, int]
Cell = tuple[float, float, float, float, float]
CellOfFrame = tuple[float, float, float, float, float, int]
Reason = tuple[str, int | None, Literal["carried", "computed"], Literal["fresh", "seen"], int]


class _Record(BaseModel):
    # Unknown keys are kept: a later version may say more about a frame, and this reader should not care.
    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False)


Kind = TypeVar("Kind", bound=_Record)


class Header(_Record):
    """The first line: what was asked of what, and the grid that cells are counted on.

    Args:
        source: Path or address; secrets in addresses are blanked on writing.
        frame_size_wh: Size of the upright source frame in pixels.
        fine_cell_px: Width and height of a fine cell in source pixels.
        grid_hw: Rows and columns of fine cells.
        query: What was asked for, None for nothing.
        budget_tokens: Largest number of cells a frame.
        config: All settings of the run.
        provenance: What it takes to run it again, see `arr_stream.records.provenance`; None where nobody wrote it down.
    """

    type: Literal["header"] = "header"
    version: Literal[1] = 1
    source: str
    frame_size_wh: Pair
    fine_cell_px: tuple[float, float]
    grid_hw: Pair
    query: JsonValue = None
    budget_tokens: int = Field(ge=0)
    config: dict[str, JsonValue] = Field(default_factory=dict)
    provenance: Provenance | None = None

    @classmethod
    def for_grid(
        cls,
        grid: Grid,
        *,
        source: str,
        query: JsonValue,
        budget_tokens: int,
        config: dict[str, JsonValue],
        provenance: Provenance | None = None,
    ) -> Header:
        """The header of a run whose first frame has this grid."""
        return cls(
            source=source,
            query=query,
            budget_tokens=budget_tokens,
            config=config,
            provenance=provenance,
            **_geometry(grid),
        )


class FeedingRecord(_Record):
    """What a frame added to a model's memory; see `arr_stream.types.Feeding`."""

    sent: int = Field(ge=0)
    held: int = Field(ge=0)
    memory_tokens: int = Field(ge=0)
    cache_bytes: int = Field(ge=0)
    vision_ms: float | None = None
    prefill_ms: float | None = None
    rebuilt: str | None = None
    error: str | None = None
    frame_index: int = Field(0, ge=0)


class FrameRecord(_Record):
    """One frame; see the module's text for what the fields hold."""

    type: Literal["frame"]
    index: int = Field(ge=0)
    pts_seconds: float
    keyframe: bool
    refresh_reason: str | None
    keyframe_age: int = Field(ge=0)
    confidence: float = Field(ge=0.0, le=1.0)
    cells: list[Cell]
    latency_ms: dict[str, float] = Field(default_factory=dict)
    reasons: list[Reason] = Field(default_factory=list)
    keyframe_index: int | None = None
    parts: dict[str, tuple[int, str] | None] = Field(default_factory=dict)
    query_scores: list[float] = Field(default_factory=list)
    cells_scored: int | None = None
    notices: list[str] = Field(default_factory=list)
    quality: int = Field(0, ge=0)
    model: FeedingRecord | None = None


class AnswerRecord(_Record):
    """One answer; see `arr_stream.types.Answer` and the module's text for what the fields hold."""

    type: Literal["answer"]
    frame_index: int
    pts_seconds: float
    question: str
    text: str
    model: str
    cells: list[CellOfFrame] = Field(default_factory=list)
    visual_tokens: int = Field(ge=0)
    prompt_tokens: int = Field(ge=0)
    answer_tokens: int = Field(ge=0)
    prefill_ms: float | None = None
    decode_ms: float | None = None
    memory_tokens: int = Field(ge=0)
    cache_bytes: int = Field(ge=0)
    finish: Literal["stop", "length", "cancelled", "failed"]
    error: str | None = None


class EndRecord(_Record):
    """The last line: how the run ended."""

    type: Literal["end"] = "end"
    frames: int = Field(ge=0)
    dropped: int = Field(ge=0)
    reason: EndReason | None = None
    error: str | None = None
    digest: str | None = None


Record = Header | FrameRecord | AnswerRecord | EndRecord


class Records:
    """Writes patch records to a file, which appears with the first frame.

    Args:
        path: Where to; by custom it ends in `.jsonl`.
        header: The first line.
        force: Replace a file that exists, once the first frame is there to replace it with.
        timings: Write what took how long.

    Raises:
        OutputExists: The file exists and `force` is not set.
        OutputUnwritable: It cannot be written.
    """

    def __init__(self, path: Path | str, header: Header, force: bool = False, *, timings: bool = True) -> None:
        self.path = prepare_output(path, force, direct=True)
        self.header = header
        self.timings = timings
        self.frames = 0
        self._force = force
        self.stop: threading.Event | None = None
        self._file: LineFile | None = None
        self._closed = False
        self._digest = Digest()

    def consume(self, frame: Frame, patches: PatchSet) -> None:
        """Write the frame's line, and one for each answer that came on it.

        Raises:
            DiskFull: No room; the lines before stay whole.
            OutputUnwritable: The file cannot be written.
            KeyboardInterrupt: The run was told to end, and the file is a pipe that nobody reads.
        """
        if self._closed:
            raise ValueError(f"{self.path}: closed, and given another frame")
        if self._file is None:
            self._file = LineFile(self.path, force=self._force, stop=self.stop)
            self._write_line(self._file, header_record(self.header))
        line, *answers = frame_record(patches, self.header), *map(answer_record, patches.answers)
        if not self.timings:
            line, *answers = map(without_times, (line, *answers))
        self._write_line(self._file, line)
        self.frames += 1
        for answer in answers:
            self._write_line(self._file, answer)

    def close(self, *, failed: bool = False, outcome: Outcome | None = None) -> None:
        """Write the end line and close. Without a frame there is no file.

        Raises:
            DiskFull, OutputUnwritable: The end line has no room, nobody reads the pipe any more, or the file was
                removed while it was written.
        """
        if self._closed:
            return
        self._closed = True
        if self._file is None:
            return
        outcome = outcome or Outcome.of(failed=failed)
        try:
            if not self._file.torn:
                end = end_record(self.frames, outcome)
                self._write_line(self._file, end | {"digest": self._digest.hexdigest()})
        except KeyboardInterrupt:
            # Who interrupted the run knows that there is no end line.
            if outcome.reason != "interrupted":
                raise OutputUnwritable(
                    f"{self.path}: interrupted before its last line was read", remedy="read it to its end"
                ) from None
        finally:
            self._file.close()

    def _write_line(self, file: LineFile, record: dict[str, Any]) -> None:
        text = json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"
        # Names of files may hold bytes that are no text; JSON has an escape for them.
        file.write(text.encode("utf-8", "backslashreplace"))
        self._digest.add(record)


def header_record(header: Header) -> dict[str, Any]:
    """The first line as plain JSON values, without the secrets of an address."""
    return header.model_dump(mode="json") | {"source": redact_url(header.source)}


def frame_record(patches: PatchSet, header: Header | None = None) -> dict[str, Any]:
    """One frame as plain JSON values: pixels to 2 decimals, scores and confidence to 4, milliseconds to 3.

    Raises:
        ValueError: A number is not finite.
    """
    boxes = patches.cells_xyxy.round(2).astype(float).round(2).tolist()
    scores = patches.score.astype(float).round(4).tolist()
    record = {
        "type": "frame",
        "index": patches.index,
        "pts_seconds": round(float(patches.pts_seconds), 6),
        "keyframe": bool(patches.keyframe),
        "refresh_reason": patches.refresh_reason,
        "keyframe_age": int(patches.keyframe_age),
        "confidence": round(float(patches.confidence), 4),
        "cells": [[*box, score] for box, score in zip(boxes, scores, strict=True)],
        "latency_ms": {stage: round(float(ms), 3) for stage, ms in patches.latency_ms.items()},
        "reasons": _reasons(patches),
        "keyframe_index": patches.keyframe_index,
        "parts": {name: patches.parts.get(name) for name in PARTS},
        "query_scores": [round(float(score), 4) for score in patches.query_scores],
        "cells_scored": int(patches.cells_scored),
        "notices": [redact_url(notice) for notice in patches.notices],
    }
    if not all(math.isfinite(score) for score in scores):
        raise ValueError(f"frame {patches.index}: a score is not finite")
    if header is not None and not _same_geometry(patches.grid, header):
        record |= _geometry(patches.grid)
    if patches.quality:
        record["quality"] = int(patches.quality)
    if patches.feeding is not None:
        record["model"] = feeding_record(patches.feeding)
    return record


def without_times(record: dict[str, Any]) -> dict[str, Any]:
    """A frame or an answer in which the keys of times say nothing."""
    kept = {key: ({} if key == "latency_ms" else None) if key in TIMINGS else record[key] for key in record}
    if isinstance(model := kept.get("model"), dict):
        kept["model"] = {key: None if key in TIMINGS else value for key, value in model.items()}
    return kept


def end_record(frames: int, outcome: Outcome) -> dict[str, Any]:
    """The last line as plain JSON values."""
    end: dict[str, Any] = {"type": "end", "frames": frames, "dropped": outcome.dropped, "reason": outcome.reason}
    if outcome.error is not None:
        end["error"] = redact_url(" ".join(outcome.error.split()))
    return end | {name: value for name, value in outcome.counters.items() if name not in end}


def iterate_records(path: Path | str) -> Iterator[Record]:
    """Line by line what is in a file of records: the header, frames, each with its answers after it, and the end line.

    A last line without its line break is what a killed run leaves; it is passed over. Any other line must be right.

    Raises:
        EvaluationDataError: Missing, empty, or malformed; names the line.
    """
    return (record for _, record in _records(Path(path)))


def read_lines(path: Path | str) -> Iterator[dict[str, Any]]:
    """As `iterate_records`, but each line, once it is checked, as the plain JSON values that it holds."""
    return (line for line, _ in _records(Path(path)))


def read_records(path: Path | str) -> tuple[Header, list[FrameRecord], EndRecord | None]:
    """A whole file of records, but for its answers; those are for `read_answers`.

    A last line without its line break is what a killed run leaves; it is passed over. Any other line must be right.

    Returns:
        The header, the frames in order, and the end line, None when the run was killed.

    Raises:
        EvaluationDataError: Missing, empty, or malformed; names the line.
    """
    records = list(iterate_records(path))
    header, last = records[0], records[-1]
    assert isinstance(header, Header)
    frames = [record for record in records if isinstance(record, FrameRecord)]
    return header, frames, last if isinstance(last, EndRecord) else None


def read_answers(path: Path | str) -> list[AnswerRecord]:
    """The answers in a file of records, in the order in which they came; none where no model watched.

    Raises:
        EvaluationDataError: As `read_records`.
    """
    return [record for record in iterate_records(path) if isinstance(record, AnswerRecord)]


def _records(path: Path) -> Iterator[tuple[dict[str, Any], Record]]:
    """Every line, checked: first the header, then frames and answers, nothing after the end line."""
    last: Record | None = None
    for number, line in _lines(path):
        where = f"{path}, line {number}"
        if isinstance(last, EndRecord):
            raise EvaluationDataError(f"{where}: comes after the end line", remedy="one file holds one run")
        kind = line.get("type")
        if last is not None and str(kind) not in _KINDS:
            raise EvaluationDataError(
                f"{where}: type {kind!r} is not known", remedy="types are header, frame, answer and end"
            )
        last = _parsed(Header, line, where) if last is None else _parsed(_KINDS[str(kind)], line, where)
        yield line, last
    if last is None:
        raise EvaluationDataError(f"{path}: holds no records", remedy="write some with `process ... --patches FILE`")


_KINDS: dict[str, type[FrameRecord] | type[AnswerRecord] | type[EndRecord]] = {
    "frame": FrameRecord,
    "answer": AnswerRecord,
    "end": EndRecord,
}
"""What may stand after the header."""


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(file, start=1):
                if not raw.endswith(b"\n"):
                    return
                yield number, _json_object(raw, f"{path}, line {number}")
    except OSError as exc:
        reason = (exc.strerror or str(exc)).lower()
        raise EvaluationDataError(f"{path}: {reason}", remedy="name a file of records") from exc


def _json_object(raw: bytes, where: str) -> dict[str, Any]:
    try:
        record = json.loads(raw, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as exc:
        raise EvaluationDataError(f"{where}: not JSON: {exc}", remedy="records are one JSON object a line") from exc
    if not isinstance(record, dict):
        raise EvaluationDataError(f"{where}: not a JSON object", remedy="records are one JSON object a line")
    return record


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number in JSON")


def _parsed(kind: type[Kind], record: dict[str, Any], where: str) -> Kind:
    try:
        return kind.model_validate(record)
    except ValidationError as exc:
        first = exc.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise EvaluationDataError(
            f"{where}: {key}: {first['msg'].lower()}", remedy="was it written by arr-stream?"
        ) from exc


def _geometry(grid: Grid) -> dict[str, Any]:
    cell_w, cell_h = grid.cell_px
    return {
        "frame_size_wh": list(grid.size_wh),
        "fine_cell_px": [round(cell_w, 4), round(cell_h, 4)],
        "grid_hw": [grid.rows, grid.columns],
    }


def _same_geometry(grid: Grid, header: Header) -> bool:
    return grid.size_wh == header.frame_size_wh and (grid.rows, grid.columns) == header.grid_hw


def _reasons(patches: PatchSet) -> list[list[Any]]:
    return [
        [
            SCORERS[scorer],
            query if query >= 0 else None,
            "carried" if carried else "computed",
            "fresh" if fresh else "seen",
            level,
        ]
        for scorer, query, carried, fresh, level in zip(
            patches.scorer.tolist(),
            patches.query.tolist(),
            patches.carried.tolist(),
            patches.fresh.tolist(),
            patches.level.tolist(),
            strict=True,
        )
    ]
