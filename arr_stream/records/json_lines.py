"""Patch records as JSON lines: one a frame, between a header and an end line; `records.schema` describes the fields.

Every line is passed to the system before `consume` returns, so a killed run leaves valid lines.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from arr_stream.consumer import Outcome
from arr_stream.errors import EvaluationDataError
from arr_stream.files import LineFile, prepare_output
from arr_stream.patch_set import PatchSet
from arr_stream.records.schema import (
    VOLATILE,
    AnswerRecord,
    EndRecord,
    FrameRecord,
    Header,
    Record,
    end_record,
    frame_lines,
    header_record,
    to_json,
    written_fields,
)
from arr_stream.types import Frame

Parsed = Header | FrameRecord | AnswerRecord | EndRecord

_LINE: TypeAdapter[Parsed] = TypeAdapter(Annotated[Parsed, Field(discriminator="type")])
_CHECK = "check that arr-stream wrote the file"

_HEADER = tuple(name for name, how in written_fields(Header).items() if not how.volatile)


class Digest:
    """SHA-256 over the reproducible content of records, one after the other, as they are written or were read.

    The same input, settings and versions give the same digest for every user, path and speed. It leaves out times, the
    source's name, the settings and the versions (`Written.volatile`), and the end line, which holds the digest.
    """

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, record: Mapping[str, Any]) -> None:
        """Add one line, as plain JSON values; an end line changes nothing."""
        if record["type"] != "end":
            self._hash.update(canonical(record) + b"\n")

    def hexdigest(self) -> str:
        """Return the digest of all lines so far: 64 hexadecimal digits."""
        return self._hash.hexdigest()


def canonical(record: Mapping[str, Any]) -> bytes:
    """Return one line without its volatile fields; the order of its keys does not matter."""
    header = record["type"] == "header"
    kept = {key: record.get(key) for key in _HEADER} if header else comparable(record)
    return json.dumps(kept, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def comparable(record: Mapping[str, Any]) -> Record:
    """Return a copy of a frame or an answer without times."""
    kept = {key: value for key, value in record.items() if key not in VOLATILE}
    if isinstance(model := kept.get("model"), Mapping):
        kept["model"] = comparable(model)
    return kept


class Records:
    """Writer of patch records to a file, which it creates with the first frame.

    Args:
        path: Output file; by custom it ends in `.jsonl`.
        header: The first line.
        force: Replace an existing file, once the first frame is ready to be written.
        timings: Write times.

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
        self._file: LineFile | None = None
        self._closed = False
        self._digest = Digest()

    @property
    def digest(self) -> str:
        """Digest of the lines so far, equal to `records_digest` of the file."""
        return self._digest.hexdigest()

    def consume(self, frame: Frame, patches: PatchSet) -> None:
        """Write the frame's line, and one for each answer that arrived on it.

        Raises:
            DiskFull: The disk is full; earlier lines stay whole.
            OutputUnwritable: The file cannot be written.
        """
        if self._closed:
            raise ValueError(f"{self.path}: closed, and given another frame")
        if self._file is None:
            self._file = LineFile(self.path, force=self._force)
            self._write_line(self._file, header_record(self.header))
        line, *answers = frame_lines(patches, self.header, timings=self.timings)
        self._write_line(self._file, line)
        self.frames += 1
        for answer in answers:
            self._write_line(self._file, answer)

    def close(self, *, failed: bool = False, outcome: Outcome | None = None) -> None:
        """Write the end line and close. Without a frame there is no file.

        Raises:
            DiskFull, OutputUnwritable: The disk has no room for the end line, the pipe's reader is gone, or the file
                was removed while it was written.
        """
        if self._closed:
            return
        self._closed = True
        if self._file is None:
            return
        outcome = outcome or Outcome.of(failed=failed)
        try:
            if not self._file.torn:
                self._write_line(self._file, end_record(self.frames, outcome, self.digest))
        finally:
            self._file.close()

    def _write_line(self, file: LineFile, record: Record) -> None:
        file.write(to_json(record) + b"\n")
        self._digest.add(record)


def iterate_records(path: Path | str) -> Iterator[Parsed]:
    """Yield the lines of a file of records: the header, the frames, each with its answers after it, and the end line.

    A last line without its line break, left by a killed run, is skipped. Every other line must be valid.

    Raises:
        EvaluationDataError: The file is missing, empty, or malformed; the message names the line.
    """
    return (record for _, record in _records(Path(path)))


def read_lines(path: Path | str) -> Iterator[Record]:
    """Yield lines as `iterate_records` does, but each checked line as plain JSON values."""
    return (line for line, _ in _records(Path(path)))


def read_records(path: Path | str) -> tuple[Header, list[FrameRecord], EndRecord | None]:
    """Return the header, the frames in order, and the end line, None if the run was killed; see `iterate_records`."""
    records = list(iterate_records(path))
    header, last = records[0], records[-1]
    assert isinstance(header, Header)
    frames = [record for record in records if isinstance(record, FrameRecord)]
    return header, frames, last if isinstance(last, EndRecord) else None


def read_answers(path: Path | str) -> list[AnswerRecord]:
    """Return the answers in a file of records, in order of arrival; see `iterate_records`."""
    return [record for record in iterate_records(path) if isinstance(record, AnswerRecord)]


def records_digest(path: Path | str) -> str:
    """Return the digest of a file of records, up to its last whole line, as in its end line; see `iterate_records`."""
    digest = Digest()
    for line in read_lines(path):
        digest.add(line)
    return digest.hexdigest()


def _records(path: Path) -> Iterator[tuple[Record, Parsed]]:
    """Yield every whole line, checked: first the header, then frames and answers, nothing after the end line."""
    last: Parsed | None = None
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(file, start=1):
                if not raw.endswith(b"\n"):
                    break
                where = f"{path}, line {number}"
                if isinstance(last, EndRecord):
                    raise EvaluationDataError(f"{where}: comes after the end line", remedy="one file holds one run")
                line, record = _parsed(raw, where)
                if isinstance(record, Header) != (last is None):
                    raise EvaluationDataError(f"{where}: the header is the first line and no other", remedy=_CHECK)
                last = record
                yield line, record
    except OSError as exc:
        reason = (exc.strerror or str(exc)).lower()
        raise EvaluationDataError(f"{path}: {reason}", remedy="name a file of records") from exc
    if last is None:
        raise EvaluationDataError(f"{path}: holds no records", remedy="write some with `process ... --patches FILE`")


def _parsed(raw: bytes, where: str) -> tuple[Record, Parsed]:
    try:
        line = json.loads(raw, parse_constant=_refuse_constant)
        return line, _LINE.validate_python(line)
    except ValidationError as exc:
        first = exc.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise EvaluationDataError(f"{where}: {key}: {first['msg'].lower()}", remedy=_CHECK) from exc
    except (ValueError, RecursionError) as exc:
        raise EvaluationDataError(f"{where}: not JSON: {exc}", remedy="records are one JSON object a line") from exc


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number in JSON")
