"""Execution of a run: signals, figures, its last line, and its exit code."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from arr_stream.cli.console import AnswerPrinter, Reporter, counted, interrupted
from arr_stream.errors import OutputUnwritable
from arr_stream.files import STANDARD_OUTPUT, prepare_output

if TYPE_CHECKING:
    from arr_stream.consumer import Consumer, Outcome
    from arr_stream.patch_set import PatchSet
    from arr_stream.records.provenance import Question
    from arr_stream.run import RunResult
    from arr_stream.stream import Stream
    from arr_stream.types import Frame
    from arr_stream.vlm import ModelSession
    from arr_stream.vlm.watcher import LiveWatcher, Plan, Watcher

_FRAMES = 36_000
"""Most frames in a median: twenty minutes at 30 frames a second."""


class Figures:
    """Consumer that counts frames and times them.

    Attributes:
        last_ms, total_ms: Latency of the last frame, and of all together.
        latency_ms: Latencies of the most recent frames; see `Recent`.
        ages_ms: Times from capture to the end of processing.
        quality: Largest reduction of quality in the run, in levels.
    """

    def __init__(self) -> None:
        from arr_stream.consumer import Recent

        self.frames = self.keyframes = self.quality = 0
        self.last_ms = self.total_ms = 0.0
        self.latency_ms = Recent(_FRAMES)
        self.ages_ms = Recent(_FRAMES)

    def consume(self, frame: Frame, patches: PatchSet) -> None:
        from arr_stream.consumer import total_ms

        self.frames += 1
        self.keyframes += patches.keyframe
        self.quality = max(self.quality, patches.quality)
        self.last_ms = total_ms(patches.latency_ms)
        self.total_ms += self.last_ms
        self.latency_ms.add(self.last_ms)
        if frame.captured_seconds is not None:
            self.ages_ms.add((time.monotonic() - frame.captured_seconds) * 1e3)

    def close(self, *, failed: bool = False, outcome: Outcome | None = None) -> None: ...


@dataclass(frozen=True)
class Outputs:
    """Files that a run writes.

    Args:
        video: Annotated video.
        patches: Records; `-` for standard output.
        report: Folder of the report.
        force: Overwrite files.
        view: View that the video shows.
        live: Leave out frames that the video's encoder is too slow for.
    """

    video: Path | None = None
    patches: Path | None = None
    report: Path | None = None
    force: bool = False
    view: str = "patches"
    live: bool = False

    @property
    def written(self) -> list[Path]:
        """Return the files and folders that exist now."""
        paths = [path for path in (self.video, self.patches, self.report) if path is not None]
        return [path for path in paths if path == STANDARD_OUTPUT or path.exists()]

    def check(self, source: str) -> None:
        """Check that every output can be written, before models are loaded.

        Raises:
            InvalidSetting: There is no such view.
            OutputError: See `arr_stream.errors`.
        """
        if self.view != "patches":
            from arr_stream.draw.views import check_view

            check_view(self.view)
        for path in (self.video, self.patches):
            if path is not None and path.exists() and Path(source).exists() and path.samefile(source):
                raise OutputUnwritable(
                    f"{path}: is the source itself", remedy="choose another name; --force does not apply"
                )
        if self.video is not None and self.patches is not None and self.video.resolve() == self.patches.resolve():
            raise OutputUnwritable(
                f"{self.video}: named twice, for the video and the records", remedy="give each its own name"
            )
        if self.video is not None:
            prepare_output(self.video, self.force)
        if self.patches is not None:
            prepare_output(self.patches, self.force, direct=True)
        if self.report is not None:
            from arr_stream.draw.report import prepare_report

            prepare_report(self.report, self.force)

    def consumers(self, stream: Stream, question: Question | None = None) -> list[Consumer]:
        """Return the consumers that write; the records include the question to the model."""
        if not (self.video or self.report or self.patches):
            return []
        from arr_stream.consumer import BackgroundConsumer
        from arr_stream.outputs import annotated_video, records_of, report_of

        consumers: list[Consumer] = []
        if self.video is not None:
            video = annotated_video(stream, self.video, view=self.view, force=self.force)
            waiting = 8 if self.live else 3
            consumers.append(BackgroundConsumer(video, waiting, drops_for=str(self.video) if self.live else None))
        if self.report is not None:
            consumers.append(report_of(stream, self.report, force=self.force))
        # Last: a frame's record implies that all other outputs of the frame are written.
        if self.patches is not None:
            consumers.append(records_of(stream, self.patches, force=self.force, question=question))
        return consumers


@contextmanager
def stop_on_signals(*, hangup: bool = False, on_stop: Callable[[], object] | None = None) -> Iterator[threading.Event]:
    """Yield an event that the first Ctrl-C or SIGTERM sets; a second Ctrl-C interrupts at once.

    Args:
        on_stop: Called once, when the event is set.
        hangup: Set the event too if the terminal goes away, unless that signal is ignored, as under nohup.
    """
    stop = threading.Event()

    def handle(number: int, _frame: object) -> None:
        if stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        if on_stop is not None and not stop.is_set():
            on_stop()
        stop.set()

    numbers = [signal.SIGINT, signal.SIGTERM]
    if hangup and hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_told(
    stream: Stream,
    consumers: Sequence[Consumer],
    reporter: Reporter,
    figures: Figures,
    *,
    stop: threading.Event,
    watcher: Watcher | LiveWatcher | None = None,
    beside: Sequence[Consumer] = (),
) -> RunResult:
    """Run a stream into its consumers, report its progress, and print the consumers' notices at the end.

    Consumers that are `beside` come before the others, and report for themselves.
    """
    from arr_stream.pipeline import LEADING
    from arr_stream.run import run

    asked, best = stream.queries, tuple[float, ...]()

    def on_frame(patches: PatchSet) -> None:
        nonlocal asked, best
        if stream.queries != asked:
            asked, best = stream.queries, ()
        best = tuple(max(both) for both in zip_longest(best, patches.query_scores, fillvalue=0.0))
        for notice in patches.notices:
            reporter.notice(notice)
        reporter.frame(figures.frames - 1, figures.last_ms, patches.tokens)

    for notice in stream.notices:
        reporter.notice(notice)
    for notice in stream.query_notices.values():
        reporter.warning(notice)
    result = run(stream, [figures, *beside, *consumers], watcher=watcher, on_frame=on_frame, stop=stop)
    tell_notices(consumers, reporter)
    for query, score in zip(asked, (*best, *[0.0] * len(asked)), strict=False):
        at = getattr(query, "at_seconds", 0.0)
        if stream.frame is not None and at > stream.frame.pts_seconds + 1e-6:
            reporter.warning(f"{query.label} was never used: no frame at or after {at:g} s was read")
        elif result.frames and score < LEADING and query not in stream.query_notices:
            reporter.warning(f"{query.label}: not found; its relevance was never above {score:.2f}")
    return result


def make_watcher(
    session: ModelSession, plan: Plan, stream: Stream, *, reporter: Reporter, stop: threading.Event
) -> Watcher:
    """Return a watcher that shows a stream to a model and prints its answers to standard output."""
    from arr_stream.vlm.watcher import Watcher

    printer = AnswerPrinter(reporter, with_time=plan.when != "end")
    return Watcher(
        session,
        plan,
        stream=stream,
        fps=stream.settings.vlm.fps,
        on_ask=printer.begin,
        on_text=printer.piece,
        on_answer=printer.answer,
        stop=stop,
    )


def tell_notices(consumers: Sequence[Consumer], reporter: Reporter) -> None:
    """Report the notices of closed consumers."""
    for consumer in consumers:
        for notice in getattr(consumer, "notices", ()):
            reporter.notice(notice)


def last_word(result: RunResult, figures: Figures, written: Sequence[Path]) -> str:
    """Return one line about a run."""
    mean_ms = figures.total_ms / max(1, figures.frames)
    return f"{counts(result, figures)}; {mean_ms:.1f} ms a frame amortised (total / frames){wrote(written)}"


def counts(result: RunResult, figures: Figures, more: Sequence[str] = ()) -> str:
    """Return the counts of a run, and how it ended unless it simply finished."""
    dropped = [f"{result.dropped} dropped"] if result.dropped else []
    ended = [result.reason] if result.reason != "finished" else []
    return ", ".join([counted(result.frames, "frame"), *dropped, counted(figures.keyframes, "keyframe"), *more, *ended])


def wrote(paths: Sequence[Path]) -> str:
    """Return the list of written files for the last line of a run."""
    return "; wrote " + ", ".join(str(path) for path in paths) if paths else ""


def finish(result: RunResult) -> None:
    """Exit with the error or the exit code of a run, if it has one.

    Raises:
        ArrStreamError: An error ended the run early.
    """
    if result.error is not None:
        raise result.error
    if result.reason == "interrupted":
        raise interrupted()
