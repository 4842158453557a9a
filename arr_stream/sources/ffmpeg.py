"""Frames of any container and codec that FFmpeg knows, through PyAV."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import chain

import av
import av.error
from av.packet import Packet
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from arr_stream.errors import NoFrames, SourceDamaged
from arr_stream.sources.base import Colour, Job, OnePass, SourceInfo, SourceStats, too_large
from arr_stream.sources.clock import Clock
from arr_stream.sources.colour import colour_of, rgb_of
from arr_stream.sources.media import (
    Media,
    Upright,
    choose_stream,
    decoder_of,
    next_of,
    open_media,
    reason,
)
from arr_stream.types import Frame

_ANIMATIONS = {"gif", "apng"}

_LAST_TICK = 1 << 62
"""FFmpeg counts ticks in 64 bits with a sign."""

# A seek may land late where a file's index is wrong; then it is tried again from further back, then from the beginning.
_SEEK_LEADS_SECONDS = (0.0, 10.0)

Timed = Iterator[tuple[float, VideoFrame]]


class FfmpegSource(OnePass):
    """A media file.

    What the decoder reports as an error ends the frames: pictures that come after it cannot be told from patched-up
    ones. Frames that it marks as damaged but shows are delivered and counted, and told of at the end. Errors before the
    first picture are no damage (a recording that was joined part-way begins so).

    Raises:
        NotAMediaFile, NoVideoStream, NoFrames, NothingInRange, SourceTooLarge: See `arr_stream.errors`; all on
            opening.
        SourceDamaged: On opening, where damage comes before the first frame wanted.
    """

    def __init__(self, job: Job) -> None:
        super().__init__()
        self._job = job
        self._damage: str | None = None
        self._pictures_seen = 0
        self._upright = Upright()
        self._colour: Colour | None = None
        self._media: Media | None = None
        try:
            self._open()
            self._prime()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        self._release()
        self._media = open_media(self._job.paths[0], self._job.name)
        self._container = self._media.container
        self._stream, self._streams = choose_stream(self._container, self._job.name, self._job.video_stream)
        context = self._stream.codec_context
        self._check_size(context.width, context.height)
        self._decoder = decoder_of(self._stream)
        self._decoder.thread_type = "AUTO"

    def _release(self) -> None:
        if self._media is not None:
            self._media.close()
            self._media = None

    def _check_size(self, width: int, height: int) -> None:
        if width * height > self._job.max_pixels:
            raise too_large(self._job.name, (width, height), self._job.max_pixels, instead="scale the video down")

    def _prime(self) -> None:
        clock, timed = self._beginning()
        self._made = self._frames(self._job.span.select(timed, self.stats))
        self._first = next(self._made, None)
        if self._first is None:
            raise self._nothing()
        self.info = self._describe(self._first, clock)

    def _nothing(self) -> Exception:
        if self._pictures_seen == 0:
            why = f": {self._damage}" if self._damage else ""
            return NoFrames(
                f"{self._job.name}: not one frame can be decoded{why}", remedy="check that the file is complete"
            )
        return self._job.span.nothing(self._job.name, self._duration_seconds())

    def _beginning(self) -> tuple[Clock, Timed]:
        """Timed pictures from the last keyframe at or before the start on."""
        clock, timed = self._timed(None)
        first = next(timed, None)
        if first is None:
            return clock, iter(())
        start = self._job.span.start_seconds
        if not start:
            return clock, chain([first], timed)
        for lead in _SEEK_LEADS_SECONDS:
            found = self._sought(clock.zero_ticks or 0, start, lead)
            if found is not None:
                return found
        self._open()
        return self._timed(None)

    def _sought(self, zero_ticks: int, start_seconds: float, lead_seconds: float) -> tuple[Clock, Timed] | None:
        target = min(zero_ticks + int((start_seconds - lead_seconds) / self._tick), _LAST_TICK)
        if target <= zero_ticks:
            return None
        try:
            self._container.seek(target, stream=self._stream)
            self._decoder.flush_buffers()
        except (av.error.FFmpegError, OSError):
            return None
        clock, timed = self._timed(zero_ticks)
        first = next(timed, None)
        if first is None or first[1].pts is None or first[0] > start_seconds:
            return None
        return clock, chain([first], timed)

    def _timed(self, zero_ticks: int | None) -> tuple[Clock, Timed]:
        self.stats = SourceStats()
        self._damage = None
        clock = Clock(self._tick, self._average_fps(), self.stats, zero_ticks=zero_ticks)
        return clock, clock.times(self._pictures())

    def _pictures(self) -> Iterator[VideoFrame]:
        """Decoded pictures in the order in which they are shown; what went wrong is left in `_damage`."""
        sound = False
        for packet in self._packets():
            try:
                pictures = self._decoder.decode(packet)
            except (av.error.FFmpegError, OSError) as exc:
                self._damage = reason(exc)
                if sound:
                    return
                self.stats.undecodable_packets += packet is not None
                continue
            for picture in pictures:
                self._pictures_seen += 1
                self.stats.concealed_frames += sound and picture.is_corrupt
                if not sound and not picture.is_corrupt:
                    sound, self._damage = True, None
                yield picture

    def _packets(self) -> Iterator[Packet[VideoStream] | None]:
        """Packets of the stream, then None to drain the decoder.

        A packet that the demuxer marks as cut short is decoded only where others follow. At the end of a truncated file
        it would fail, and with frame threads take sound pictures along that the decoder still holds.
        """
        demuxed = self._container.demux(self._stream)
        cut_short: Packet[VideoStream] | None = None
        while True:
            try:
                packet = next_of(demuxed)
            except (av.error.FFmpegError, OSError) as exc:
                yield None
                self._damage = reason(exc)
                return
            if packet is None:
                break
            # An empty packet would drain the decoder; PyAV ends with one, and AVI holds some for repeated pictures.
            if packet.size == 0:
                continue
            if cut_short is not None:
                yield cut_short
            cut_short = packet if packet.is_corrupt else None
            if cut_short is None:
                yield packet
        yield None
        if cut_short is not None:
            self._damage = "the file is cut short"

    def _frames(self, timed: Timed) -> Iterator[Frame]:
        index = 0
        for seconds, picture in timed:
            yield self._frame(index, seconds, picture)
            index += 1
        if index == 0 and self._pictures_seen == 0:
            return
        if self._damage is not None:
            raise SourceDamaged(
                f"{self._job.name}: damaged after {index} frames were read: {self._damage}",
                frames_read=index,
                remedy="what came before is kept",
            )
        if self.stats.concealed_frames:
            raise SourceDamaged(
                f"{self._job.name}: {self.stats.concealed_frames} damaged pictures were patched up by the decoder;"
                f" all {index} frames were read",
                frames_read=index,
                remedy="what was read is kept",
            )

    def _frame(self, index: int, seconds: float, picture: VideoFrame) -> Frame:
        self._check_size(picture.width, picture.height)
        self._colour = self._colour or colour_of(picture, self._job.untagged_matrix)
        return Frame(index, seconds, self._upright.of(picture).turn(rgb_of(picture, self._job.untagged_matrix)))

    @property
    def _tick(self) -> Fraction:
        return self._stream.time_base or Fraction(1, av.time_base)

    def _average_fps(self) -> float | None:
        rate = self._stream.average_rate
        return float(rate) if rate else None

    def _duration_seconds(self) -> float | None:
        if self._stream.duration:
            return float(self._stream.duration * self._tick)
        return self._container.duration / av.time_base if self._container.duration else None

    def _describe(self, first: Frame, clock: Clock) -> SourceInfo:
        fps, duration = self._average_fps(), self._duration_seconds()
        total = self._stream.frames or (round(fps * duration) if fps and duration else None)
        container = self._container.format.name
        return SourceInfo(
            name=self._job.name,
            kind="animation" if container in _ANIMATIONS else "file",
            size_wh=first.size_wh,
            pixel_aspect=self._upright.orientation.pixel_aspect(self._stream),
            average_fps=fps,
            duration_seconds=duration,
            num_frames=self._job.span.expected(total, fps),
            codec=self._stream.codec_context.name,
            has_audio=bool(self._container.streams.audio),
            rotation_degrees=self._upright.orientation.rotation_degrees,
            video_streams=self._streams,
            path=self._job.folder,
            colour=self._colour,
            start_offset_seconds=float((clock.zero_ticks or 0) * self._tick),
        )
