"""Readers that run beside the frame loop: frames that are not taken in time are dropped and counted."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator

from arr_stream.types import Frame

_JOIN_SECONDS = 2.0
_PAUSE_SHARE = 0.3
_LONGEST_PAUSE_SECONDS = 0.02


class LiveReader:
    """Reader that takes frames from a source in a thread.

    Iterating waits for the next frame; if the buffer is full, the oldest frame is dropped and counted. An error of the
    source is raised in the iteration, after the frames before it.

    Args:
        frames: The source's frames.
        room: Size of the buffer; with 1 only the newest frame is kept.

    Attributes:
        dropped: Number of dropped frames.
    """

    def __init__(self, frames: Iterator[Frame], room: int = 1) -> None:
        self.dropped = 0
        self._frames = frames
        self._waiting: deque[Frame] = deque()
        self._room = room
        self._done = False
        self._error: BaseException | None = None
        self._stop = threading.Event()
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._read, name="arr-stream-reader", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[Frame]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._done)
                frame = self._waiting.popleft() if self._waiting else None
            if frame is None:
                if self._error is not None:
                    raise self._error
                return
            yield frame

    def close(self) -> None:
        """Stop reading and end the thread."""
        self._stop.set()
        self._thread.join(_JOIN_SECONDS)
        with self._changed:
            self._done = True
            self._changed.notify_all()

    @property
    def waiting(self) -> int:
        """Frames in the buffer."""
        return len(self._waiting)

    def _read(self) -> None:
        try:
            self._hand_out(self._frames)
        except BaseException as exc:
            self._error = exc
        finally:
            with self._changed:
                self._done = True
                self._changed.notify_all()

    def _hand_out(self, frames: Iterator[Frame]) -> None:
        for frame in frames:
            if self._stop.is_set():
                return
            self._offer(frame)

    def _offer(self, frame: Frame) -> None:
        with self._changed:
            if len(self._waiting) >= self._room:
                self._waiting.popleft()
                self.dropped += 1
            self._waiting.append(frame)
            self._changed.notify_all()


class PacedReader(LiveReader):
    """Reader that releases each frame of a recording at its time; if several are due, only the newest.

    The clock starts with the first frame.
    """

    def _hand_out(self, frames: Iterator[Frame]) -> None:
        start_seconds: float | None = None
        asked, previous_pts_seconds = time.monotonic(), 0.0
        for frame in frames:
            now = time.monotonic()
            decoding_seconds = now - asked
            if start_seconds is None:
                start_seconds = now - frame.pts_seconds
            if self._stop.wait(max(0.0, start_seconds + frame.pts_seconds - now)):
                return
            self._offer(frame)
            # Decoding the next frame at once would take a core from the thread that just got this one.
            pause_seconds = (frame.pts_seconds - previous_pts_seconds) * _PAUSE_SHARE
            if decoding_seconds < pause_seconds and self._stop.wait(min(pause_seconds, _LONGEST_PAUSE_SECONDS)):
                return
            asked, previous_pts_seconds = time.monotonic(), frame.pts_seconds
