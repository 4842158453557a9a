"""A file of records, frame by frame, and the source that they were made of."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from arr_stream.config import Settings, setting_keys
from arr_stream.errors import EvaluationDataError, NotReplayable, SourceChanged, SourceNotFound
from arr_stream.plain_text import redact_url
from arr_stream.records.json_lines import iterate_records
from arr_stream.records.provenance import FileIdentity, Provenance, file_identity, source_identity
from arr_stream.records.schema import AnswerRecord, EndRecord, FrameRecord, Header
from arr_stream.sources import open_source
from arr_stream.sources.base import Source

_RECORDED = ("file", "animation", "images")


class RecordedFrame(NamedTuple):
    """A frame's record and the answers that came on the frame."""

    record: FrameRecord
    answers: tuple[AnswerRecord, ...]


class Recording:
    """A file of records; read again from the front each time it is iterated over, one frame at a time.

    Args:
        path: The file; of a killed run, what is whole of it counts.

    Attributes:
        header: Its first line.
        end: Its last line, once it has been iterated over to the end; None where the run was killed.

    Raises:
        EvaluationDataError: Missing, empty or malformed (further lines when they are reached); names the line.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.end: EndRecord | None = None
        first = next(iterate_records(self.path))
        assert isinstance(first, Header)
        self.header = first

    def __iter__(self) -> Iterator[RecordedFrame]:
        frame: FrameRecord | None = None
        answers: list[AnswerRecord] = []
        before = -1
        for record in iterate_records(self.path):
            if isinstance(record, AnswerRecord):
                answers.append(record)
                continue
            if frame is not None:
                yield RecordedFrame(frame, tuple(answers))
            frame, answers = None, []
            if isinstance(record, FrameRecord):
                if record.index <= before:
                    raise EvaluationDataError(
                        f"{self.path}: frame {record.index} comes after frame {before}",
                        remedy="one file holds one run, its frames in order",
                    )
                frame, before = record, record.index
            elif isinstance(record, EndRecord):
                self.end = record
        if frame is not None:
            yield RecordedFrame(frame, tuple(answers))

    @property
    def provenance(self) -> Provenance:
        """What it takes to run it again; of records that do not say, what they say."""
        return self.header.provenance or Provenance()

    def settings(self) -> Settings:
        """The settings of the run; nothing is fetched by them.

        Raises:
            InvalidSetting: They are of a version that had others.
        """
        return Settings.checked(self.header.config).with_values({"models.download": False})

    def settings_for_drawing(self) -> Settings:
        """As far as they matter to the video, and as far as this version knows them.

        Raises:
            InvalidSetting: One of them is out of its range.
        """
        known = setting_keys()
        values: dict[str, object] = {}
        for section in ("video", "source"):
            said = self.header.config.get(section)
            values |= {f"{section}.{key}": value for key, value in (said if isinstance(said, dict) else {}).items()}
        # Who decodes does not change the pictures, and not every machine has the unit that did.
        return Settings().with_values(
            {key: value for key, value in values.items() if key in known and key != "source.hardware"}
        )


def source_of(recording: Recording, given: str | None) -> str:
    """The path of the source: the one that is given, else the one that the records name.

    Raises:
        NotReplayable: The records are of a live source.
        SourceNotFound: They are of an address in a store, and no path is given.
    """
    identity = recording.provenance.source
    if identity is not None and identity.kind not in _RECORDED:
        raise NotReplayable(
            f"{recording.path}: records of a live source ({identity.kind}), of which nothing is left",
            remedy="record the stream to a file and run `arr-stream process` on that",
        )
    if given is None and "://" in recording.header.source and not recording.header.source.startswith("file://"):
        raise missing(recording, SourceNotFound(f"{redact_url(recording.header.source)}: an address, and not opened"))
    return given or recording.header.source


def open_recorded(
    recording: Recording,
    given: str | None,
    *,
    start_seconds: float | None = None,
    max_pixels: int = 100_000_000,
) -> Source:
    """Open the source of some records, on the frames that they are of, and make sure that it is the same.

    Args:
        recording: The records.
        given: Where the source is now; None for where it was.
        start_seconds: Leave out the frames before this time, which is the time of one of them.
        max_pixels: As `open_source`.

    Raises:
        SourceNotFound: It is not there.
        SourceChanged: It is another, or has changed since.
        NotReplayable: The records are of a live source.
        SourceError: It cannot be opened.
    """
    spec = source_of(recording, given)
    reading = recording.provenance.reading
    try:
        source = open_source(
            spec,
            video_stream=reading.video_stream,
            start_seconds=reading.start_seconds if start_seconds is None else start_seconds,
            stride=reading.stride,
            max_pixels=max_pixels,
        )
    except SourceNotFound as exc:
        raise missing(recording, exc) from exc
    try:
        check_source(recording, source)
    except BaseException:
        source.close()
        raise
    return source


def missing(recording: Recording, error: SourceNotFound) -> SourceNotFound:
    """The same error with the remedy that records have."""
    return SourceNotFound(
        error.message, remedy=f"say where it is now: arr-stream replay {recording.path} SOURCE, with what follows"
    )


def check_source(recording: Recording, source: Source) -> None:
    """Make sure that a source is what the records were made of; without a hash in the records, whatever is there is.

    Raises:
        SourceChanged: It is not.
    """
    expected = recording.provenance.source
    if expected is not None and expected.sha256 is not None:
        _check_identity(expected, source_identity(source), source.info.name)


def check_file(expected: FileIdentity) -> None:
    """Make sure that a file is as it was.

    Raises:
        SourceNotFound: It is not there.
        SourceChanged: It is not.
    """
    try:
        found = file_identity(expected.path)
    except OSError as exc:
        raise SourceNotFound(
            f"{expected.path}: {(exc.strerror or str(exc)).lower()}", remedy="put it back where it was"
        ) from exc
    if expected.sha256 is not None:
        _check_identity(expected, found, expected.path)


def _check_identity(expected: FileIdentity, found: FileIdentity, name: str) -> None:
    """Compare hashes; where they differ, tell the sizes as well, or the first digits where those are the same."""
    if found.sha256 == expected.sha256:
        return
    of = "" if found.files == expected.files else f" in {found.files} files instead of {expected.files}"
    how = f"{found.size_bytes} bytes{of} instead of {expected.size_bytes}"
    if (found.size_bytes, found.files) == (expected.size_bytes, expected.files):
        how = f"SHA-256 {(found.sha256 or '')[:12]}... instead of {(expected.sha256 or '')[:12]}..."
    raise SourceChanged(
        f"{name}: not what the records were made of: {how}", remedy="name the right one after the records"
    )
