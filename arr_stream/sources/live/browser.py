"""The camera or screen of a browser: whoever receives its pictures pushes them, whoever iterates takes them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Self

from arr_stream.config import Settings
from arr_stream.errors import ArrStreamError, ConnectionFailed, SourceTooLarge, StreamSilent
from arr_stream.sources.base import SourceInfo, SourceStats, too_large
from arr_stream.sources.clock import ArrivalClock
from arr_stream.types import ByteArray, Frame


class BrowserSource:
    """A source that is filled from outside, by any thread.

    `info` is known with the first picture only: call `wait_first` before anything else looks at it. With the policy
    `latest` one picture waits, the newest; with `every`, as many as `live.buffer_frames`, then the oldest is dropped.
    A picture of another size just goes on; `info.size_wh` stays that of the first.

    Args:
        name: For records and messages.
        settings: `live` says who wins and how long to wait, `source.max_pixels` how large a picture may be.

    Attributes:
        codec: Name of what the pictures were coded with; whoever pushes sets it before the first one.
        dropped: Pictures that came and that nobody took.
        ended: No further picture is taken.
        error: Why it ended, where that was not the browser's own wish.
        on_close: Called once, by the thread that closes the source or lets its iteration end.
    """

    def __init__(self, name: str, settings: Settings) -> None:
        self.name = name
        self.codec = "rgb24"
        self.stats = SourceStats()
        self.dropped = 0
        self.on_close: Callable[[], None] | None = None
        self._live = settings.live
        self._max_pixels = settings.source.max_pixels
        self._room = 1 if settings.live.policy == "latest" else settings.live.buffer_frames
        self._info: SourceInfo | None = None
        self._waiting: deque[Frame] = deque()
        self._clock = ArrivalClock()
        self.ended = False
        self._closed = False
        self._taken = False
        self.error: ArrStreamError | None = None
        self._changed = threading.Condition()

    @property
    def info(self) -> SourceInfo:
        """What the first picture told.

        Raises:
            RuntimeError: It has not come yet.
        """
        if self._info is None:
            raise RuntimeError(f"{self.name}: nothing is known before the first picture; call wait_first")
        return self._info

    def push(self, rgb: ByteArray, captured_seconds: float, sent_seconds: float | None = None) -> bool:
        """Offer one picture; never waits.

        Args:
            rgb: `[H, W, 3]`, uint8, C-contiguous; not to be changed afterwards.
            captured_seconds: When it came, on the clock of `time.monotonic`.
            sent_seconds: Its time on the sender's clock, with any origin, for steadier times than those of arrival.

        Returns:
            Whether more are wanted.
        """
        height, width = rgb.shape[:2]
        if width * height > self._max_pixels:
            self.finish(self.too_large(width, height))
            return False
        with self._changed:
            if self.ended:
                return False
            if self._info is None:
                self._info = SourceInfo(
                    name=self.name, kind="browser", size_wh=(width, height), codec=self.codec, live=True
                )
            pts_seconds = self._clock.place(sent_seconds, captured_seconds)
            while len(self._waiting) >= self._room:
                self._waiting.popleft()
                self.dropped += 1
            self._waiting.append(Frame(0, pts_seconds, rgb, captured_seconds=captured_seconds))
            self._changed.notify_all()
        return True

    def too_large(self, width: int, height: int) -> SourceTooLarge:
        """The error for a picture of so many pixels."""
        return too_large(
            self.name, (width, height), self._max_pixels, instead="choose a smaller picture in the browser"
        )

    def passed_over(self) -> None:
        """Count a picture that came, but was not worth converting because newer ones had come."""
        with self._changed:
            self.dropped += 1

    def finish(self, error: ArrStreamError | None = None) -> None:
        """Nothing more comes; safe to call again, by any thread. Only the first error counts.

        Args:
            error: Raised to the one who iterates; None where the browser just stopped.
        """
        with self._changed:
            if self.ended:
                return
            self.ended, self.error = True, error
            self._waiting.clear()
            self._changed.notify_all()

    def wait_first(self, timeout_seconds: float | None = None) -> SourceInfo:
        """Wait for the first picture.

        Args:
            timeout_seconds: Longest wait; None for `live.connect_seconds`.

        Raises:
            StreamSilent: None came in time.
            ConnectionFailed: The browser went, or the source was closed, before one came.
            SourceTooLarge: It has more pixels than the limit.
        """
        longest_seconds = self._live.connect_seconds if timeout_seconds is None else timeout_seconds
        with self._changed:
            self._changed.wait_for(lambda: self._info is not None or self.ended, longest_seconds)
        if self._info is not None:
            return self._info
        if self.error is not None:
            raise self.error
        if self.ended:
            raise ConnectionFailed(
                f"{self.name}: the connection ended before its first picture", remedy="start it again in the browser"
            )
        raise StreamSilent(
            f"{self.name}: no picture from the browser within {longest_seconds:g} s",
            remedy="check that the camera is on and that UDP reaches the server",
        )

    def frames(self) -> Iterator[Frame]:
        """Frames as they come, until `finish` or `close`; see `Source.frames`.

        Raises:
            ArrStreamError: What `finish` was given.
            RuntimeError: They were taken already.
        """
        if self._taken:
            raise RuntimeError("the frames of this source were taken already; open it again")
        self._taken = True
        return self._deliver()

    def close(self) -> None:
        """End `frames()` at once and let the browser go; safe to call again, by any thread."""
        self.finish()
        with self._changed:
            first, self._closed = not self._closed, True
        if first and self.on_close is not None:
            self.on_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _deliver(self) -> Iterator[Frame]:
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._waiting or self.ended)
                    if self.ended:
                        break
                    frame = self._waiting.popleft()
                index = self.stats.frames
                self.stats.frames += 1
                yield replace(frame, index=index)
            if self.error is not None:
                raise self.error
        finally:
            self.close()
