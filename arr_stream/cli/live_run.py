"""Run of a live source: its stream, window, files, alerts and model."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

from arr_stream.cli.console import Log, Reporter, counted, reporting
from arr_stream.cli.models import fetch_needed
from arr_stream.cli.running import Figures, Outputs, counts, finish, make_watcher, run_told, stop_on_signals, wrote
from arr_stream.config import Settings
from arr_stream.live.alerts import Alert, Alerts, Webhook
from arr_stream.live.live_stream import LiveStream
from arr_stream.live.window import Feed, LiveWindow
from arr_stream.plain_text import redact_url
from arr_stream.relevance.query import Query
from arr_stream.run import RunResult
from arr_stream.sources.base import SourceStats
from arr_stream.sources.live import SourceState, open_live
from arr_stream.threads import prepare_for_live
from arr_stream.vlm import make_session
from arr_stream.vlm.watcher import LiveWatcher, Plan

_GRACE_SECONDS = 1.0
"""Seconds that an ending run may wait for its next frame."""


def run_live(
    source: str,
    settings: Settings,
    queries: Sequence[Query],
    write: Outputs,
    *,
    plan: Plan | None,
    rules: Sequence[str],
    post: Sequence[str],
    headless: bool,
    duration: float | None,
    max_frames: int | None,
    log: Log,
) -> None:
    """Run a live source until it ends, its time is up, or the user stops it.

    Raises:
        ArrStreamError: An error prevented the run or ended it early.
    """
    prepare_for_live()
    webhooks = [Webhook(address) for address in post]
    write.check(source.removeprefix("loop:"))
    fetch_needed(settings)
    with contextlib.ExitStack() as stack:
        window = None if headless else stack.enter_context(contextlib.closing(LiveWindow()))
        reporter = stack.enter_context(reporting(None, log))
        session = None
        if plan is not None:
            settings = settings.for_memory()
            # Before the source is opened: nothing reads the source while a model loads.
            session = stack.enter_context(contextlib.closing(make_session(settings)))
        states = SourceStates(reporter)
        opened = open_live(source, settings, on_state=states.update)
        stream = stack.enter_context(LiveStream(opened, settings, queries, max_frames=max_frames))
        feed, figures = Feed(lambda: stream.dropped), Figures()
        alerts = [_alerts(rules, webhooks, stream, reporter)] if rules else []
        consumers = write.consumers(stream)
        for consumer in (*alerts, *consumers):
            stack.callback(consumer.close)
        # Closing the source ends a run that waits for a frame.
        stop = stack.enter_context(
            stop_on_signals(on_stop=lambda: threading.Timer(_GRACE_SECONDS, opened.close).start())
        )
        if duration is not None:
            timer = threading.Timer(duration, opened.close)
            timer.start()
            stack.callback(timer.cancel)
        watcher = live = None
        if session is not None and plan is not None:
            watcher = make_watcher(session, plan, stream, reporter=reporter, stop=stop)
            live = LiveWatcher(watcher)

        def process() -> RunResult:
            return run_told(stream, consumers, reporter, figures, stop=stop, watcher=live, beside=[feed, *alerts])

        shown_age_ms = None
        if window is None:
            result = process()
        else:
            show = partial(window.run, stream, feed, view=write.view, state=states.now)
            result, shown_age_ms = _beside(process, show, stream), window.ages_ms.median
        if stop.is_set() and result.error is None:
            # The user ended a stream that delivered no more frames; it reports "finished".
            result = replace(result, reason="interrupted")
        if result.frames:
            reporter.done(_last_word(result, figures, stream.source.stats, shown_age_ms, write.written))
    finish(result)
    if watcher is not None and watcher.failure is not None and not watcher.answered:
        raise watcher.failure


class SourceStates:
    """Tracker of the state of the source, which reports when it is lost and when it is back."""

    def __init__(self, reporter: Reporter) -> None:
        self._state = "connecting"
        self._message: str | None = None
        self._reporter = reporter
        self._told: str | None = None

    def now(self) -> tuple[str, str | None]:
        """Return the newest state and its message; see `SourceState`."""
        return self._state, self._message

    def update(self, state: SourceState) -> None:
        """Record a change of the source's state; callable from any thread."""
        self._state = state.state
        self._message = redact_url(state.message) if state.message else None
        if state.state in ("stalled", "reconnecting"):
            if self._told != self._message:
                self._told = self._message
                self._reporter.notice(f"{self._message}; it is opened again")
        elif state.state == "live" and self._told is not None:
            self._told = None
            self._reporter.notice("pictures come again")


def _alerts(rules: Sequence[str], webhooks: Sequence[Webhook], stream: LiveStream, reporter: Reporter) -> Alerts:
    """Return the consumer that checks the rules of `--when`."""

    def report(alert: Alert) -> None:
        reporter.notice(f"alert at {alert.pts_seconds:.1f} s: {alert.rule}: {alert.message}")

    name = stream.source.info.name
    return Alerts(rules, stream_name=name, webhooks=webhooks, on_alert=report, on_notice=reporter.notice)


def _beside(process: Callable[[], RunResult], show: Callable[..., None], stream: LiveStream) -> RunResult:
    """Process in a thread, and show in this one, which must own the windows."""
    with ThreadPoolExecutor(1, "arr-stream-run") as runner:
        outcome = runner.submit(process)
        try:
            show(running=lambda: not outcome.done())
        finally:
            stream.source.close()
    return outcome.result()


def _last_word(
    result: RunResult, figures: Figures, stats: SourceStats, shown_age_ms: float | None, written: Sequence[Path]
) -> str:
    """Return one line about a live run."""
    lost = [
        counted(number, what) for number, what in ((stats.reconnects, "reconnect"), (stats.stalls, "stall")) if number
    ]
    times = [f"{figures.latency_ms.median or 0.0:.1f} ms a frame"]
    if figures.ages_ms.median is not None:
        times.append(f"{figures.ages_ms.median:.1f} ms old when processed")
    if shown_age_ms is not None:
        times.append(f"{shown_age_ms:.1f} ms when shown")
    lowered = f"; quality lowered by up to {figures.quality}" if figures.quality else ""
    return f"{counts(result, figures, lost)}; {', '.join(times)} (medians){lowered}{wrote(written)}"
