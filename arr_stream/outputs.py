"""Consumers that write the outputs of a stream's run: annotated video, records, report."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from arr_stream.budget import budget_tokens
from arr_stream.config import public_settings
from arr_stream.draw.annotate import AnnotatedVideo
from arr_stream.draw.report import Report
from arr_stream.errors import SourceNotFound
from arr_stream.records.json_lines import Records
from arr_stream.records.provenance import Provenance, Question, provenance_of
from arr_stream.records.schema import Header
from arr_stream.stream import Stream


def annotated_video(stream: Stream, path: Path, *, view: str = "patches", force: bool = False) -> AnnotatedVideo:
    """Return a consumer that writes a stream's annotated video, without sound."""
    return AnnotatedVideo(
        path,
        size_wh=stream.source.info.size_wh,
        source=stream.source.info,
        view=view,
        settings=stream.settings.video,
        force=force,
        start_seconds=stream.start_seconds,
        asked=stream.asked,
    )


def records_of(stream: Stream, path: Path, *, force: bool = False, question: Question | None = None) -> Records:
    """Return a consumer that writes a stream's records; `question` is the question to a model.

    Raises:
        SourceNotFound: The source, or another file that affects the results, was removed since it was opened.
    """
    return Records(path, header_of(stream, question), force, timings=writes_timings(stream))


def header_of(stream: Stream, question: Question | None = None) -> Header:
    """Return the header of a stream's records.

    Raises:
        SourceNotFound: See `records_of`.
    """
    return Header.for_grid(
        stream.grid,
        source=stream.source.info.name,
        query=[query.label for query in stream.queries] or None,
        unknown_words=list(stream.unknown_words),
        budget_tokens=budget_tokens(stream.settings.selection.budget, stream.grid.cells),
        config=public_settings(stream.settings),
        provenance=_provenance(stream, question),
    )


def writes_timings(stream: Stream) -> bool:
    """Return True if the records hold times, by `records.timings`."""
    setting = stream.settings.records.timings
    return stream.realtime if setting == "auto" else setting == "on"


def _provenance(stream: Stream, question: Question | None) -> Provenance:
    try:
        return provenance_of(stream, question)
    except OSError as exc:
        raise SourceNotFound(
            f"{exc.filename or stream.source.info.name}: can no longer be read: {(exc.strerror or str(exc)).lower()}",
            remedy="keep it in place until the run has ended",
        ) from exc


def report_of(stream: Stream, folder: Path, *, force: bool = False) -> Report:
    """Return a consumer that writes a stream's report."""
    source = {
        key: str(value) if isinstance(value, Path) else value for key, value in asdict(stream.source.info).items()
    }
    if "://" in stream.source.info.name:
        # A fetched source is a temporary file, which is gone when the user reads the report.
        source.pop("path", None)
    return Report(folder, force, source=source, asked=stream.asked, settings=stream.settings)
