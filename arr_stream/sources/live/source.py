"""Source that survives breaks: it opens, reads, detects stalls, and reopens."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

from arr_stream.errors import ArrStreamError, LiveSourceError, NoFrames, SourceDamaged, SourceTooLarge, StreamSilent
from arr_stream.sources.base import Source, SourceKind
from arr_stream.sources.clock import ArrivalClock
from arr_stream.sources.live.connection import Arrived, Connection, Interrupt, OnState, Opener, SourceState, StateName
from arr_stream.types import Frame

RETRY_SECONDS = 0.5
"""Pause before the second attempt to reopen a source; each further one is doubled."""
LONGEST_RETRY_SECONDS = 2.0
_CLOSE_SECONDS = 5.0


class LiveSource(Source):
    """Frames of a live source, across breaks, stalls, and changes of size or codec.

    `close` may be called from any thread, and ends the frames at once, even while the reading thread waits.

    Args:
        opener: Opens the source once.
        name: Its name; without passwords.
        kind: See `SourceInfo`.
        reopen: Reopen after breaks; otherwise an error of the source ends the frames.
        on_state: Called at every change, from the reading thread.

    Raises:
        SourceError: On opening: the reason for a missing first picture.
    """

    def __init__(
        self,
        opener: Opener,
        *,
        name: str,
        kind: SourceKind,
        reopen: bool = True,
        on_state: OnState | None = None,
        interrupt: Interrupt | None = None,
    ) -> None:
        super().__init__()
        self._opener, self._name = opener, name
        self._reopen, self._on_state = reopen, on_state
        self._interrupt = interrupt or Interrupt()
        self._taken = False
        self._reading = threading.RLock()
        self._connection: Connection | None = None
        self._clock = ArrivalClock()
        self._next_index = 0
        self._over = False
        self._tell("connecting", attempt=1)
        try:
            with self._reading:
                arrivals, first = self._connect()
                assert self._connection is not None
                size_wh = first.rgb.shape[1], first.rgb.shape[0]
                self.info = replace(self._connection.info, name=name, kind=kind, size_wh=size_wh, live=True)
        except ArrStreamError as exc:
            self._over = True
            self._tell("failed", exc.message, attempt=1)
            self.close()
            raise
        except BaseException:
            self.close()
            raise
        self._first, self._made = self._frame(first), self._frames(arrivals)
        self._tell("live")

    def frames(self) -> Iterator[Frame]:
        """Yield frames as `Source.frames`; none if the source was closed before, from any thread."""
        was_taken, self._taken = self._taken, True
        return iter(()) if self._interrupt.stopped and not was_taken else super().frames()

    def _release(self) -> None:
        self._interrupt.set()
        # The reading thread stops soon; if it does not, it closes the connection itself.
        if self._reading.acquire(timeout=_CLOSE_SECONDS):
            try:
                self._disconnect()
            finally:
                self._reading.release()

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with self._interrupt.within(1.0):
                connection.close()

    def _tell(
        self, state: StateName, message: str | None = None, *, attempt: int = 0, next_retry_seconds: float | None = None
    ) -> None:
        if self._on_state is not None:
            self._on_state(SourceState(state, message, attempt, next_retry_seconds))

    def _connect(self) -> tuple[Iterator[Arrived], Arrived]:
        """Open it and wait for its first picture."""
        self._disconnect()
        self._connection = self._opener(self._interrupt, self.stats)
        arrivals = self._connection.pictures()
        first = next(arrivals, None)
        if first is None:
            raise NoFrames(f"{self._name}: ended before its first picture", remedy="check that the source sends video")
        self._clock.restart()
        return arrivals, first

    def _frame(self, arrived: Arrived) -> Frame:
        index, self._next_index = self._next_index, self._next_index + 1
        pts_seconds = self._clock.place(arrived.own_seconds, arrived.captured_seconds)
        return Frame(index, pts_seconds, arrived.rgb, captured_seconds=arrived.captured_seconds)

    def _frames(self, arrivals: Iterator[Arrived]) -> Iterator[Frame]:
        while not self._interrupt.stopped:
            problem: ArrStreamError | None = None
            try:
                with self._reading:
                    arrived = next(arrivals, None)
            except ArrStreamError as exc:
                problem = exc
            if problem is not None:
                # Not while the error is being handled: PyAV's iterators would hold it, and with it the connection that
                # it refers to, for as long as they live.
                again = self._reconnected(problem)
                problem = None
                if again is None:
                    break
                arrivals, arrived = again
            if arrived is None:
                break
            yield self._frame(arrived)
        if not self._over:
            self._over = True
            self._tell("ended")

    def _reconnected(self, problem: ArrStreamError) -> tuple[Iterator[Arrived], Arrived] | None:
        """Reopen it until a picture arrives; return None when stopped meanwhile.

        Raises:
            ArrStreamError: A retry is useless.
        """
        if self._interrupt.stopped:
            return None
        if not self._reopen:
            raise self._failed(problem)
        if isinstance(problem, StreamSilent):
            self.stats.stalls += 1
            self._tell("stalled", problem.message)
        attempt, pause_seconds = 1, 0.0
        while True:
            permanent = isinstance(problem, LiveSourceError) and problem.permanent
            if permanent or isinstance(problem, SourceTooLarge):
                raise self._failed(problem)
            self._tell("reconnecting", problem.message, attempt=attempt, next_retry_seconds=pause_seconds or None)
            with self._reading:
                self._disconnect()
            if self._interrupt.wait(pause_seconds):
                return None
            if pause_seconds:
                self._tell("reconnecting", problem.message, attempt=attempt)
            try:
                with self._reading:
                    again = self._connect()
            except ArrStreamError as exc:
                if self._interrupt.stopped:
                    return None
                problem, attempt = exc, attempt + 1
                pause_seconds = min(max(2 * pause_seconds, RETRY_SECONDS), LONGEST_RETRY_SECONDS)
                continue
            self.stats.reconnects += 1
            self._tell("live")
            # The error refers to this frame, and this frame to the error: its objects would be freed late.
            del problem
            return again

    def _failed(self, problem: ArrStreamError) -> ArrStreamError:
        self._over = True
        self._tell("ended" if isinstance(problem, SourceDamaged) else "failed", problem.message)
        return problem
