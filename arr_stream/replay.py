"""Repetition of a recorded run, and comparison with its records."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from arr_stream.config import Settings
from arr_stream.consumer import Outcome
from arr_stream.errors import NotReplayable, RecordsDiffer, SourceChanged, SourceNotFound
from arr_stream.patch_set import PatchSet
from arr_stream.plain_text import redact_url
from arr_stream.records.json_lines import Digest, canonical, comparable, iterate_records, read_lines
from arr_stream.records.provenance import (
    Asked,
    AskedExample,
    AskedRegion,
    FileIdentity,
    Provenance,
    file_identity,
    source_identity,
    versions,
)
from arr_stream.records.schema import Header, frame_record, header_record
from arr_stream.relevance.query import Query, RegionQuery, load_example, parse_text
from arr_stream.stream import Stream
from arr_stream.stream import open as open_stream
from arr_stream.types import Frame

_RECORDED = ("file", "animation", "images")
_COMPLETE = ("finished", "damaged")
"""Reasons for the end of a run that had all frames of its source."""


class Recording:
    """File of records, by its first line.

    Args:
        path: The file; that of a killed run may lack its last line.

    Raises:
        EvaluationDataError: The file is missing, empty or malformed; the message names the line.
        NotReplayable: The header has no provenance, or the run cannot be repeated.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        header = next(iterate_records(self.path))
        assert isinstance(header, Header)
        self.header = header
        self.provenance = _replayable(self.path, header.provenance)

    def _source(self, given: str | None) -> str:
        """Return the path of the source: `given`, else the one that the records name.

        Raises:
            SourceNotFound: The records name an address in a store, and no path is given.
        """
        named = self.header.source
        if given is not None:
            return given
        if "://" in named and not named.startswith("file://"):
            raise self._missing(f"{redact_url(named)}: addresses are not opened")
        return named

    def _missing(self, fault: str) -> SourceNotFound:
        return SourceNotFound(fault, remedy=f"name the file: arr-stream replay {self.path} SOURCE")

    def reopened(self, given: str | None) -> Stream:
        """Return the recorded stream, reopened for another run.

        Args:
            given: Path of the source; None for the one in the records.

        Raises:
            SourceNotFound, SourceChanged: The source, an example picture or a gaze file is missing or differs.
            InvalidSetting: The records' version had other settings.
            ArrStreamError: See `arr_stream.open`.
        """
        provenance = self.provenance
        if provenance.gaze is not None:
            _check_file(provenance.gaze)
        queries = [_query(asked) for asked in provenance.queries]
        # Without downloads of weights.
        settings = Settings.checked(self.header.config).with_values({"models.download": False})
        reading = provenance.reading
        try:
            stream = open_stream(
                self._source(given),
                queries=queries,
                settings=settings,
                gaze_csv=provenance.gaze.path if provenance.gaze is not None else None,
                video_stream=reading.video_stream,
                start_seconds=reading.start_seconds,
                end_seconds=reading.end_seconds,
                stride=reading.stride,
                max_frames=reading.max_frames,
            )
        except SourceNotFound as exc:
            raise self._missing(exc.message) from exc
        try:
            assert provenance.source is not None
            if provenance.source.sha256 is not None:
                _check_identity(provenance.source, source_identity(stream.source), stream.source.info.name)
        except BaseException:
            stream.close()
            raise
        return stream

    def changed_versions(self) -> list[str]:
        """Return the versions that results depend on and that differ here, such as `numpy 2.3.1, was 2.2.0`."""
        before, now = self.provenance.versions, versions()
        return [
            f"{name} {now.get(name, 'missing')}, was {before.get(name, 'missing')}"
            for name in sorted({*before, *now})
            if before.get(name) != now.get(name)
        ]


def _replayable(path: Path, provenance: Provenance | None) -> Provenance:
    if provenance is None or provenance.source is None:
        fault, remedy = "the header names neither the frames nor the queries", "run `arr-stream process` again"
    elif provenance.source.kind not in _RECORDED:
        fault = f"records of a live source ({provenance.source.kind}), which cannot be read again"
        remedy = "record the stream to a file and run `arr-stream process` on that"
    elif provenance.realtime:
        fault = "made in real time, where no two runs are the same"
        remedy = "run `arr-stream process` on the file"
    elif provenance.question is not None:
        fault = f"a model chose with the question {provenance.question.text!r}"
        remedy = "run `arr-stream ask` again"
    else:
        return provenance
    raise NotReplayable(f"{path}: {fault}", remedy=remedy)


class Comparison:
    """Consumer that compares each frame with its record, except for times.

    Records of a run that was killed or failed are compared up to their end.

    Args:
        recording: The records.
        header: Header of the new run.
        stop: Set at the end of records that have fewer frames than the source.

    Attributes:
        frames: Number of equal frames.
        over: The records were compared to their end.

    Raises:
        RecordsDiffer: The header differs; from `consume` and `close`, a frame does.
        EvaluationDataError: A line is malformed (later lines when they are reached).
    """

    def __init__(self, recording: Recording, header: Header, stop: threading.Event) -> None:
        self.frames = 0
        self.over = False
        self._path, self._header, self._stop = recording.path, header, stop
        self._digest = Digest()
        self._lines = (line for line in read_lines(recording.path) if line["type"] != "answer")
        self._compare(next(self._lines), header_record(header), "the header")

    @property
    def verdict(self) -> str:
        """Result of the comparison in one line."""
        frames = "1 frame" if self.frames == 1 else f"{self.frames} frames"
        part = ", as far as the records go" if self._stop.is_set() else ""
        return f"the same records: {frames}{part}; digest {self._digest.hexdigest()}"

    def consume(self, frame: Frame, patches: PatchSet) -> None:
        expected = next(self._lines, None)
        if expected is not None and expected["type"] == "frame":
            self._compare(expected, frame_record(patches, self._header), f"frame {patches.index}")
            self.frames += 1
            return
        if expected is not None and expected.get("reason") in _COMPLETE:
            raise self._differ(f"frame {patches.index} comes after the last one in the records")
        self.over = True
        self._stop.set()

    def close(self, *, failed: bool = False, outcome: Outcome | None = None) -> None:
        """Check, at the end of a complete run, that every record has had its frame."""
        if outcome is not None and outcome.reason in _COMPLETE:
            expected = next(self._lines, None)
            if expected is not None and expected["type"] == "frame":
                index = expected["index"]
                raise self._differ(f"frame {index} is in the records and did not come")
            self.over = True

    def _compare(self, expected: Mapping[str, Any], found: Mapping[str, Any], where: str) -> None:
        self._digest.add(found)
        if canonical(expected) != canonical(found):
            raise self._differ(f"{where} is not the same in {_where(expected, found)}")

    def _differ(self, what: str) -> RecordsDiffer:
        return RecordsDiffer(
            f"{self._path}: {what}",
            remedy="compare the input, the settings and the versions with those of the records",
        )


def _where(expected: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """Return the keys under which two lines differ."""
    one, other = comparable(expected), comparable(found)
    keys = [key for key in {**one, **other} if one.get(key) != other.get(key)]
    return ", ".join(keys[:4]) + (" and more" if len(keys) > 4 else "")


def _query(asked: Asked) -> Query:
    if isinstance(asked, AskedRegion):
        return RegionQuery(asked.xywh, asked.at_seconds)
    if isinstance(asked, AskedExample):
        _check_file(asked.picture)
        return load_example(asked.picture.path)
    return parse_text(asked.text)


def _check_file(expected: FileIdentity) -> None:
    """Compare a file other than the source with its recorded identity.

    Raises:
        SourceNotFound: It is missing.
        SourceChanged: It differs.
    """
    try:
        found = file_identity(expected.path)
    except OSError as exc:
        raise SourceNotFound(
            f"{expected.path}: {(exc.strerror or str(exc)).lower()}", remedy="put it back where it was"
        ) from exc
    _check_identity(expected, found, expected.path)


def _check_identity(expected: FileIdentity, found: FileIdentity, name: str) -> None:
    """Compare hashes, if the records have one."""
    if expected.sha256 is not None and found.sha256 != expected.sha256:
        hashes = f"SHA-256 {(found.sha256 or '')[:12]}... instead of {expected.sha256[:12]}..."
        raise SourceChanged(
            f"{name}: not the recorded file: {hashes}",
            remedy="give the recorded file as the second argument",
        )
