"""Pictures of an open container, decoded as soon as their packets arrive."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import av.error
from av.codec.context import Flags
from av.container import InputContainer
from av.packet import Packet
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from arr_stream.config import Settings
from arr_stream.errors import ArrStreamError, StreamSilent
from arr_stream.sources.base import Colour, SourceInfo, SourceStats, too_large
from arr_stream.sources.colour import colour_of, rgb_of
from arr_stream.sources.live.connection import Arrived, Interrupt, Pace
from arr_stream.sources.media import Upright, choose_stream

_ALIGNMENT_PIXELS = 64 * 65536
"""Margin on FFmpeg's limit, which FFmpeg compares with aligned rows, so that the limit itself would be refused."""

_LONGEST_SKIP_SECONDS = 2.0
_NO_DATA_WAIT_SECONDS = 0.002


class Decoding:
    """Reader of a container's first video stream.

    After damage (a packet truncated, lost or not decodable) pictures would show remains of others. None are delivered
    until the next keyframe, or for two seconds without one: streams with gradual refresh have none. The omitted
    pictures are counted as concealed.

    Args:
        container: Just opened; closed by `close`, and if reading cannot begin.
        name: Name in messages.
        settings: `source` and `live.stall_seconds`, the longest wait for a packet and for a picture, are used.
        interrupt: Ends waits.
        stats: Counters to update.
        problem: Makes our error of PyAV's while packets are read.
        ends: Called with the last picture's time when the data end; returns True for a normal end, False for a break.
        paced: Decode each packet when its time has come.
    """

    def __init__(
        self,
        container: InputContainer,
        *,
        name: str,
        settings: Settings,
        interrupt: Interrupt,
        stats: SourceStats,
        problem: Callable[[Exception], ArrStreamError],
        ends: Callable[[float], bool] = lambda _: False,
        paced: bool = False,
    ) -> None:
        self._container, self._name, self._interrupt, self._stats = container, name, interrupt, stats
        self._max_pixels, self._silent_seconds = settings.source.max_pixels, settings.live.stall_seconds
        self._untagged_matrix = settings.source.untagged_matrix
        self._problem, self._ends = problem, ends
        self._pace = Pace(interrupt) if paced else None
        self._skip_until: float | None = None
        self._upright = Upright()
        self._colour: Colour | None = None
        self._last_own = 0.0
        try:
            self._begin()
        except BaseException:
            container.close()
            raise

    def _begin(self) -> None:
        self._stream = choose_stream(self._container, self._name, None)
        context = self._stream.codec_context
        self._check_size(context.width, context.height)
        self._decoder = context
        # Frame threads would delay by a picture each.
        self._decoder.thread_type = "SLICE"
        self._decoder.flags |= Flags.low_delay
        # Refused before the decoder allocates memory for it: a stream may change its size at any time.
        self._decoder.options = {"max_pixels": str(self._max_pixels + _ALIGNMENT_PIXELS)}

    @property
    def info(self) -> SourceInfo:
        rate = self._stream.average_rate or self._stream.guessed_rate
        return SourceInfo(
            name=self._name,
            kind="network",
            size_wh=(self._stream.codec_context.width, self._stream.codec_context.height),
            codec=self._stream.codec_context.name,
            average_fps=float(rate) if rate and 0 < rate <= 1000 else None,
            pixel_aspect=self._upright.pixel_aspect(self._stream),
            colour=self._colour,
        )

    def close(self) -> None:
        self._container.close()

    def pictures(self) -> Iterator[Arrived]:
        """Yield pictures; see `Connection.pictures`."""
        last_picture = time.monotonic()
        for packet in self._packets():
            ticks = None if packet is None else packet.pts if packet.dts is None else packet.dts
            if self._pace is not None and packet is not None and ticks is not None and packet.time_base:
                self._pace.wait_until(float(ticks * packet.time_base))
            captured_seconds = time.monotonic()
            for picture in self._decoded(packet, captured_seconds):
                arrived = self._arrived(picture, captured_seconds)
                if arrived is not None:
                    last_picture = captured_seconds
                    yield arrived
            if captured_seconds - last_picture > self._silent_seconds:
                raise StreamSilent(
                    f"{self._name}: it sends data, but no decodable picture for {self._silent_seconds:g} s",
                    remedy="check the server's video",
                )
        if not self._interrupt.stopped and not self._ends(self._last_own):
            raise self._problem(av.error.EOFError(0, "the stream has ended"))

    def _packets(self) -> Iterator[Packet[VideoStream] | None]:
        """Yield packets of the video as they arrive, then None to drain the decoder; ends early when stopped."""
        packets = self._container.demux()
        silent_since = time.monotonic()
        while not self._interrupt.stopped:
            try:
                with self._interrupt.within(silent_since + self._silent_seconds - time.monotonic()):
                    packet = next(packets, None)
            except av.error.BlockingIOError:
                # Devices are polled without blocking, since a hanging one would block for ever.
                packets = self._container.demux()
                self._interrupt.wait(_NO_DATA_WAIT_SECONDS)
            except (av.error.FFmpegError, OSError) as exc:
                self._raise(exc)
            else:
                if packet is None or packet.size == 0:
                    yield None
                    return
                if packet.stream_index == self._stream.index:
                    silent_since = time.monotonic()
                    yield packet  # type: ignore[misc]
                    continue
            if time.monotonic() - silent_since >= self._silent_seconds:
                raise self._mute()

    def _raise(self, error: Exception) -> None:
        if self._interrupt.stopped:
            return
        if self._interrupt.late or isinstance(error, av.error.ExitError):
            raise self._mute() from error
        raise self._problem(error) from error

    def _mute(self) -> StreamSilent:
        return StreamSilent(f"{self._name}: no data for {self._silent_seconds:g} s", remedy="check that it still sends")

    def _decoded(self, packet: Packet[VideoStream] | None, now_seconds: float) -> Iterator[VideoFrame]:
        """Yield the pictures of a packet, unless damage hides them."""
        damaged = packet is not None and packet.is_corrupt
        pictures: list[VideoFrame] = []
        try:
            pictures = self._decoder.decode(packet)
        except av.error.EOFError:
            return
        except (av.error.FFmpegError, OSError):
            damaged = True
        if damaged:
            self._skip_until = now_seconds + _LONGEST_SKIP_SECONDS
            self._stats.concealed_frames += max(1, len(pictures))
            self._check_size(self._decoder.width, self._decoder.height)
            return
        for picture in pictures:
            if self._sound(picture, now_seconds):
                yield picture
            else:
                self._stats.concealed_frames += 1

    def _sound(self, picture: VideoFrame, now_seconds: float) -> bool:
        if picture.is_corrupt:
            return self._skip_until is not None and now_seconds >= self._skip_until
        if self._skip_until is not None and (picture.key_frame or now_seconds >= self._skip_until):
            self._skip_until = None
        return self._skip_until is None

    def _arrived(self, picture: VideoFrame, captured_seconds: float) -> Arrived | None:
        """Return a picture as RGB; None if FFmpeg cannot convert it."""
        self._check_size(picture.width, picture.height)
        self._colour = self._colour or colour_of(picture, self._untagged_matrix)
        try:
            decoded = rgb_of(picture, self._untagged_matrix)
        except (av.error.FFmpegError, OSError, ValueError):
            self._stats.concealed_frames += 1
            return None
        own_seconds = None if picture.pts is None or not picture.time_base else float(picture.pts * picture.time_base)
        if own_seconds is not None:
            self._last_own = own_seconds
        return Arrived(self._upright.turn(picture, decoded), own_seconds, captured_seconds)

    def _check_size(self, width: int, height: int) -> None:
        if width * height > self._max_pixels:
            raise too_large(self._name, (width, height), self._max_pixels, instead="have smaller pictures sent")
