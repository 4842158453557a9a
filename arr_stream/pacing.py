"""Plays a source at its own speed: the newest frame wins, older ones that nobody took are dropped and counted."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

from arr_stream.types import Frame

_JOIN_SECONDS = 2.0
_PAUSE_SHARE = 0.3
_LONGEST_PAUSE_SECONDS = 0.02


class PacedReader:
    """Reads frames in a thread and hands out each when its time has come.

    The clock starts with the first frame. Iterating waits for the next frame; if several came due meanwhile, the
    newest is given. The reader's error reaches the one who iterates, after the frames before it.

    Args:
        frames: The source's frames.
    """

    def __init__(self, frames: Iterator[Frame]) -> None:
        self.dropped = 0
        self._frames = frames
        self._latest: Frame | None = None
        self._done = False
        self._error: BaseException | None = None
        self._stop = threading.Event()
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._read, name="arr-stream-reader", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[Frame]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._latest is not None or self._done)
                frame, self._latest = self._latest, None
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

    def _read(self) -> None:
        try:
            start_seconds: float | None = None
            asked, previous_pts_seconds = time.monotonic(), 0.0
            for frame in self._frames:
                now = time.monotonic()
                decoding_seconds = now - asked
                if start_seconds is None:
                    start_seconds = now - frame.pts_seconds
                if self._stop.wait(max(0.0, start_seconds + frame.pts_seconds - now)):
                    return
                self._offer(frame)
                # Decoding the next frame at once would take a core from whoever has just got this one.
                pause_seconds = (frame.pts_seconds - previous_pts_seconds) * _PAUSE_SHARE
                if decoding_seconds < pause_seconds and self._stop.wait(min(pause_seconds, _LONGEST_PAUSE_SECONDS)):
                    return
                asked, previous_pts_seconds = time.monotonic(), frame.pts_seconds
        except BaseException as exc:
            self._error = exc
        finally:
            with self._changed:
                self._done = True
                self._changed.notify_all()

    def _offer(self, frame: Frame) -> None:
        with self._changed:
            if self._latest is not None:
                self.dropped += 1
            self._latest = frame
            self._changed.notify_all()
