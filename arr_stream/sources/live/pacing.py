"""Holds what could come faster back to its own speed."""

from __future__ import annotations

import time

from arr_stream.sources.live.interrupt import Interrupt

_LATEST_SECONDS = 1.0


class Pace:
    """Waits until each time is due, counted from the first.

    Whoever falls more than a second behind, such as a machine that slept, goes on at the usual speed and does not
    sprint; times that jump ahead or back are taken as the beginning of something new.

    Args:
        interrupt: Ends the wait.
    """

    def __init__(self, interrupt: Interrupt) -> None:
        self._interrupt = interrupt
        self._start_seconds: float | None = None
        self._last = 0.0

    def wait_until(self, own_seconds: float) -> None:
        """Sleep until this time of the source is due."""
        now = time.monotonic()
        late = 0.0 if self._start_seconds is None else now - self._start_seconds - own_seconds
        if (
            self._start_seconds is None
            or late > _LATEST_SECONDS
            or abs(own_seconds - self._last) > 10 * _LATEST_SECONDS
        ):
            self._start_seconds = now - own_seconds
        self._last = own_seconds
        due = self._start_seconds + own_seconds - now
        if due > 0:
            self._interrupt.wait(due)
