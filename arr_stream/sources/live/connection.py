"""What every kind of live source gives to the one that reads and reopens it, and a way out of FFmpeg's blocking calls.

FFmpeg asks about ten times a second, while it waits for a socket, whether to go on. PyAV answers from a time-out that
is fixed when a container is opened and measured with its module's `time.monotonic`. That clock is replaced by one that
runs off, far into the future, for a thread whose wait is over; for all other threads it is the same clock as before.
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

from arr_stream.sources.base import Colour, SourceStats
from arr_stream.types import ByteArray

_LATEST_SECONDS = 1.0
_LONGEST_STEP_SECONDS = 10.0

StateName = Literal["connecting", "live", "stalled", "reconnecting", "ended", "failed"]


@dataclass(frozen=True, slots=True)
class SourceState:
    """How a live source is doing.

    Args:
        state: `connecting` before the first picture, `live` while pictures come, `stalled` when they have stopped
            coming, `reconnecting` from then, or from a break, until a picture is there again, `ended` when it is over
            as it should be, `failed` when it is over because of an error.
        message: One line that says why, without passwords; None where there is nothing to say.
        attempt: Which attempt at opening this is, 1 the first since the last picture.
        next_retry_seconds: How long it waits before the next attempt; None while it does not wait.
    """

    state: StateName
    message: str | None = None
    attempt: int = 0
    next_retry_seconds: float | None = None


OnState = Callable[[SourceState], None]


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


class Pace:
    """Waits until each time is due, counted from the first.

    Whoever falls more than a second behind, such as a machine that slept, goes on at the usual speed and does not
    sprint; times that jump ahead or back are taken as the beginning of something new.
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
    # A PyAV that keeps time otherwise goes on with its own time-outs, and waits end that much later.
    if hasattr(module, "time") and not isinstance(module.time, _Clock):
        module.time = _Clock()


@dataclass(frozen=True, slots=True, eq=False)
class Arrived:
    """One upright picture, just in.

    Args:
        rgb: `[H, W, 3]`, uint8.
        own_seconds: Its time as the source tells it; None where it does not.
        captured_seconds: When it came in, on the clock of `time.monotonic`.
    """

    rgb: ByteArray
    own_seconds: float | None
    captured_seconds: float


@dataclass(frozen=True, slots=True)
class Facts:
    """What a connection knows of its stream; see `SourceInfo` for the fields."""

    codec: str
    average_fps: float | None = None
    pixel_aspect: float = 1.0
    rotation_degrees: int = 0
    has_audio: bool = False
    video_streams: int = 1
    colour: Colour | None = None


class Connection(Protocol):
    """An open live source, good for one pass."""

    @property
    def facts(self) -> Facts: ...

    def pictures(self) -> Iterator[Arrived]:
        """Pictures as they come; ends where the source is over for good.

        Raises:
            SourceError: It broke off, stalled (`StreamSilent`), or gives what cannot be used.
        """
        ...

    def close(self) -> None:
        """Let go of it; only while no other thread reads."""
        ...


Opener = Callable[[Interrupt, SourceStats], Connection]
"""Opens a source once; its calls end early when the interrupt is set."""
