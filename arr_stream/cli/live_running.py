"""What `webcam` and `stream` share: a live source through its stream, into a window, files, alerts and a model."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Self

from arr_stream.cli.answering import AnswerPrinter
from arr_stream.cli.console import Reporter, reporting
from arr_stream.cli.live_alerts import check_alerts, make_alerts
from arr_stream.cli.live_figures import Figures, SourceStates, last_word
from arr_stream.cli.live_options import LiveOptions
from arr_stream.cli.models import fetch_needed
from arr_stream.cli.running import check_outputs, finish, make_queries, without_skipping
from arr_stream.config import Settings
from arr_stream.consumer import Consumer
from arr_stream.live.background import LiveBeside
from arr_stream.live.stream import LiveStream
from arr_stream.live.window.loop import Feed, WindowLoop
from arr_stream.live.window.screen import Window
from arr_stream.patch_set import PatchSet
from arr_stream.relevance.query import Query
from arr_stream.run import RunResult, annotated_video, records_of, report_of, run, stop_on_signals
from arr_stream.sources.base import Source
from arr_stream.sources.live import open_live
from arr_stream.threads import prepare_for_live
from arr_stream.vlm import make_viewer
from arr_stream.vlm.live_watcher import LiveWatcher
from arr_stream.vlm.viewer import Viewer
from arr_stream.vlm.watcher import Plan, Watcher

_GRACE_SECONDS = 1.0
"""How long a run that is to end may wait for its next frame."""
_POLL_SECONDS = 0.1


def run_live(options: LiveOptions) -> None:
    """Run a live source until it ends, its time is up, or someone stops it.

    Raises:
        ArrStreamError: What was wrong, or ended it early.
    """
    prepare_for_live()
    settings = options.settings()
    queries = _check(options)
    fetch_needed(settings)
    with contextlib.ExitStack() as stack:
        window = None
        if not options.headless:
            window = stack.enter_context(contextlib.closing(Window("arr-stream")))
        reporter = stack.enter_context(reporting(None, quiet=options.quiet, log_json=options.log_json))
        viewer = None
        if options.question is not None:
            settings, notices = without_skipping(settings)
            for notice in notices:
                reporter.notice(notice)
            # Before the source is opened: nobody reads that while a model loads.
            viewer = stack.enter_context(contextlib.closing(make_viewer(settings)))
        states = SourceStates(reporter)
        source = open_live(options.source, settings, on_state=states.take)
        stream = stack.enter_context(
            LimitedStream(source, settings, queries, max_frames=options.max_frames, on_notice=reporter.notice)
        )
        for notice in stream.notices:
            reporter.notice(notice)
        session = _Session(stream, options, reporter, states, stack)
        result = session.run(viewer, window)
        if result.frames:
            reporter.done(last_word(result, session.figures, stream.source.stats, session.ages_ms, session.written))
    finish(result)
    if session.failure is not None:
        raise session.failure


def _check(options: LiveOptions) -> list[Query]:
    """Say at once, before anything is opened, what cannot be; what is asked."""
    file = options.source.removeprefix("loop:")
    check_outputs(file, output=options.record, patches=options.patches, view=options.view, force=options.force)
    check_alerts(options)
    asked = [options.question] if options.question is not None and options.query is None else options.query
    return make_queries(asked or [], options.region, 0.0, options.example)


class LimitedStream(LiveStream):
    """A live stream that ends after so many frames.

    Args:
        max_frames: None for no end.
        Others: See `LiveStream`.
    """

    def __init__(
        self,
        source: Source,
        settings: Settings,
        queries: list[Query],
        *,
        max_frames: int | None,
        on_notice: Callable[[str], None],
    ) -> None:
        self._max_frames = max_frames
        super().__init__(source, settings, queries, on_notice=on_notice)

    def __iter__(self) -> Iterator[PatchSet]:
        for count, patches in enumerate(super().__iter__(), 1):
            yield patches
            if count == self._max_frames:
                self.close()
                return


class _Session:
    """One run: what takes the frames, and how it goes."""

    def __init__(
        self,
        stream: LiveStream,
        options: LiveOptions,
        reporter: Reporter,
        states: SourceStates,
        stack: contextlib.ExitStack,
    ) -> None:
        self.figures = Figures()
        self.ages_ms: float | None = None
        self._stream, self._options, self._reporter, self._states = stream, options, reporter, states
        self._feed = Feed(lambda: stream.dropped)
        self._watcher: Watcher | None = None
        self._consumers = self._make_consumers()
        for consumer in self._consumers:
            stack.callback(consumer.close)

    @property
    def written(self) -> list[Path]:
        """Files and folders that are there now."""
        named = (self._options.record, self._options.patches, self._options.report)
        return [path for path in named if path is not None and path.exists()]

    @property
    def failure(self) -> Exception | None:
        """Why the model never answered; None where it has, or was not asked."""
        return self._watcher.failure if self._watcher is not None and not self._watcher.answered else None

    def run(self, viewer: Viewer | None, window: Window | None) -> RunResult:
        """Process frames until the end; files are whole then."""
        with stop_on_signals() as stop, _Ending(self._stream, stop, self._options.duration):
            watcher = self._make_watcher(viewer, stop) if viewer is not None else None

            def process() -> RunResult:
                return run(self._stream, self._consumers, watcher=watcher, on_frame=self._tell, stop=stop)

            result = process() if window is None else self._beside(process, window)
            for consumer in self._consumers:
                if isinstance(consumer, LiveBeside):
                    for notice in consumer.notices:
                        self._reporter.notice(notice)
            # A stream that gave nothing more was ended by hand, and says that it has finished.
            return replace(result, reason="interrupted") if stop.is_set() and result.error is None else result

    def _beside(self, process: Callable[[], RunResult], window: Window) -> RunResult:
        """Process in a thread, and show in this one, to which windows belong."""
        runner = _Runner(process)
        loop = WindowLoop(
            window,
            self._stream,
            self._feed,
            view=self._options.view,
            state=lambda: (self._states.state, self._states.message),
            folder=Path(),
        )
        runner.start()
        try:
            loop.run(runner.is_alive)
        finally:
            self._stream.source.close()
            runner.join()
            self.ages_ms = loop.ages_ms.median
        return runner.outcome()

    def _make_consumers(self) -> list[Consumer]:
        stream, options = self._stream, self._options
        consumers: list[Consumer] = [self._feed, self.figures]
        if options.when:
            consumers.append(make_alerts(options, stream, self._reporter.notice))
        if options.record is not None:
            video = annotated_video(stream, options.record, view=options.view, audio=False, force=options.force)
            consumers.append(LiveBeside(video, str(options.record)))
        if options.report is not None:
            consumers.append(report_of(stream, options.report, force=options.force))
        # Last: a frame's record says that everything else about the frame is done.
        if options.patches is not None:
            consumers.append(records_of(stream, options.patches, force=options.force))
        return consumers

    def _make_watcher(self, viewer: Viewer, stop: threading.Event) -> LiveWatcher:
        options, vlm = self._options, self._stream.settings.vlm
        assert options.question is not None
        every = options.every
        plan = Plan(options.question, "change") if every is None else Plan(options.question, "every", every)
        printer = AnswerPrinter(self._reporter, with_time=True)
        self._watcher = Watcher(
            viewer,
            plan,
            fps=vlm.fps,
            on_ask=printer.begin,
            on_text=printer.piece,
            on_answer=printer.answer,
            stop=stop,
        )
        attend = self._stream.attend if vlm.feedback else None
        return LiveWatcher(self._watcher, follow=self._stream.follow, attend=attend)

    def _tell(self, patches: PatchSet) -> None:
        for notice in patches.notices:
            self._reporter.notice(notice)
        self._reporter.frame(self.figures.frames - 1, self.figures.last_ms, len(patches))


class _Runner(threading.Thread):
    """Runs something and keeps what comes of it."""

    def __init__(self, process: Callable[[], RunResult]) -> None:
        super().__init__(name="arr-stream-run", daemon=True)
        self._process = process
        self._result: RunResult | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._result = self._process()
        except BaseException as exc:
            self._error = exc

    def outcome(self) -> RunResult:
        """What came of it; what was raised is raised here."""
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result


class _Ending:
    """Ends a stream when it is stopped or its time is up, although no frame may come that would let it notice.

    Args:
        stream: What to end.
        stop: Set when somebody wants it to end.
        duration_seconds: None for no limit.
    """

    def __init__(self, stream: LiveStream, stop: threading.Event, duration_seconds: float | None) -> None:
        self._source, self._stop = stream.source, stop
        self._until = None if duration_seconds is None else time.monotonic() + duration_seconds
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._work, name="arr-stream-ending", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._done.wait(_POLL_SECONDS):
            stopped = self._stop.is_set()
            if stopped and self._done.wait(_GRACE_SECONDS):
                return
            if stopped or (self._until is not None and time.monotonic() >= self._until):
                self._source.close()
                return
