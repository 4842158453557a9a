"""Interface of every kind of live source for the reader that reopens it, and interruption of FFmpeg's blocking calls.

While FFmpeg waits for a socket, it asks about ten times a second whether to continue. PyAV answers from a timeout that
is fixed when a container is opened and measured with its module's `time.monotonic`. This module replaces that clock by
one that jumps far into the future for a thread whose wait is over; for all other threads it is the same clock as
before.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, Protocol

import av.container.core

from arr_stream.sources.base import SourceInfo, SourceStats
from arr_stream.types import ByteArray

_LATEST_SECONDS = 1.0
_LONGEST_STEP_SECONDS = 10.0

StateName = Literal["connecting", "live", "stalled", "reconnecting", "ended", "failed"]


@dataclass(frozen=True, slots=True)
class SourceState:
    """State of a live source.

    Args:
        state: `connecting` before the first picture, `live` while pictures arrive, `stalled` when they have stopped,
            `reconnecting` from then, or from a break, until the next picture, `ended` after a normal end, `failed`
            after an error.
        message: Reason in one line, without passwords; None without one.
        attempt: Number of this attempt at opening, from 1 after the last picture.
        next_retry_seconds: Pause before the next attempt; None outside a pause.
    """

    state: StateName
    message: str | None = None
    attempt: int = 0
    next_retry_seconds: float | None = None


OnState = Callable[[SourceState], None]


class Interrupt:
    """Interrupt that ends a thread's waits when another thread sets it, or when a deadline passes."""

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
        """True after the deadline, on the clock of `time.monotonic`."""
        return self.deadline_seconds is not None and time.monotonic() >= self.deadline_seconds

    def wait(self, seconds: float) -> bool:
        """Sleep; return True at once when stopped."""
        return self._stop.wait(max(0.0, seconds))

    @contextmanager
    def within(self, seconds: float | None) -> Iterator[None]:
        """Make FFmpeg's calls of this thread return with an error once stopped, or after so many seconds."""
        _install()
        before = getattr(_CURRENT, "interrupt", None)
        self.deadline_seconds = None if seconds is None else time.monotonic() + seconds
        _CURRENT.interrupt = self
        try:
            yield
        finally:
            _CURRENT.interrupt = before


class Pace:
    """Timer that waits until each time is due, counted from the first.

    After a delay of more than a second, as on a machine that slept, it continues at the usual speed without catching
    up. Times that jump ahead or back restart the count.
    """

    def __init__(self, interrupt: Interrupt) -> None:
        self._interrupt = interrupt
        self._start_seconds = -math.inf
        self._last_own = 0.0

    def wait_until(self, own_seconds: float) -> None:
        """Sleep until this time of the source is due."""
        now = time.monotonic()
        jumped = abs(own_seconds - self._last_own) > _LONGEST_STEP_SECONDS
        if jumped or now - self._start_seconds - own_seconds > _LATEST_SECONDS:
            self._start_seconds = now - own_seconds
        self._last_own = own_seconds
        self._interrupt.wait(self._start_seconds + own_seconds - now)


_CURRENT = threading.local()
_LEAP_SECONDS = 1e6


class _Clock:
    """Replacement for the module `time` in PyAV."""

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
    # If PyAV measures time otherwise, its own timeouts apply, and waits end that much later.
    if hasattr(module, "time") and not isinstance(module.time, _Clock):
        module.time = _Clock()


@dataclass(frozen=True, slots=True, eq=False)
class Arrived:
    """Upright picture that just arrived.

    Args:
        rgb: `[H, W, 3]`, uint8.
        own_seconds: Its time by the source's clock; None if the source gives none.
        captured_seconds: Time of arrival, on the clock of `time.monotonic`.
    """

    rgb: ByteArray
    own_seconds: float | None
    captured_seconds: float


class Connection(Protocol):
    """Open live source, good for one pass."""

    @property
    def info(self) -> SourceInfo:
        """Properties of the stream after its first picture; `LiveSource` sets name, kind and size."""
        ...

    def pictures(self) -> Iterator[Arrived]:
        """Yield pictures as they arrive, until the source ends for good.

        Raises:
            SourceError: It broke off, stalled (`StreamSilent`), or delivers unusable data.
        """
        ...

    def close(self) -> None:
        """Close the connection; only while no other thread reads."""
        ...


Opener = Callable[[Interrupt, SourceStats], Connection]
"""Function that opens a source once; its calls end early when the interrupt is set."""
