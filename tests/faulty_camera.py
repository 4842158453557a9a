"""A camera that tests disturb: real packets through the real decoder."""

from __future__ import annotations

import errno
import io
import time
import weakref

import av
import av.error
from av.container import InputContainer

from arr_stream.config import Settings
from arr_stream.errors import ArrStreamError, ConnectionFailed
from arr_stream.sources.base import Source, SourceStats
from arr_stream.sources.live.camera import camera_problem
from arr_stream.sources.live.connection import Interrupt, OnState
from arr_stream.sources.live.decoding import Decoding
from arr_stream.sources.live.source import LiveSource
from tests.endless_footage import FPS, Broadcast, Footage

NAME = "camera"
SIZE_WH = (160, 120)

_POLL_SECONDS = 0.02


class Feed:
    """Source of 30 pictures a second that can be disturbed from any thread.

    Args:
        paced: Send at 30 a second; else as fast as the pictures are read.

    Attributes:
        stalled: Send nothing.
        away: There is no such camera.
    """

    def __init__(self, *, paced: bool = False) -> None:
        self.stalled = self.away = False
        self._paced = paced
        self._wires: weakref.WeakSet[_Wire] = weakref.WeakSet()
        self._broadcast = Broadcast(Footage(SIZE_WH))
        self._due = time.monotonic()

    def open(self, settings: Settings, on_state: OnState, interrupt: Interrupt | None = None) -> Source:
        """See `StreamRunner`'s opener."""

        def open_once(interrupt: Interrupt, stats: SourceStats) -> Decoding:
            return self._connect(settings, interrupt, stats)

        return LiveSource(open_once, name=NAME, kind="camera", on_state=on_state, interrupt=interrupt)

    def cut(self, number: int) -> None:
        """The connection ends with this error number."""
        for wire in tuple(self._wires):
            wire.error = number

    def next(self, interrupt: Interrupt) -> bytes:
        """The packets of the next picture, when it is time for them; none once the wait is over."""
        while not (interrupt.stopped or interrupt.late):
            if self.stalled:
                interrupt.wait(_POLL_SECONDS)
            elif self._ready(interrupt):
                return self._broadcast.next()
        return b""

    def _ready(self, interrupt: Interrupt) -> bool:
        if not self._paced:
            return True
        now = time.monotonic()
        if now < self._due:
            interrupt.wait(min(_POLL_SECONDS, self._due - now))
            return False
        self._due = max(self._due + 1 / FPS, now - 1.0)
        return True

    def connect(self, interrupt: Interrupt, seconds: float) -> InputContainer:
        """A new connection, as FFmpeg has it.

        Raises:
            OSError: There is no such camera, or the connection broke at once.
        """
        if self.away:
            raise OSError(errno.ENODEV, "No such device")
        wire = _Wire(self, interrupt)
        with interrupt.within(seconds):
            container = av.open(wire, "r", format="mpegts", options={"probesize": "200000", "fpsprobesize": "2"})
        self._wires.add(wire)
        return container

    def _connect(self, settings: Settings, interrupt: Interrupt, stats: SourceStats) -> Decoding:
        try:
            container = self.connect(interrupt, settings.live.connect_seconds)
        except (av.error.FFmpegError, OSError) as exc:
            raise self._problem(exc, opened=False) from exc
        return Decoding(
            container, name=NAME, settings=settings, interrupt=interrupt, stats=stats, problem=self._problem
        )

    def _problem(self, error: Exception, *, opened: bool = True) -> ArrStreamError:
        if getattr(error, "errno", None) == errno.ENODEV:
            return camera_problem(NAME, error, opened=opened)
        return ConnectionFailed(f"{NAME}: {error}", remedy="check that it still sends")


class _Wire(io.RawIOBase):
    """What FFmpeg reads from: one connection.

    Attributes:
        error: The connection ends with this error number.
    """

    def __init__(self, feed: Feed, interrupt: Interrupt) -> None:
        self.error = 0
        self._feed, self._interrupt = feed, interrupt
        self._left = b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if self.error:
            raise OSError(self.error, "the test cut the connection")
        if not self._left:
            self._left = self._feed.next(self._interrupt)
        if not self._left and self._interrupt.late:
            raise TimeoutError(errno.ETIMEDOUT, "nothing came")
        taken, self._left = self._left[:size], self._left[size:]
        return taken
