"""The camera or screen of a browser: a socket pushes its JPEG pictures, the stream's thread decodes the newest."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator
from io import BytesIO

import cv2
import numpy as np
from PIL.JpegImagePlugin import JpegImageFile

from arr_stream.config import Settings
from arr_stream.errors import ArrStreamError, ConnectionFailed, NotAMediaFile, SourceTooLarge, StreamSilent
from arr_stream.sources.base import Source, SourceInfo, too_large
from arr_stream.sources.clock import ArrivalClock
from arr_stream.types import ByteArray, Frame


class BrowserSource(Source):
    """Source of JPEG pictures that another thread pushes.

    With `live.policy=latest` only the newest picture waits to be taken, with `every` `live.buffer_frames` do. Pictures
    may change in size; `info`, which `wait_first` sets, has that of the first.

    Args:
        name: For records and messages.
        settings: `live` and `source.max_pixels` are used.

    Attributes:
        ended: Whether no more pictures are accepted.
        error: Why the source ended; None if it was closed, or the browser stopped sending.
        on_close: Called once, when the source is closed or its iteration ends, by the thread that does so.
    """

    def __init__(self, name: str, settings: Settings) -> None:
        super().__init__()
        self.name = name
        self.ended = False
        self.error: ArrStreamError | None = None
        self.on_close: Callable[[], None] | None = None
        self._connect_seconds = settings.live.connect_seconds
        self._max_pixels = settings.source.max_pixels
        room = 1 if settings.live.policy == "latest" else settings.live.buffer_frames
        self._waiting: deque[tuple[bytes, float, float]] = deque(maxlen=room)
        self._clock = ArrivalClock()
        self._changed = threading.Condition()

    def push(self, jpeg: bytes, arrived_seconds: float, sent_seconds: float | None = None) -> None:
        """Add a picture without waiting; ignored once the source has ended.

        Args:
            jpeg: The picture, which is checked and decoded when it is taken.
            arrived_seconds: When it arrived, on the clock of `time.monotonic`.
            sent_seconds: Capture time on the sender's clock, of any origin; steadier than the time of arrival.
        """
        with self._changed:
            if not self.ended:
                self._waiting.append((jpeg, self._clock.place(sent_seconds, arrived_seconds), arrived_seconds))
                self._changed.notify_all()

    def finish(self, error: ArrStreamError | None = None) -> None:
        """End the source; may be called repeatedly and from any thread, but only the first error counts.

        Args:
            error: Raised by the iteration; None if the browser stopped sending.
        """
        with self._changed:
            if not self.ended:
                self.ended, self.error = True, error
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
        longest_seconds = self._connect_seconds if timeout_seconds is None else timeout_seconds
        with self._changed:
            if not self._changed.wait_for(lambda: self._waiting or self.ended, longest_seconds):
                self.finish(
                    StreamSilent(
                        f"{self.name}: the browser sent no picture within {longest_seconds:g} s",
                        remedy="check that its camera is on",
                    )
                )
        self._made = self._pictures()
        self._first = next(self._made, None)
        if self._first is None:
            raise ConnectionFailed(
                f"{self.name}: the browser left before its first picture", remedy="start it again in the browser"
            )
        self.info = SourceInfo(name=self.name, kind="browser", size_wh=self._first.size_wh, codec="mjpeg", live=True)
        return self.info

    def _pictures(self) -> Iterator[Frame]:
        for index in itertools.count():
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self.ended)
                if self.ended:
                    break
                jpeg, pts_seconds, arrived_seconds = self._waiting.popleft()
            try:
                rgb = decode_jpeg(jpeg, self.name, self._max_pixels)
            except ArrStreamError as exc:
                self.finish(exc)
                break
            yield Frame(index, pts_seconds, rgb, captured_seconds=arrived_seconds)
        if self.error is not None:
            raise self.error

    def _release(self) -> None:
        self.finish()
        on_close, self.on_close = self.on_close, None
        if on_close is not None:
            on_close()


def decode_jpeg(jpeg: bytes, name: str, max_pixels: int) -> ByteArray:
    """Decode a JPEG to RGB `[H, W, 3]`, uint8; `name` is for messages.

    Raises:
        NotAMediaFile: It is no JPEG, or cut short.
        SourceTooLarge: Its header names more than `max_pixels`; it is not decoded then.
    """
    try:
        with JpegImageFile(BytesIO(jpeg)) as picture:  # reads the header alone
            size_wh = picture.size
        if size_wh[0] * size_wh[1] > max_pixels:
            raise too_large(name, size_wh, max_pixels, instead="choose a smaller picture in the browser")
        rgb = cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR_RGB)
        if rgb is None:
            raise ValueError("OpenCV cannot decode it")
        return np.asarray(rgb, dtype=np.uint8)
    except SourceTooLarge:
        raise
    except Exception as exc:  # Pillow reports a damaged header in many ways
        raise NotAMediaFile(
            f"{name}: a picture of {len(jpeg)} bytes is no JPEG, or damaged",
            remedy="send what canvas.toBlob('image/jpeg') makes",
        ) from exc
