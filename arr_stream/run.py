"""Run of a stream into its consumers, with a clean end: on success, on error and on Ctrl-C."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from arr_stream.consumer import BackgroundConsumer, Consumer, EndReason, Outcome
from arr_stream.errors import ArrStreamError, ConsumerFailed, SourceDamaged
from arr_stream.patch_set import PatchSet
from arr_stream.stream import Stream
from arr_stream.threads import one_opencv_thread
from arr_stream.types import Frame

if TYPE_CHECKING:
    from arr_stream.vlm.watcher import Ending, LiveWatcher, Watcher


@dataclass(frozen=True, slots=True)
class RunResult:
    """Result of a run.

    Args:
        frames: Frames processed.
        dropped: Frames dropped in real time.
        reason: Reason for the end.
        error: Error that ended it early, None otherwise.
    """

    frames: int
    dropped: int
    reason: EndReason
    error: Exception | None = None


def run(
    stream: Stream,
    consumers: Sequence[Consumer],
    *,
    watcher: Watcher | LiveWatcher | None = None,
    on_frame: Callable[[PatchSet], None] | None = None,
    stop: threading.Event | None = None,
) -> RunResult:
    """Process every frame of a stream.

    Errors do not escape: the result holds them, after every consumer has been closed, so that finished work is never
    lost.
    A frame's records are complete before the next frame is processed.

    Args:
        stream: The stream; closed at the end.
        consumers: Each receives every frame, in this order, and is closed.
        watcher: Shows the frames to a model; closed at the end. Consumers get its answers with the patch sets.
        on_frame: Called after the consumers, such as for progress.
        stop: Ends the run after the present frame when set.
    """
    stop = stop or threading.Event()
    for consumer in consumers:
        if isinstance(consumer, BackgroundConsumer):
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
                # A live source that is closed to end the run reports a normal end.
                reason = "interrupted"
    except KeyboardInterrupt:
        reason = "interrupted"
        stop.set()
    except SourceDamaged as exc:
        reason, error = "damaged", exc
    except Exception as exc:
        reason, error = "failed", exc
    except BaseException:
        # For example, a library ends the program: the written files must not be marked as finished.
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
    stream: Stream, watcher: Watcher | LiveWatcher | None, stop: threading.Event
) -> Iterator[tuple[Frame, PatchSet]]:
    """Yield frames and their patch sets, with the watcher's answers."""
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
    consumers: Sequence[Consumer], stream: Stream, reason: EndReason, error: Exception | None
) -> Exception | None:
    """Close every consumer in any case; return the first error."""
    counters = asdict(stream.source.stats)
    if failures := stream.pipeline.keyframes.failures:
        counters["keyframe_failures"] = dict(failures)
    outcome = Outcome(reason, stream.dropped, str(error) if error is not None else None, counters)
    first: Exception | None = None
    for consumer in consumers:
        if first is not None and outcome.reason == "finished":
            # Consumers that are closed later record the error: records are last.
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


@contextmanager
def _uninterrupted(stop: threading.Event) -> Iterator[None]:
    """Let Ctrl-C only set `stop` while files are closed.

    Closing takes seconds at most, except for pipes without a reader.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, lambda *_: stop.set())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
