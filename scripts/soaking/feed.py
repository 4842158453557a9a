"""The camera of the soak: real packets through the real decoder, at the pace of whoever takes the frames."""

from __future__ import annotations

import errno
import io
import random
import threading
import time
import weakref
from collections.abc import Callable

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
from soaking.footage import FPS, Broadcast, Footage

NAME = "soak camera"
SIZES_WH = ((160, 120), (192, 144))

_PACKET_BYTES = 188
_MOST_WAITING = 4
_POLL_SECONDS = 0.02


class Feed:
    """A source that can be disturbed from any thread.

    Args:
        waiting: Frames that wait to be processed; the source gives no more while there are several.
        paced: Give them at their own speed instead, whether or not anybody takes them.

    Attributes:
        stalled: Send nothing.
        away: There is no such camera.
        corrupt: Share of the packets that are damaged.
        hurrying: The pace is that of the clock for now, although it is the pipeline's otherwise.
        taken: Set by whoever has processed a frame.
    """

    def __init__(self, waiting: Callable[[], int], *, paced: bool = False) -> None:
        self.stalled = self.away = self.hurrying = False
        self.corrupt = 0.0
        self.taken = threading.Event()
        self._waiting, self._paced = waiting, paced
        self._footage = [Footage(size_wh, seed=3 * k) for k, size_wh in enumerate(SIZES_WH)]
        self._size = 0
        self._wires: weakref.WeakSet[_Wire] = weakref.WeakSet()
        self._commands: list[Callable[[Broadcast], None]] = []
        self._broadcast = Broadcast(self._footage[0])
        self._random = random.Random(5)
        self._due = time.monotonic()

    def open(self, settings: Settings, on_state: OnState, interrupt: Interrupt | None = None) -> Source:
        """See `StreamRunner`'s opener."""

        def open_once(interrupt: Interrupt, stats: SourceStats) -> Decoding:
            return self._connect(settings, interrupt, stats)

        return LiveSource(
            open_once, name=NAME, kind="camera", settings=settings, on_state=on_state, interrupt=interrupt
        )

    def cut(self, number: int) -> None:
        """The connection ends with this error number."""
        for wire in tuple(self._wires):
            wire.error = number

    def leap(self, seconds: float) -> None:
        """The source's own clock is set."""
        self._commands.append(lambda broadcast: broadcast.leap(seconds))

    def resize(self) -> int:
        """The next pictures have another size; its index in `SIZES_WH`."""
        self._size = 1 - self._size
        footage = self._footage[self._size]
        self._commands.append(lambda broadcast: broadcast.show(footage))
        return self._size

    def next(self, interrupt: Interrupt) -> bytes:
        """The packets of the next picture, when it is time for them; none once the wait is over."""
        while not (interrupt.stopped or interrupt.late):
            if self.stalled:
                interrupt.wait(_POLL_SECONDS)
            elif self._ready(interrupt):
                return self._made()
        return b""

    def _ready(self, interrupt: Interrupt) -> bool:
        if self._paced or self.hurrying:
            now = time.monotonic()
            if now < self._due:
                interrupt.wait(min(_POLL_SECONDS, self._due - now))
                return False
            self._due = max(self._due + 1 / FPS, now - 1.0)
            return True
        if self._waiting() < _MOST_WAITING:
            return True
        self.taken.clear()
        self.taken.wait(_POLL_SECONDS)
        return False

    def _made(self) -> bytes:
        while self._commands:
            self._commands.pop(0)(self._broadcast)
        data = self._broadcast.next()
        return data if not self.corrupt else self._damaged(data)

    def _damaged(self, data: bytes) -> bytes:
        damaged = bytearray(data)
        for start in range(0, len(damaged), _PACKET_BYTES):
            if self._random.random() < self.corrupt:
                for _ in range(8):
                    damaged[start + self._random.randrange(_PACKET_BYTES)] ^= 1 << self._random.randrange(8)
        return bytes(damaged)

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
            raise OSError(self.error, "the soak cut the connection")
        if not self._left:
            self._left = self._feed.next(self._interrupt)
        if not self._left and self._interrupt.late:
            raise TimeoutError(errno.ETIMEDOUT, "nothing came")
        taken, self._left = self._left[:size], self._left[size:]
        return taken
