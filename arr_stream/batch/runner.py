"""The processing of one file, with models that are loaded once; the workers of every engine use it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import arr_stream
from arr_stream import __version__
from arr_stream.batch import remote
from arr_stream.batch.folder import RECORDS, REPORT, VIDEO, Layout, Workspace
from arr_stream.batch.job import (
    Attempt,
    Done,
    Job,
    JobFailed,
    JobFinished,
    JobOptions,
    options_digest,
    public_options,
)
from arr_stream.batch.plan import identity
from arr_stream.config import Settings
from arr_stream.consumer import BackgroundConsumer, Consumer
from arr_stream.errors import (
    ArrStreamError,
    ConnectionFailed,
    ConsumerFailed,
    FetchFailed,
    NotAMediaFile,
    OutputError,
    SourceDamaged,
    SourceNotFound,
)
from arr_stream.files import output_error
from arr_stream.outputs import annotated_video, records_of, report_of
from arr_stream.plain_text import one_line, redact_url
from arr_stream.relevance.query import make_queries
from arr_stream.run import run
from arr_stream.stream import Models

_MOST_NOTICES = 20
_RETRYABLE = (ConnectionFailed, FetchFailed, MemoryError, OSError)


class JobRunner:
    """Runner that opens a file, selects cells on every frame, and commits the outputs.

    Args:
        options: Options for every file.
        threads: Threads for the pools of the keyframe models; None for half of the cores.
        before_commit: Called after all outputs are written and before they are committed; raises to prevent that.

    Raises:
        ArrStreamError: Models or queries that no file could be done with; see `arr_stream.errors`.
    """

    def __init__(
        self, options: JobOptions, *, threads: int | None = None, before_commit: Callable[[Attempt], None] | None = None
    ) -> None:
        self.options = options
        self._before_commit = before_commit
        self.layout = Layout(Path(options.folder))
        self.settings = Settings.checked(dict(options.settings))
        self.queries = make_queries(options.queries, options.region, options.example)
        self._digest = options_digest(public_options(options))
        self._fetched: Path | None = None
        self._models = Models.load(self.settings, threads)

    def run(self, attempt: Attempt) -> JobFinished | JobFailed:
        """Process a file; an error is returned, not raised, and leaves no output."""
        started = time.monotonic()
        self._fetched = None
        with contextlib.ExitStack() as stack:
            try:
                workspace = Workspace(self.layout, attempt)
                stack.callback(workspace.discard)
                return JobFinished(attempt, self._run(attempt, workspace, started))
            except Exception as exc:
                event = failed(attempt, exc, self.layout)
                # Prefix the source's name if the message lacks it.
                source, message = redact_url(attempt.job.source), self._by_address(event.message, attempt.job)
                return replace(event, message=message if message.startswith(source) else f"{source}: {message}")

    def _run(self, attempt: Attempt, workspace: Workspace, started: float) -> Done:
        job = attempt.job
        # Before the copy: of a source that changes meanwhile, the next run sees another identity.
        before = self._identity(job.source)
        with self._local(job.source, workspace) as path:
            opened = arr_stream.open(
                path,
                queries=self.queries,
                settings=self.settings,
                start_seconds=self.options.start_seconds,
                end_seconds=self.options.end_seconds,
                max_frames=self.options.max_frames,
                models=self._models,
            )
            with opened as stream:
                if "://" in job.source:
                    # Use its address, not the local copy's name.
                    source = cast("Any", stream.source)
                    source.info = replace(source.info, name=redact_url(job.source))
                consumers: list[Consumer] = []
                if self.options.video:
                    video = annotated_video(stream, workspace.video / VIDEO, view=self.settings.video.view)
                    consumers.append(BackgroundConsumer(video))
                if self.options.report:
                    consumers.append(report_of(stream, workspace.video / REPORT))
                records = records_of(stream, workspace.video / RECORDS)
                consumers.append(records)
                # The file's own notices come first.
                notices = dict.fromkeys((*stream.notices, *stream.query_notices.values()))
                result = run(stream, consumers, on_frame=lambda patches: notices.update(dict.fromkeys(patches.notices)))
        if result.error is not None and not isinstance(result.error, SourceDamaged):
            raise result.error
        if result.reason not in ("finished", "damaged"):
            raise KeyboardInterrupt
        done = Done(
            name=job.name,
            source=redact_url(job.source),
            identity=before,
            options=self._digest,
            digest=records.digest,
            frames=result.frames,
            seconds=round(time.monotonic() - started, 3),
            outputs=workspace.outputs(),
            notices=tuple(redact_url(notice) for notice in [*notices][:_MOST_NOTICES]),
            damaged=None if result.error is None else self._by_address(str(result.error), job),
            attempt=attempt.number,
            version=__version__,
        )
        if self._before_commit is not None:
            self._before_commit(attempt)
        return workspace.commit(done)

    @contextlib.contextmanager
    def _local(self, source: str, workspace: Workspace) -> Iterator[Path]:
        """Provide the source as a local file."""
        if "://" not in source:
            yield Path(source)
            return
        limit = self.settings.source.remote_max_bytes
        with remote.fetched(source, self.options.storage, folder=workspace.folder, max_bytes=limit) as path:
            self._fetched = path
            yield path

    def _by_address(self, text: str, job: Job) -> str:
        """Return the text with the local copy's path replaced by its address."""
        return text if self._fetched is None else text.replace(str(self._fetched), redact_url(job.source))

    def _identity(self, source: str) -> Mapping[str, Any]:
        try:
            return identity(source, self.options.storage)
        except (FileNotFoundError, ValueError) as exc:  # a null byte is in no file name
            raise SourceNotFound(f"{source}: no such file", remedy="check the path") from exc
        except OSError as exc:
            raise NotAMediaFile(f"{source}: cannot be read: {exc.strerror}", remedy="check its permissions") from exc


def failed(attempt: Attempt, error: Exception, layout: Layout) -> JobFailed:
    """Return the failure event of an error; write errors of the system become those of `arr_stream.errors`."""
    root: BaseException = error
    while isinstance(root, ConsumerFailed) and root.__cause__ is not None:
        root = root.__cause__
    again = isinstance(root, _RETRYABLE)
    if isinstance(error, OSError) and Path(str(error.filename)).is_relative_to(layout.folder):
        error = output_error(error, Path(error.filename))
    if isinstance(error, ArrStreamError):
        message, remedy, code = error.message, redact_url(error.remedy or ""), error.exit_code
    else:
        message, remedy, code = one_line(f"{type(error).__name__}: {error}"), "", 1
    retryable = again and not isinstance(error, OutputError)
    return JobFailed(attempt, type(error).__name__, redact_url(message), remedy, code, retryable=retryable)
