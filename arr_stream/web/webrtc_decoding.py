"""Decodes a browser's pictures in a thread of its own, so that the server's event loop never waits for it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import av
import numpy as np

from arr_stream.errors import ArrStreamError, BackendUnavailable, SourceDamaged
from arr_stream.sources.live.browser import BrowserSource
from arr_stream.web.webrtc_packets import CodedPicture
from arr_stream.web.webrtc_sizes import coded_size_wh

_MOST_WAITING = 30
_MOST_BAD_KEYS = 5
_JOIN_SECONDS = 1.5
_DECODERS = {"VP8": "vp8", "H264": "h264"}


class PictureDecoder:
    """Takes coded pictures and pushes decoded ones into a source.

    Every picture is decoded, as those after it need it; where another one waits already, and the newest wins, it is not
    converted to RGB. When a second of them waits, decoding is too slow: all are dropped up to the next key picture.
    Decoders are FFmpeg's own, which check the size of a picture before they make room for it.

    Args:
        source: Gets the pictures; finished when decoding fails for good.
        max_pixels: Larger pictures are refused before they are decoded.
        every: All pictures are wanted, not only the newest.

    Attributes:
        need_key: Called when only a key picture can help; to be set before the first picture comes.
    """

    def __init__(self, source: BrowserSource, *, max_pixels: int, every: bool) -> None:
        self._source = source
        self._max_pixels = max_pixels
        self._every = every
        self.need_key: Callable[[], None] = lambda: None
        self._codec = ""
        self._bad_keys = 0
        self._context: Any = None
        self._waiting: deque[CodedPicture] = deque()
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="arr-stream-browser", daemon=True)
        self._thread.start()

    def put(self, picture: CodedPicture) -> None:
        """Queue a picture; never waits."""
        with self._changed:
            if self._closed:
                return
            if picture.key and not self._every and len(self._waiting) > 1:
                # Nothing after a key picture needs those before it.
                self._drop()
            elif len(self._waiting) >= _MOST_WAITING:
                self._drop()
                self.need_key()
                return
            self._waiting.append(picture)
            self._changed.notify()

    def close(self) -> None:
        """Stop taking pictures; the thread ends after the one that it is at. Safe to call again."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._changed.notify()

    def join(self) -> None:
        """Wait for the thread, after `close`."""
        self._thread.join(_JOIN_SECONDS)

    def _drop(self) -> None:
        self._source.passed_over(len(self._waiting))
        self._waiting.clear()

    def _work(self) -> None:
        try:
            while (picture := self._take()) is not None:
                self._handle(picture)
        except ArrStreamError as exc:
            self._source.finish(exc)
        except Exception as exc:
            error = ArrStreamError(f"{self._source.name}: decoding failed: {type(exc).__name__}: {exc}")
            error.__cause__ = exc
            self._source.finish(error)
        finally:
            self.close()
            self._context = None

    def _take(self) -> CodedPicture | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            return None if self._closed else self._waiting.popleft()

    def _handle(self, picture: CodedPicture) -> None:
        try:
            decoded = self._decoded(picture)
        except (av.error.FFmpegError, OSError) as exc:
            self._source.stats.undecodable_packets += 1
            self._bad_keys += picture.key
            if self._bad_keys >= _MOST_BAD_KEYS:
                raise SourceDamaged(
                    f"{self._source.name}: {self._bad_keys} key pictures in {picture.codec} could not be decoded",
                    frames_read=self._source.stats.frames,
                    remedy="start it again in the browser",
                ) from exc
            self.need_key()
            return
        self._bad_keys = 0
        for frame in decoded:
            if frame.is_corrupt:
                self._source.stats.concealed_frames += 1
                self.need_key()
            elif self._waiting and not self._every:
                self._source.passed_over()
            else:
                rgb = np.asarray(frame.to_ndarray(format="rgb24", threads=1), dtype=np.uint8)
                self._source.push(rgb, picture.arrived_seconds, picture.sent_seconds)

    def _decoded(self, picture: CodedPicture) -> list[Any]:
        if picture.key:
            self._check_size(coded_size_wh(picture.codec, picture.data))
        if self._context is None or picture.codec != self._codec:
            self._codec, self._context = picture.codec, self._opened(picture.codec)
        frames: list[Any] = self._context.decode(av.Packet(picture.data))
        return frames

    def _opened(self, codec: str) -> Any:
        try:
            context: Any = av.CodecContext.create(_DECODERS[codec], "r")
        except (av.error.FFmpegError, KeyError) as exc:
            raise BackendUnavailable(
                f"{self._source.name}: no decoder for {codec}", remedy="install PyAV's own wheel"
            ) from exc
        # Frame threads would give each picture away several frames late.
        context.thread_count = 1
        context.flags |= int(av.codec.context.Flags.low_delay)
        context.options = {"max_pixels": str(self._max_pixels)}
        self._source.codec = _DECODERS[codec]
        return context

    def _check_size(self, size_wh: tuple[int, int] | None) -> None:
        if size_wh is not None and size_wh[0] * size_wh[1] > self._max_pixels:
            raise self._source.too_large(*size_wh)
