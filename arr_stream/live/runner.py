"""The runner of one live stream: its thread, its state, its queries and settings."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from arr_stream.config import Settings, public_settings
from arr_stream.consumer import Consumer
from arr_stream.errors import (
    ArrStreamError,
    BackendUnavailable,
    InvalidSetting,
    SettingsError,
    SourceDamaged,
    WeightsInvalid,
)
from arr_stream.keyframes.worker import WorkerPool
from arr_stream.live.alerts import Alert, Alerts, Webhook, parse_rule
from arr_stream.live.live_stream import LiveStream
from arr_stream.live.publishing import EventHub, Publisher
from arr_stream.patch_set import PatchSet
from arr_stream.plain_text import redact_url
from arr_stream.relevance.query import ExampleQuery, Query, RegionQuery, TextQuery, parse_text
from arr_stream.run import run
from arr_stream.sources.base import Source, SourceStats
from arr_stream.vlm.watcher import LiveWatcher, Plan, Watcher

if TYPE_CHECKING:
    from arr_stream.sources.live import Interrupt, OnState, SourceState
    from arr_stream.vlm import ModelSession

Opener = Callable[[Settings, "OnState", "Interrupt"], Source]
"""Function that opens a source; it reports its state to the second argument and stops when the third is set.

Raises:
    SourceError: The source cannot be opened.
"""

_WANT_A_CHANGE = (SettingsError, BackendUnavailable, WeightsInvalid)
"""Errors that a retry cannot fix."""

_FIRST_RETRY_SECONDS = 1.0
_LONGEST_RETRY_SECONDS = 15.0
_JOIN_SECONDS = 3.0
_TELL_SECONDS = 0.5
_SILENT = Plan("", "never")
_DEFAULTS = public_settings(Settings())


@dataclass(frozen=True, slots=True)
class RunnerParts:
    """Parts that streams share.

    Args:
        rules: Alert rules that each stream starts with.
        make_session: Creates the model's session; None without a model.
        post: Addresses that get the alerts; see `Webhook`.
    """

    hub: EventHub
    pool: WorkerPool = field(default_factory=WorkerPool)
    rules: Sequence[str] = ()
    make_session: Callable[[Settings], ModelSession] | None = None
    post: Sequence[str] = ()


class StreamRunner:
    """Runner that processes a source in its own thread, and reopens it after failures, until closed.

    All methods may be called from any thread.

    Args:
        source: The source as given, without secrets; `opener` opens it.
        on_end: Called at the end of a source that cannot be reopened; None if it can be.

    Attributes:
        failure: Message of the error that ended a source that cannot be reopened, set before `on_end` is called.
    """

    def __init__(
        self,
        id: str,
        name: str,
        source: str,
        opener: Opener,
        parts: RunnerParts,
        settings: Settings,
        queries: tuple[Query, ...] = (),
        *,
        preset: str | None = None,
        on_end: Callable[[str], object] | None = None,
    ) -> None:
        self.id = id
        self.name = name
        self.rules = list(parts.rules)
        self.failure: str | None = None
        self.publisher = Publisher(id, parts.hub, self._dropped)
        self._started_unix = time.time()
        self._source_name = source
        self._opener = opener
        self._parts = parts
        self._settings = settings
        self._queries = queries
        self._preset = preset
        self._on_end = on_end
        self._state = "connecting"
        self._message: str | None = None
        self._paused = False
        self._told_seconds = 0.0
        self._stream: LiveStream | None = None
        self._source: Source | None = None
        self._opening: Interrupt | None = None
        self._watcher: LiveWatcher | None = None
        self._asking: Plan | None = None
        self._dropped_before = 0
        self._processed = 0
        self._stop = threading.Event()
        self._again = threading.Event()
        self._lock = threading.RLock()
        self._configuring = threading.Lock()
        self._thread = threading.Thread(target=self._work, name=f"arr-stream-{id}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def live(self) -> bool:
        return self._state == "live"

    @property
    def settings(self) -> Settings:
        stream = self._stream
        return self._settings if stream is None else stream.settings

    @property
    def queries(self) -> tuple[Query, ...]:
        """Current queries; regions in pixels of the upright frame."""
        stream = self._stream
        return self._queries if stream is None else stream.queries

    def status(self) -> dict[str, Any]:
        """Return the status as plain JSON values, without secrets; see docs/api.md."""
        source, stream, newest = self._source, self._stream, self.publisher.newest
        info = source.info if source is not None else None
        stats = source.stats if source is not None else SourceStats()
        size_wh = newest.grid.size_wh if newest is not None else info.size_wh if info is not None else None
        region, example = self.region_xywh, self.example
        faults = stream.query_faults if stream is not None else {}
        return {
            "id": self.id,
            "name": self.name,
            "source": self._source_name,
            "kind": info.kind if info is not None else None,
            "state": "paused" if self.paused and self._state == "live" else self._state,
            "message": self._message,
            "size_wh": list(size_wh) if size_wh is not None else None,
            "source_fps": info.average_fps if info is not None else None,
            "fps": round(self.publisher.fps.value, 2),
            "frames": self._processed,
            "dropped": self._dropped(),
            "reconnects": stats.reconnects,
            "stalls": stats.stalls,
            "concealed": stats.concealed_frames,
            "quality": stream.quality if stream is not None else 0,
            "latency_ms": _rounded(self.publisher.latency_ms.median, 2),
            "age_ms": _rounded(self.publisher.ages_ms.median, 1),
            "tokens": newest.tokens if newest is not None else None,
            "confidence": round(newest.confidence, 4) if newest is not None else None,
            "query": [query.label for query in self.queries],
            "texts": [redact_url(text) for text in self.texts],
            "not_understood": {redact_url(text): redact_url(fault) for text, fault in faults.items()},
            "region": list(region) if region is not None else None,
            "example": example.path.name if example is not None else None,
            "rules": list(self.rules),
            "preset": self._preset,
            "settings": self._changed_settings(),
            "paused": self.paused,
            "plan": asdict(plan) if (plan := self._asking) is not None else None,
            "asking": self.publisher.answering,
            "started_unix": round(self._started_unix, 3),
        }

    @property
    def paused(self) -> bool:
        return self._paused

    @paused.setter
    def paused(self, paused: bool) -> None:
        with self._lock:
            self._paused = paused
            if self._stream is not None:
                self._stream.paused = paused
        self.tell_state()

    def rename(self, name: str) -> None:
        self.name = name
        self.tell_state()

    def ask_for(
        self, texts: Sequence[str], *, region_xywh: Sequence[float] | None = None, example: ExampleQuery | None = None
    ) -> None:
        """Set the queries from the next frame on.

        Raises:
            QueryError, InvalidSetting: A text is empty, or the region is outside the frame.
        """
        queries: list[Query] = [parse_text(text) for text in texts]
        if region_xywh is not None:
            x, y, w, h = region_xywh
            queries.append(RegionQuery((x, y, w, h)))
        if example is not None:
            queries.append(example)
        with self._lock:
            if self._stream is not None:
                self._stream.ask(*queries)
                queries = list(self._stream.queries)
            self._queries = tuple(queries)
            # Without a stream, the notices follow when one is opened.
            notices = self._stream.query_notices.values() if self._stream is not None else ()
        for notice in notices:
            self.publisher.notice(notice)
        self.tell_state()

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(query.text for query in self.queries if isinstance(query, TextQuery))

    @property
    def region_xywh(self) -> tuple[float, float, float, float] | None:
        return next((query.xywh for query in self.queries if isinstance(query, RegionQuery)), None)

    @property
    def example(self) -> ExampleQuery | None:
        return next((query for query in self.queries if isinstance(query, ExampleQuery)), None)

    def set_gaze(self, x: float, y: float) -> None:
        """Add a gaze point, normalised to [0, 1]; ignored while nothing runs."""
        stream = self._stream
        if stream is not None:
            stream.pointer.set_gaze(x, y)

    def configure(self, values: Mapping[str, Any], *, base: Settings | None = None, preset: str | None = None) -> None:
        """Change settings, by dotted key, from those of a `preset` in `base` if given.

        Raises:
            ArrStreamError: An invalid value, or keyframe models that cannot be loaded; the settings stay unchanged.
        """
        with self._configuring:
            settings = (base or self.settings).with_values(values)
            with self._lock:
                stream = self._stream
                if stream is None:
                    self._settings = settings
            if stream is not None:
                # Outside of the lock, since keyframe models may have to be loaded.
                stream.configure(settings)
                # For the next stream: this one may have ended meanwhile.
                self._settings = settings
            if base is not None:
                self._preset = preset
        self.tell_state()

    def question(
        self, question: str, when: Literal["now", "every", "change"] = "now", every_seconds: float = 5.0
    ) -> None:
        """Ask the model: at once, at an interval, or when the scene changes.

        Raises:
            InvalidSetting: No model watches the stream, or the plan is invalid.
        """
        with self._lock:
            if self._watcher is None:
                raise InvalidSetting(f"no model watches {self.name}", remedy="ask when it shows a picture")
            if when == "now":
                self._watcher.request(question)
            else:
                self._watcher.plan = self._asking = Plan(question, when, every_seconds)
        self.tell_state()

    def ask_no_more(self) -> None:
        """Stop repeated questions."""
        with self._lock:
            self._asking = None
            if self._watcher is not None:
                self._watcher.plan = _SILENT
        self.tell_state()

    def watch_for(self, rules: Sequence[str]) -> None:
        """Replace the alert rules, from the next frame on; rules that stay keep their state.

        Raises:
            InvalidSetting: A text is no rule.
        """
        self.rules[:] = dict.fromkeys(parse_rule(rule).text for rule in rules)
        self.tell_state()

    def retry(self) -> None:
        """Reopen a failed or ended source now."""
        self._again.set()

    def tell_state(self) -> None:
        self._parts.hub.publish({"type": "state", "stream": self.id, "status": self.status()})

    def close(self) -> None:
        """End the thread, the source and the keyframe workers; safe to call again."""
        self._stop.set()
        self._again.set()
        with self._lock:
            stream, source, opening = self._stream, self._source, self._opening
        if stream is not None:
            stream.close()
        elif source is not None:
            source.close()
        elif opening is not None:
            opening.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_JOIN_SECONDS)

    def _dropped(self) -> int:
        stream = self._stream
        return self._dropped_before + (stream.dropped if stream is not None else 0)

    def _changed_settings(self) -> dict[str, Any]:
        return {
            f"{section}.{key}": value
            for section, values in public_settings(self.settings).items()
            for key, value in values.items()
            if value != _DEFAULTS[section][key]
        }

    def _work(self) -> None:
        retry_seconds = _FIRST_RETRY_SECONDS
        try:
            while not self._stop.is_set():
                began = self._processed
                error = self._run()
                # A retry request during the run does not ask for another run.
                self._again.clear()
                if self._stop.is_set():
                    break
                message = str(error) if isinstance(error, ArrStreamError) else f"{type(error).__name__}: {error}"
                if self._on_end is not None:
                    self.failure = None if error is None else message
                    break
                if self._processed > began:
                    retry_seconds = _FIRST_RETRY_SECONDS
                if error is None or isinstance(error, SourceDamaged):
                    self._set_state("ended", None if error is None else message)
                    self._again.wait()
                    continue
                lasting = isinstance(error, _WANT_A_CHANGE) or getattr(error, "permanent", False)
                self._set_state("failed", message if lasting else f"{message}; next attempt in {retry_seconds:.0f} s")
                self._again.wait(None if lasting else retry_seconds)
                retry_seconds = min(2 * retry_seconds, _LONGEST_RETRY_SECONDS)
        finally:
            self._set_state("ended")
            if self._on_end is not None:
                self._on_end(self.id)

    def _run(self) -> Exception | None:
        """Open the source and process it to its end; return the error."""
        self._set_state("connecting")
        consumers: list[Consumer] = [self.publisher, self._make_alerts()]
        try:
            with contextlib.closing(self._open()) as stream:
                try:
                    if not self._begin(stream):
                        return None
                    return run(stream, consumers, watcher=self._watcher, on_frame=self._count, stop=self._stop).error
                finally:
                    with self._lock:
                        self._dropped_before += stream.dropped
                        self._stream = self._watcher = None
        except Exception as exc:
            for consumer in consumers:
                consumer.close(failed=True)
            return exc

    def _open(self) -> LiveStream:
        from arr_stream.sources.live import Interrupt

        with self._lock:
            self._source, self._opening = None, Interrupt()
            if self._stop.is_set():
                self._opening.set()
        source = self._opener(self._settings, self._on_source, self._opening)
        with self._lock:
            self._source = source
            settings, queries = self._settings, _fitting(self._queries, source)
        return LiveStream(source, settings, queries, pool=self._parts.pool)

    def _begin(self, stream: LiveStream) -> bool:
        """Apply the changes since the source began to open; return False if the runner was closed meanwhile."""
        with self._configuring:
            with self._lock:
                if self._stop.is_set():
                    return False
                if (queries := _fitting(self._queries, stream.source)) != stream.queries:
                    stream.ask(*queries)
                stream.paused = self._paused
                self._stream = stream
            if self._settings is not stream.settings:
                # Outside of the lock, as in `configure`: `close` must not wait for models.
                stream.configure(self._settings)
        for notice in (*stream.notices, *stream.query_notices.values()):
            self.publisher.notice(notice)
        self._watcher = self._make_watcher(stream)
        self._set_state("live")
        return True

    def _make_alerts(self) -> Alerts:
        def on_alert(alert: Alert) -> None:
            self._parts.hub.publish({**alert.record(), "type": "alert", "stream": self.id})

        return Alerts(
            self.rules,
            stream_name=self.name,
            webhooks=[Webhook(address) for address in self._parts.post],
            on_alert=on_alert,
            on_notice=self.publisher.notice,
        )

    def _make_watcher(self, stream: LiveStream) -> LiveWatcher | None:
        if self._parts.make_session is None:
            return None
        watcher = Watcher(
            self._parts.make_session(self._settings),
            self._asking or _SILENT,
            stream=stream,
            fps=self._settings.vlm.fps,
            on_ask=lambda seconds: self.publisher.asking(watcher.question, seconds),
            on_text=self.publisher.text,
            on_answer=self.publisher.answered,
            stop=self._stop,
        )
        return LiveWatcher(watcher)

    def _count(self, patches: PatchSet) -> None:
        self._processed += 1
        now = time.monotonic()
        if now - self._told_seconds >= _TELL_SECONDS:
            self._told_seconds = now
            self.tell_state()

    def _on_source(self, state: SourceState) -> None:
        # The end is reported after it, with the next step.
        if state.state not in ("ended", "failed"):
            self._set_state(state.state, state.message)

    def _set_state(self, state: str, message: str | None = None) -> None:
        self._state, self._message = state, None if message is None else redact_url(message)
        self.tell_state()


def _fitting(queries: Sequence[Query], source: Source) -> tuple[Query, ...]:
    """Return the queries without regions outside the frame, whose size has changed since."""
    kept: list[Query] = []
    for query in queries:
        with contextlib.suppress(ArrStreamError):
            kept.append(query.checked(source.info.size_wh) if isinstance(query, RegionQuery) else query)
    return tuple(kept)


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
