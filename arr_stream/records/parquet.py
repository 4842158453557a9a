"""Patch records as two tables in Parquet, for tools that read columns; `records.schema` describes the fields.

    frames.parquet    a row a frame: index, pts_seconds, keyframe, refresh_reason, keyframe_age, confidence, num_cells,
                      latency_ms, keyframe_index, parts, query_scores, cells_scored, notices, quality, damaged,
                      model, frame_size_wh, fine_cell_px, grid_hw, answers, more
    cells.parquet     a row a chosen cell: frame, pts_seconds, x0, y0, x1, y1, score, scorer, query, origin, novelty,
                      level; in the order of the frames, and within a frame in that of its record

Columns are the fields of the schema, and values those of the records, with the same rounding. The header and the end
record are in the key-value metadata of both files, as JSON under `arr_stream.header` and `arr_stream.end`.
`frame_size_wh`, `fine_cell_px` and `grid_hw` are null if they equal the header's. Each of `answers` is the JSON of a
record; `more` is the JSON of the other fields of a frame's record, or null.

Rows are written in groups of bounded size, so memory does not grow with the video. A file gets its final name once it
is whole. A killed run leaves `frames.parquet.partial`, which cannot be read: write JSON lines as well if a run that may
be killed must leave usable records.
"""

from __future__ import annotations

import contextlib
import json
import os
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, Annotated, Any, Literal

from pydantic import BaseModel

from arr_stream.consumer import Outcome
from arr_stream.errors import EvaluationDataError
from arr_stream.extras import needed_by
from arr_stream.files import make_parent, partial_path, prepare_output, publish, writing
from arr_stream.patch_set import PatchSet
from arr_stream.records.digest import Digest
from arr_stream.records.partitions import hive_folder
from arr_stream.records.schema import (
    GEOMETRY,
    AnswerRecord,
    Cell,
    EndRecord,
    FrameRecord,
    Header,
    Reason,
    Record,
    Written,
    end_record,
    frame_lines,
    header_record,
    to_json,
    written_fields,
)
from arr_stream.types import Frame

with needed_by("Parquet", "parquet"):
    import pyarrow as pa
    import pyarrow.parquet as pq

FRAMES, CELLS = "frames.parquet", "cells.parquet"
HEADER_KEY, END_KEY = b"arr_stream.header", b"arr_stream.end"
"""Metadata keys of both files for the header and the end record."""

_FRAMES_A_GROUP = 2_000
_CELLS_A_GROUP = 32_768
_NAMED = {"int32": pa.int32(), "word": pa.dictionary(pa.int8(), pa.string())}
_SCALARS = {int: pa.int64(), float: pa.float64(), bool: pa.bool_(), str: pa.string()}


def _arrow_type(annotation: Any) -> pa.DataType:
    """Return the column type for a field of this type; records and named tuples become structures."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        named = [_NAMED[how.column] for how in arguments[1:] if isinstance(how, Written) and how.column]
        return named[0] if named else _arrow_type(arguments[0])
    if origin in (types.UnionType, typing.Union):
        return _arrow_type(next(one for one in arguments if one is not types.NoneType))
    if origin is Literal:
        return pa.string()
    if origin is dict:
        return pa.map_(_arrow_type(arguments[0]), _arrow_type(arguments[1]))
    if origin is list:
        return pa.list_(_arrow_type(arguments[0]))
    if origin is tuple:
        return pa.list_(_arrow_type(arguments[0]), len(arguments))
    return _SCALARS.get(annotation) or pa.struct({name: _arrow_type(one) for name, one in _annotations(annotation)})


def _annotations(kind: Any) -> Iterator[tuple[str, Any]]:
    """Yield names and types of the fields of a record or of a named tuple."""
    if issubclass(kind, BaseModel):
        for name, info in kind.model_fields.items():
            yield name, Annotated[(info.annotation, *info.metadata)] if info.metadata else info.annotation
    else:
        yield from typing.get_type_hints(kind, include_extras=True).items()


def _column(name: str, annotation: Any) -> pa.Field:
    """Return a column, nullable if the field is; lists, maps and structures are always nullable."""
    arrow = _arrow_type(annotation)
    plain = typing.get_args(annotation)[0] if typing.get_origin(annotation) is Annotated else annotation
    always = not pa.types.is_nested(arrow) and types.NoneType not in typing.get_args(plain)
    return pa.field(name, arrow, nullable=not always)


FRAME_COLUMNS = pa.schema(
    [
        *(
            pa.field("num_cells", pa.int32(), nullable=False) if name == "cells" else _column(name, annotation)
            # Last, the fields that mostly equal the header's.
            for name, annotation in sorted(_annotations(FrameRecord), key=lambda one: one[0] in GEOMETRY)
            if name not in ("type", "reasons")
        ),
        pa.field("answers", pa.list_(pa.string())),
        pa.field("more", pa.string()),
    ]
)
"""Columns of `frames.parquet`."""

CELL_COLUMNS = pa.schema(
    [
        pa.field("frame", pa.int64(), nullable=False),
        pa.field("pts_seconds", pa.float64(), nullable=False),
        *(_column(name, annotation) for name, annotation in _annotations(Cell)),
        *(pa.field(name, _arrow_type(annotation)) for name, annotation in _annotations(Reason)),
    ]
)
"""Columns of `cells.parquet`; rectangles in pixels of the upright source frame, `query` null for none."""


class ParquetRecords:
    """Writer of patch records to `frames.parquet` and `cells.parquet`; both appear when it is closed.

    Args:
        folder: Output folder.
        header: The header record.
        force: Replace existing files.
        timings: Write times.

    Raises:
        OutputExists: A file exists, or a killed run left one, and `force` is not set.
        OutputUnwritable: The folder cannot be written to.
    """

    def __init__(self, folder: Path | str, header: Header, force: bool = False, *, timings: bool = True) -> None:
        self.folder = Path(folder)
        self.header = header
        self.timings = timings
        self.frames = 0
        metadata = {HEADER_KEY: to_json(header_record(header))}
        self._frame_table = _Table(self.folder / FRAMES, FRAME_COLUMNS.with_metadata(metadata), _FRAMES_A_GROUP, force)
        self._cell_table = _Table(self.folder / CELLS, CELL_COLUMNS.with_metadata(metadata), _CELLS_A_GROUP, force)
        self._tables = (self._cell_table, self._frame_table)
        self._digest = Digest()
        self._digest.add(header_record(header))
        self._force, self._closed = force, False

    def consume(self, frame: Frame, patches: PatchSet) -> None:
        """Add the frame's row and those of its cells.

        Raises:
            DiskFull: The disk is full.
            OutputUnwritable: The files cannot be written.
        """
        if self._closed:
            raise ValueError(f"{self.folder}: closed, and given another frame")
        record, *answers = frame_lines(patches, self.header, timings=self.timings)
        # First, since it raises for numbers that are not finite.
        for each in (record, *answers):
            self._digest.add(each)
        self._cell_table.add(_cell_columns(record))
        self._frame_table.add({name: [value] for name, value in _frame_row(record, answers).items()})
        self.frames += 1

    def close(self, *, failed: bool = False, outcome: Outcome | None = None) -> None:
        """Write the end record and rename the files to their final names. Without a frame there are no files.

        Raises:
            DiskFull, OutputUnwritable: The files could not be finished and keep their partial names.
        """
        if self._closed:
            return
        self._closed = True
        if not self.frames:
            for table in self._tables:
                table.abandon()
            return
        end = end_record(self.frames, outcome or Outcome.of(failed=failed), self._digest.hexdigest())
        try:
            for table in self._tables:
                table.finish(end)
            # Frames last: if they exist, so do the cells.
            for table in self._tables:
                publish(table.path, force=self._force)
        finally:
            for table in self._tables:
                table.abandon()


class _Table:
    """File with a buffer of up to `group` rows."""

    def __init__(self, path: Path, columns: pa.Schema, group: int, force: bool) -> None:
        self.path = prepare_output(path, force)
        self._columns, self._group, self._force = columns, group, force
        self._rows: dict[str, list[Any]] = {name: [] for name in columns.names}
        self._file: IO[bytes] | None = None
        self._writer: pq.ParquetWriter | None = None
        self._error: Exception | None = None

    def add(self, rows: Mapping[str, Sequence[Any]]) -> None:
        """Add rows, as the values of every column; write a full group."""
        if self._file is None:
            make_parent(self.path)
            with self._writing():
                self._file = partial_path(self.path).open("wb" if self._force else "xb")
                self._writer = pq.ParquetWriter(self._file, self._columns, compression="zstd", write_page_checksum=True)
        for name, values in rows.items():
            self._rows[name] += values
        if len(self._rows[self._columns.names[0]]) >= self._group:
            self._write()

    def finish(self, end: Mapping[str, Any]) -> None:
        """Write the buffered rows and the end of the file."""
        if self._error is not None:
            raise self._error
        assert self._file is not None and self._writer is not None
        self._write()
        with self._writing():
            self._writer.add_key_value_metadata({END_KEY: to_json(end)})
            self._writer.close()
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
        self._writer = self._file = None

    def abandon(self) -> None:
        """Close an unfinished file, which keeps its partial name. Does nothing to a finished one."""
        # The file first: otherwise the writer would add a footer, which makes it look whole.
        for one in (self._file, self._writer):
            if one is not None:
                with contextlib.suppress(OSError, ValueError, pa.ArrowException):
                    one.close()
        self._writer = self._file = None

    def _write(self) -> None:
        assert self._writer is not None
        with self._writing():
            self._writer.write_table(pa.Table.from_pydict(self._rows, self._columns), row_group_size=self._group)
        self._rows = {name: [] for name in self._columns.names}

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Map errors as `writing` does, and remember that the file is spoilt."""
        try:
            with writing(self.path):
                yield
        except Exception as exc:
            self._error = exc
            raise


def read_parquet_records(
    folder: Path | str, video: str | None = None
) -> tuple[Header, list[FrameRecord], EndRecord | None]:
    """Return the same as `read_records` of the run's JSON lines.

    Args:
        folder: Folder of `frames.parquet` and `cells.parquet`; with `video`, the output folder of a batch.
        video: Name of the video in a batch.

    Raises:
        EvaluationDataError: The files are missing, damaged, or not written by `ParquetRecords`.
    """
    frames, cells = _paths(Path(folder), video)
    with _reading(frames), pq.ParquetFile(frames) as table:
        metadata = table.metadata.metadata or {}
        if HEADER_KEY not in metadata:
            raise ValueError("no header in its metadata")
        header = Header.model_validate(json.loads(metadata[HEADER_KEY]))
        end = EndRecord.model_validate(json.loads(metadata[END_KEY])) if END_KEY in metadata else None
        rows = list(_rows(table))
    with _reading(cells), pq.ParquetFile(cells) as table:
        chosen = _rows(table)
        records = [_frame_record(row, list(islice(chosen, row["num_cells"]))) for row in rows]
        if next(chosen, None) is not None:
            raise ValueError("more cells than the frames have")
    return header, records, end


def read_parquet_answers(folder: Path | str, video: str | None = None) -> list[AnswerRecord]:
    """Return the same as `read_answers` of the run's JSON lines; see `read_parquet_records`.

    Raises:
        EvaluationDataError: The files are missing, damaged, or not written by `ParquetRecords`.
    """
    frames, _ = _paths(Path(folder), video)
    with _reading(frames), pq.ParquetFile(frames) as table:
        return [AnswerRecord.model_validate(json.loads(text)) for row in _rows(table) for text in row["answers"]]


def _paths(folder: Path, video: str | None) -> tuple[Path, Path]:
    if video is None:
        return folder / FRAMES, folder / CELLS
    place = hive_folder(video)
    return folder / "frames" / place / FRAMES, folder / "cells" / place / CELLS


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, KeyError, RecursionError, pa.ArrowException) as exc:
        # Pydantic's and Arrow's own errors are ValueErrors, of several lines.
        reason = (exc.strerror or str(exc)).lower() if isinstance(exc, OSError) else str(exc).partition("\n")[0]
        raise EvaluationDataError(f"{path}: {reason}", remedy="name a folder of records in Parquet") from exc


def _rows(table: pq.ParquetFile) -> Iterator[dict[str, Any]]:
    for batch in table.iter_batches(4096):
        yield from batch.to_pylist()


def _frame_row(record: Record, answers: Sequence[Record]) -> dict[str, Any]:
    """Return the value of every column of `frames.parquet`."""
    fields = FrameRecord.model_fields
    more = {key: value for key, value in record.items() if key not in fields}
    row = {
        column.name: _arrow_value(record.get(column.name, fields[column.name].default), column.type)
        for column in FRAME_COLUMNS
        if column.name in fields
    }
    return row | {
        "num_cells": len(record["cells"]),
        "answers": [to_json(answer).decode() for answer in answers],
        "more": to_json(more).decode() if more else None,
    }


def _arrow_value(value: Any, kind: pa.DataType) -> Any:
    """Return a plain JSON value in Arrow's form: maps as pairs, structures by name, and valid UTF-8 text."""
    if isinstance(value, str):
        # Escape bytes that are not valid text, since a text column cannot hold them.
        return value.encode("utf-8", "backslashreplace").decode()
    if value is None or not pa.types.is_nested(kind):
        return value
    if pa.types.is_map(kind):
        return [(key, _arrow_value(one, kind.item_type)) for key, one in value.items()]
    if pa.types.is_struct(kind):
        named = value if isinstance(value, Mapping) else dict(zip(kind.names, value, strict=True))
        return {part.name: _arrow_value(named.get(part.name), part.type) for part in kind}
    return [_arrow_value(one, kind.value_type) for one in value]


def _cell_columns(record: Record) -> dict[str, list[Any]]:
    """Return the values of every column of `cells.parquet`, for the cells of one frame."""
    count = len(record["cells"])
    place = [record["index"]] * count, [record["pts_seconds"]] * count
    # Without cells there is nothing to transpose.
    sides = zip(*record["cells"], strict=True) if count else [()] * len(Cell._fields)
    reasons = zip(*record["reasons"], strict=True) if count else [()] * len(Reason._fields)
    return dict(zip(CELL_COLUMNS.names, map(list, (*place, *sides, *reasons)), strict=True))


def _frame_record(row: Mapping[str, Any], cells: Sequence[Mapping[str, Any]]) -> FrameRecord:
    """Return the record of a frame from its row and its cells."""
    if len(cells) != row["num_cells"] or any(cell["frame"] != row["index"] for cell in cells):
        raise ValueError(f"the cells of frame {row['index']} are not those that it has")
    fields = written_fields(FrameRecord)
    values = {name: row[name] for name in FRAME_COLUMNS.names if name in fields}
    kept = {name: value for name, value in values.items() if value is not None or not fields[name].optional}
    kept |= {column.name: dict(row[column.name]) for column in FRAME_COLUMNS if pa.types.is_map(column.type)}
    kept["cells"] = [tuple(cell[name] for name in Cell._fields) for cell in cells]
    kept["reasons"] = [tuple(cell[name] for name in Reason._fields) for cell in cells]
    return FrameRecord.model_validate(kept | json.loads(row["more"] or "{}"))
