"""A way out of FFmpeg's blocking calls, at once instead of when their time-out ends.

FFmpeg asks about ten times a second, while it waits for a socket, whether to go on. PyAV answers from a time-out that
is fixed when a container is opened and measured with its module's `time.monotonic`. That clock is replaced by one that
runs off, far into the future, for a thread whose wait is over; for all other threads it is the same clock as before.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import av.container.core

_LEAP_SECONDS = 1e6


class Interrupt:
    """Ends the waits of a thread when it is set from another one, or when a deadline passes."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self.deadline_seconds: float | None = None

    def set(self) -> None:
        self._stop.set()

    @property
    def stopped(self) -> bool:
        return self._stop.is_set()

    @property
    def late(self) -> bool:
        """The deadline, on the clock of `time.monotonic`, has passed."""
        return self.deadline_seconds is not None and time.monotonic() >= self.deadline_seconds

    def wait(self, seconds: float) -> bool:
        """Sleep; True at once when stopped."""
        return self._stop.wait(max(0.0, seconds))

    @contextmanager
    def within(self, seconds: float | None) -> Iterator[None]:
        """FFmpeg's calls of this thread return with an error once stopped, or after so many seconds."""
        _install()
        before = getattr(_CURRENT, "interrupt", None)
        self.deadline_seconds = None if seconds is None else time.monotonic() + seconds
        _CURRENT.interrupt = self
        try:
            yield
        finally:
            _CURRENT.interrupt = before


_CURRENT = threading.local()


class _Clock:
    """Stands where PyAV looks for the module `time`."""

    @staticmethod
    def monotonic() -> float:
        interrupt = getattr(_CURRENT, "interrupt", None)
        if interrupt is None or not (interrupt.stopped or interrupt.late):
            return time.monotonic()
        # Each call leaps ahead of the one before, so that a wait that begins only now ends too.
        _CURRENT.leaps = getattr(_CURRENT, "leaps", 0) + 1
        return float(time.monotonic() + _CURRENT.leaps * _LEAP_SECONDS)


def _install() -> None:
    module = av.container.core
    if isinstance(getattr(module, "time", None), _Clock):
        return
    # A PyAV that keeps time otherwise goes on with its own time-outs, and waits end that much later.
    if hasattr(module, "time"):
        module.time = _Clock()
