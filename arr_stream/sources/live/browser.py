"""The camera or screen of a browser: a socket pushes its JPEG pictures, the stream's thread decodes the newest."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from io import BytesIO
from typing import Self

import cv2
import numpy as np
from PIL.JpegImagePlugin import JpegImageFile

from arr_stream.config import Settings
from arr_stream.errors import ArrStreamError, ConnectionFailed, NotAMediaFile, StreamSilent
from arr_stream.sources.base import SourceInfo, SourceStats, too_large
from arr_stream.sources.clock import ArrivalClock
from arr_stream.types import ByteArray, Frame


class BrowserSource:
    """Source of JPEG pictures that another thread pushes.

    With `live.policy=latest` only the newest picture waits to be taken; with `every`, `live.buffer_frames` wait, and
    the oldest is dropped when there is no more room. Pictures may change in size; `info.size_wh` is that of the first.

    Args:
        name: For records and messages.
        settings: `live` and `source.max_pixels` are used.

    Attributes:
        dropped: Number of pictures that were pushed and not taken.
        ended: Whether no more pictures are accepted.
        error: Why the source ended; None if it was closed, or the browser stopped sending.
        on_close: Called once, when the source is closed or its iteration ends, by the thread that does so.
    """

    def __init__(self, name: str, settings: Settings) -> None:
        self.name = name
        self.stats = SourceStats()
        self.dropped = 0
        self.ended = False
        self.error: ArrStreamError | None = None
        self.on_close: Callable[[], None] | None = None
        self._live = settings.live
        self._max_pixels = settings.source.max_pixels
        self._room = 1 if settings.live.policy == "latest" else settings.live.buffer_frames
        self._info: SourceInfo | None = None
        self._waiting: deque[tuple[bytes, float, float]] = deque()
        self._clock = ArrivalClock()
        self._closed = self._taken = False
        self._changed = threading.Condition()

    @property
    def info(self) -> SourceInfo:
        """Size and kind, known after `wait_first`.

        Raises:
            RuntimeError: `wait_first` has not returned yet.
        """
        if self._info is None:
            raise RuntimeError(f"{self.name}: nothing is known before the first picture; call wait_first")
        return self._info

    def push(self, jpeg: bytes, arrived_seconds: float, sent_seconds: float | None = None) -> None:
        """Add a picture without waiting; ignored once the source has ended.

        Args:
            jpeg: The picture, which is checked and decoded when it is taken.
            arrived_seconds: When it arrived, on the clock of `time.monotonic`.
            sent_seconds: Capture time on the sender's clock, of any origin; steadier than the time of arrival.
        """
        with self._changed:
            if self.ended:
                return
            while len(self._waiting) >= self._room:
                self._waiting.popleft()
                self.dropped += 1
            pts_seconds = self._clock.place(sent_seconds, arrived_seconds)
            self._waiting.append((jpeg, pts_seconds, arrived_seconds))
            self._changed.notify_all()

    def finish(self, error: ArrStreamError | None = None) -> None:
        """End the source; may be called repeatedly and from any thread, but only the first error counts.

        Args:
            error: Raised by the iteration; None if the browser stopped sending.
        """
        with self._changed:
            if self.ended:
                return
            self.ended, self.error = True, error
            self._waiting.clear()
            self._changed.notify_all()

    def wait_first(self, timeout_seconds: float | None = None) -> SourceInfo:
        """Wait for the first picture, and end the source if it does not come or cannot be decoded.

        Args:
            timeout_seconds: Longest wait; None for `live.connect_seconds`.

        Raises:
            StreamSilent: No picture came in time.
            ConnectionFailed: The browser left, or the source was closed, before the first picture.
            NotAMediaFile, SourceTooLarge: The picture is no JPEG, or has too many pixels.
        """
        longest_seconds = self._live.connect_seconds if timeout_seconds is None else timeout_seconds
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self.ended, longest_seconds)
            newest = self._waiting[-1] if self._waiting else None
        if newest is not None:
            height, width = self._decode(newest[0]).shape[:2]
            self._info = SourceInfo(name=self.name, kind="browser", size_wh=(width, height), codec="mjpeg", live=True)
            return self._info
        self.finish(
            StreamSilent(
                f"{self.name}: the browser sent no picture within {longest_seconds:g} s",
                remedy="check that its camera is on",
            )
        )
        raise self.error or ConnectionFailed(
            f"{self.name}: the browser left before its first picture", remedy="start it again in the browser"
        )

    def frames(self) -> Iterator[Frame]:
        """Iterate over the pictures as they come, until `finish` or `close`; see `Source.frames`.

        Raises:
            NotAMediaFile, SourceTooLarge: A picture is no JPEG, or has too many pixels.
            ArrStreamError: The error given to `finish`.
            RuntimeError: The frames were taken already.
        """
        if self._taken:
            raise RuntimeError("the frames of this source were taken already; open it again")
        self._taken = True
        return self._deliver()

    def close(self) -> None:
        """End `frames()` at once; may be called repeatedly and from any thread."""
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
                    jpeg, pts_seconds, arrived_seconds = self._waiting.popleft()
                rgb = self._decode(jpeg)
                self.stats.frames += 1
                yield Frame(self.stats.frames - 1, pts_seconds, rgb, captured_seconds=arrived_seconds)
            if self.error is not None:
                raise self.error
        finally:
            self.close()

    def _decode(self, jpeg: bytes) -> ByteArray:
        """Decode to RGB `[H, W, 3]`; end the source and raise if that fails."""
        try:
            return decode_jpeg(jpeg, self.name, self._max_pixels)
        except ArrStreamError as exc:
            self.finish(exc)
            raise


def decode_jpeg(jpeg: bytes, name: str, max_pixels: int) -> ByteArray:
    """Decode a JPEG to RGB `[H, W, 3]`, uint8; `name` is for messages.

    Raises:
        NotAMediaFile: It is no JPEG, or cut short.
        SourceTooLarge: Its header names more than `max_pixels`; it is not decoded then.
    """
    try:
        with JpegImageFile(BytesIO(jpeg)) as picture:  # reads the header alone
            size_wh = picture.size
    except Exception as exc:  # Pillow's parser reports a damaged header in many ways
        raise _no_jpeg(name, jpeg) from exc
    if size_wh[0] * size_wh[1] > max_pixels:
        raise too_large(name, size_wh, max_pixels, instead="choose a smaller picture in the browser")
    try:
        rgb = cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR_RGB)
    except cv2.error as exc:
        raise _no_jpeg(name, jpeg) from exc
    if rgb is None:
        raise _no_jpeg(name, jpeg)
    return np.asarray(rgb, dtype=np.uint8)


def _no_jpeg(name: str, jpeg: bytes) -> NotAMediaFile:
    fault = f"{name}: a picture of {len(jpeg)} bytes is no JPEG, or damaged"
    return NotAMediaFile(fault, remedy="send what canvas.toBlob('image/jpeg') makes")
