"""Runs a stream into its consumers, and sees to it that everything ends: on success, on error and on Ctrl-C."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Protocol

from arr_stream.config import public_settings
from arr_stream.consumer import Consumer, EndReason, Outcome, Waits
from arr_stream.draw.annotate import AnnotatedVideo
from arr_stream.draw.report import Report
from arr_stream.errors import ArrStreamError, ConsumerFailed, SourceDamaged, SourceNotFound
from arr_stream.patch_set import PatchSet
from arr_stream.plain_text import redact_url
from arr_stream.records.json_lines import Records
from arr_stream.records.provenance import Provenance, Question, provenance_of
from arr_stream.records.schema import Header
from arr_stream.relevance.query import RegionQuery
from arr_stream.selection.budget import budget_tokens
from arr_stream.sources.base import Source
from arr_stream.stream import Stream
from arr_stream.threads import one_opencv_thread
from arr_stream.types import Frame
from arr_stream.vlm.live_watcher import LiveWatcher
from arr_stream.vlm.watcher import Ending, Watcher


class Frames(Protocol):
    """What can be run into consumers: a `Stream`, or one that was recorded; see there for what these are."""

    source: Source
    frame: Frame | None
    dropped: int
    realtime: bool
    look_ahead: bool
    last: bool

    def __iter__(self) -> Iterator[PatchSet]: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended.

    Args:
        frames: Frames processed.
        dropped: Frames that real time passed over.
        reason: Why it ended.
        error: What ended it early, None otherwise.
    """

    frames: int
    dropped: int
    reason: EndReason
    error: Exception | None = None


def run(
    stream: Frames,
    consumers: Sequence[Consumer],
    *,
    watcher: Watcher | LiveWatcher | None = None,
    on_frame: Callable[[PatchSet], None] | None = None,
    stop: threading.Event | None = None,
) -> RunResult:
    """Process every frame of a stream.

    Errors do not escape: they stand in the result, after every consumer has been closed, so that what was done
    is never lost. A frame's records are complete before the next frame is processed.

    Args:
        stream: The stream; closed in the end.
        consumers: Each is given every frame, in this order, and closed.
        watcher: Shows the frames to a model; closed in the end. Consumers get its answers with the patch sets.
        on_frame: Called after the consumers, such as for progress.
        stop: Ends the run after the present frame when set.
    """
    stop = stop or threading.Event()
    for consumer in consumers:
        if isinstance(consumer, Waits):
            consumer.stop = stop
    frames = 0
    reason: EndReason = "finished"
    error: Exception | None = None
    try:
        with nullcontext() if stream.realtime else one_opencv_thread():
            for frame, patches in _watched(stream, watcher, stop):
                for consumer in consumers:
                    _consume(consumer, frame, patches)
                frames += 1
                if on_frame is not None:
                    on_frame(patches)
                if stop.is_set() and (watcher is None or not watcher.busy):
                    reason = "interrupted"
                    break
            if stop.is_set():
                # A live source that is closed to end the run just ends.
                reason = "interrupted"
    except KeyboardInterrupt:
        reason = "interrupted"
        stop.set()
    except SourceDamaged as exc:
        reason, error = "damaged", exc
    except Exception as exc:
        reason, error = "failed", exc
    except BaseException:
        # Such as a library that ends the program; what was written is not to call itself finished.
        reason = "failed"
        raise
    finally:
        with _uninterrupted(stop):
            stream.close()
            if watcher is not None:
                watcher.close()
            error = _close(consumers, stream, reason, error) or error
    return RunResult(frames, stream.dropped, "failed" if error is not None and reason == "finished" else reason, error)


def _watched(
    stream: Frames, watcher: Watcher | LiveWatcher | None, stop: threading.Event
) -> Iterator[tuple[Frame, PatchSet]]:
    """Frames and their patch sets, with what a watcher made of them."""
    stream.look_ahead = watcher is not None
    for patches in stream:
        assert stream.frame is not None
        if watcher is None:
            yield stream.frame, patches
            continue
        ending: Ending | None = "stopped" if stop.is_set() else "last" if stream.last else None
        yield stream.frame, watcher.watch(stream.frame, patches, ending)


def _consume(consumer: Consumer, frame: Frame, patches: PatchSet) -> None:
    try:
        consumer.consume(frame, patches)
    except ArrStreamError:
        raise
    except Exception as exc:
        name = type(consumer).__name__
        raise ConsumerFailed(f"{name} failed on frame {patches.index}: {type(exc).__name__}: {exc}") from exc


def _close(
    consumers: Sequence[Consumer], stream: Frames, reason: EndReason, error: Exception | None
) -> Exception | None:
    """Close every consumer, whatever happens; the first error that comes of it."""
    counters = asdict(stream.source.stats)
    if isinstance(stream, Stream) and stream.keyframe_tally.failures:
        counters["keyframe_failures"] = dict(stream.keyframe_tally.failures)
    outcome = Outcome(reason, stream.dropped, str(error) if error is not None else None, counters)
    first: Exception | None = None
    for consumer in consumers:
        if first is not None and outcome.reason == "finished":
            # Those that are closed later write it down: records come last.
            outcome = replace(outcome, reason="failed", error=str(first))
        try:
            consumer.close(failed=reason == "failed", outcome=outcome)
        except ArrStreamError as exc:
            first = first or exc
        except Exception as exc:
            name = type(consumer).__name__
            failure = ConsumerFailed(f"{name} failed to close: {type(exc).__name__}: {exc}")
            failure.__cause__ = exc
            first = first or failure
    return first


def annotated_video(
    stream: Stream, path: Path, *, view: str = "patches", audio: bool = True, force: bool = False
) -> AnnotatedVideo:
    """A consumer that writes a stream's annotated video."""
    region = next((query for query in stream.queries if isinstance(query, RegionQuery)), None)
    x, y, w, h = region.xywh if region is not None else (0.0, 0.0, 0.0, 0.0)
    return AnnotatedVideo(
        path,
        size_wh=stream.source.info.size_wh,
        source=stream.source.info,
        view=view,
        settings=stream.settings.video,
        force=force,
        audio=audio,
        start_seconds=stream.start_seconds,
        end_seconds=stream.end_seconds,
        asked=stream.asked,
        region_xyxy=(x, y, x + w, y + h) if region is not None else None,
        region_at_seconds=region.at_seconds if region is not None else 0.0,
    )


def records_of(stream: Stream, path: Path, *, force: bool = False, question: Question | None = None) -> Records:
    """A consumer that writes a stream's records; `question` is what a model is asked of it.

    Raises:
        SourceNotFound: The source, or another file that has a say, has gone since it was opened.
    """
    return Records(path, header_of(stream, question), force, timings=writes_timings(stream))


def header_of(stream: Stream, question: Question | None = None) -> Header:
    """The header of a stream's records.

    Raises:
        SourceNotFound: As `records_of`.
    """
    query = [redact_url(query.label) for query in stream.queries]
    public_words = " ".join(query).casefold()
    return Header.for_grid(
        stream.grid,
        source=stream.source.info.name,
        query=query or None,
        unknown_words=[word for word in stream.unknown_words if word in public_words],
        budget_tokens=budget_tokens(stream.settings.selection.budget, stream.grid.cells),
        config=public_settings(stream.settings),
        provenance=_provenance(stream, question),
    )


def writes_timings(stream: Stream) -> bool:
    """Whether its records say what took how long, as `records.timings` has it."""
    setting = stream.settings.records.timings
    return stream.realtime if setting == "auto" else setting == "on"


def _provenance(stream: Stream, question: Question | None) -> Provenance:
    try:
        return provenance_of(stream, question)
    except OSError as exc:
        raise SourceNotFound(
            f"{exc.filename or stream.source.info.name}: cannot be read any more: {(exc.strerror or str(exc)).lower()}",
            remedy="leave it where it is until the run is over",
        ) from exc


def report_of(stream: Stream, folder: Path, *, force: bool = False) -> Report:
    """A consumer that writes a stream's report."""
    source = {
        key: str(value) if isinstance(value, Path) else value for key, value in asdict(stream.source.info).items()
    }
    if "://" in stream.source.info.name:
        # What was fetched lies in a file that is gone when the report is read.
        source.pop("path", None)
    return Report(folder, force, source=source, asked=stream.asked, settings=stream.settings)


@contextmanager
def _uninterrupted(stop: threading.Event) -> Iterator[None]:
    """Ctrl-C only sets `stop`: files are being closed, which takes seconds at most, but for pipes that nobody reads."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, lambda *_: stop.set())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
