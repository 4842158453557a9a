"""Frames of any container and codec that FFmpeg knows, through PyAV."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from fractions import Fraction
from itertools import chain
from typing import Any

import av
import av.error
from av.container import Flags
from av.packet import Packet
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from arr_stream.errors import NoFrames, SourceDamaged, SourceError
from arr_stream.sources.base import Colour, Job, Source, SourceInfo, SourceStats, too_large
from arr_stream.sources.clock import Clock
from arr_stream.sources.colour import colour_of, rgb_of
from arr_stream.sources.damage import DamageLog, is_broken, unreliable
from arr_stream.sources.media import (
    JOINABLE,
    Media,
    Upright,
    choose_stream,
    next_of,
    open_media,
    opened_video,
    reason,
)
from arr_stream.types import Frame

_ANIMATIONS = {"gif", "apng"}

_LAST_TICK = 1 << 62
"""FFmpeg counts ticks in 64 bits with a sign."""

_EXACT = {"flv", "mxf"}
"""Formats whose header holds the duration; others have an estimate, or their structure is more reliable."""

_DURATION_TOLERANCE_SECONDS = 0.25
_CUT_SHORT = "the file is cut short, or overwritten in part"
_JOIN_PACKETS = 2
_MOST_READ_ERRORS = 16

Timed = Iterator[tuple[float, VideoFrame]]


class FfmpegSource(Source):
    """Media file.

    Packets that cannot be decoded are skipped and counted as lost frames. Frames that the decoder concealed, and those
    that may refer to lost or concealed ones, are marked as `damaged`. The error at the end reports both, and a file
    that ends before its own header or structure says. See `sources.damage`.

    Raises:
        NotAMediaFile, NoVideoStream, NoFrames, NothingInRange, SourceTooLarge: See `arr_stream.errors`; all on
            opening.
        SourceDamaged: On opening, if damage comes before the first requested frame.
    """

    def __init__(self, job: Job) -> None:
        super().__init__()
        self._job, self.reading = job, job.reading
        self._problem: str | None = None
        self._cut_short: str | None = None
        self._notices: tuple[str, ...] = ()
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
        self._stream = choose_stream(self._container, self._job.name, self.reading.video_stream)
        context = self._stream.codec_context
        self._check_size(context.width, context.height)
        self._decoder = context
        self._decoder.thread_type = "AUTO"
        entries = self._stream.index_entries
        self._promised_ticks = entries[-1].timestamp if len(entries) else None
        self._key_ticks = entries[0].timestamp if len(entries) and entries[0].is_keyframe else None

    def _release(self) -> None:
        if self._media is not None:
            self._media.close()
            self._media = None

    def _check_size(self, width: int, height: int) -> None:
        if width * height > self._job.max_pixels:
            raise too_large(self._job.name, (width, height), self._job.max_pixels, instead="scale the video down")

    def _prime(self) -> None:
        self._made = self._frames(self.reading.select(self._beginning()))
        self._first = next(self._made, None)
        if self._first is not None:
            self.info = self._describe(self._first)
        elif self._pictures_seen:
            raise self.reading.nothing(self._job.name, self._duration_seconds())
        else:
            why = f": {self._problem}" if self._problem else ""
            raise NoFrames(
                f"{self._job.name}: not one frame can be decoded{why}", remedy="check that the file is complete"
            )

    def _beginning(self) -> Timed:
        """Return timed pictures starting at the last keyframe at or before the start."""
        clock, timed = self._timed(None)
        first = next(timed, None)
        if first is None:
            return iter(())
        start = self.reading.start_seconds
        if not start:
            return chain([first], timed)
        if self._is_joined():
            self._notices = (f"{self._job.name}: its clock restarts, so all of it before {start:g} s is decoded",)
        else:
            found = self._sought(clock.zero_ticks or 0, start)
            if found is not None:
                return found
        self._open()
        return self._timed(None)[1]

    def _is_joined(self) -> bool:
        """Return True if the file's clock goes back, as in joined recordings, so that seeking would be ambiguous."""
        if self._container.format.name not in JOINABLE:
            return False
        last = -_LAST_TICK
        with opened_video(self._job) as (container, stream), suppress(av.error.FFmpegError, OSError):
            whole_packets: Any = Flags.no_parse | Flags.no_fillin
            container.flags |= whole_packets.value
            demuxed = container.demux(stream)
            while (packet := next_of(demuxed)) is not None:
                ticks = packet.pts if packet.dts is None else packet.dts
                if ticks is not None:
                    if ticks < last:
                        return True
                    last = ticks
        return False

    def _sought(self, zero_ticks: int, start_seconds: float) -> Timed | None:
        """Return timed pictures after a seek; None if it fails, or arrives late because the file's index is wrong."""
        target = min(zero_ticks + int(start_seconds / self._tick), _LAST_TICK)
        try:
            self._container.seek(target, stream=self._stream)
            self._decoder.flush_buffers()
        except (av.error.FFmpegError, OSError):
            return None
        _, timed = self._timed(zero_ticks)
        first = next(timed, None)
        if first is None or first[1].pts is None or first[0] > start_seconds:
            return None
        return chain([first], timed)

    def _timed(self, zero_ticks: int | None) -> tuple[Clock, Timed]:
        self.stats = SourceStats()
        self._log = DamageLog(self.stats, None if zero_ticks else self._key_ticks)
        self._problem = self._cut_short = None
        by_dts = self._container.format.name == "avi"
        clock = Clock(self._tick, self._average_fps(), self.stats, zero_ticks=zero_ticks, by_dts=by_dts)
        return clock, clock.times(self._pictures(clock))

    def _pictures(self, clock: Clock) -> Iterator[VideoFrame]:
        """Yield decoded pictures in display order, and report errors to `_log`."""
        log, first = self._log, True
        for picture in self._decoded():
            log.received(picture)
            if first and clock.zero_ticks is None:
                # A file that has lost its beginning keeps its times.
                clock.zero_ticks = log.lost_start
            first = False
            self._pictures_seen += 1
            yield picture

    def _decoded(self) -> Iterator[VideoFrame]:
        broken_off = False
        for packet in self._packets():
            try:
                yield from self._decoder.decode(packet)
            except (av.error.FFmpegError, OSError) as exc:
                self._problem = reason(exc)
                if packet is None:
                    broken_off = True
                elif self._log.failed() and self._job.stop_at_damage:
                    self.stats.lost_frames += 1
                    return
        broken_off |= self._cut_short is not None
        if self._log.missing(every=broken_off):
            yield from self._decoded_again()
        self._log.finish(every=broken_off)

    def _decoded_again(self) -> Iterator[VideoFrame]:
        """Yield the last pictures, which frame threads lost together with a damaged one, decoded one by one."""
        log = self._log
        try:
            with opened_video(self._job) as (container, stream):
                decoder = stream.codec_context
                decoder.thread_type = "SLICE"
                if log.last_key is not None and log.last_key.ticks is not None:
                    container.seek(log.last_key.ticks, stream=stream)
                demuxed = container.demux(stream)
                while (packet := next_of(demuxed)) is not None:
                    with suppress(av.error.FFmpegError, OSError):
                        yield from filter(log.expects, decoder.decode(packet))
        except (av.error.FFmpegError, OSError, SourceError) as exc:
            self._problem = self._problem or str(exc)

    def _packets(self) -> Iterator[Packet[VideoStream] | None]:
        """Yield packets of the stream, then None to drain the decoder.

        At a joint between recordings, the counters that reveal lost data restart, and a parser may ascribe that to the
        packet before. So close before a keyframe, only the decoder can detect missing data.
        """
        waiting: deque[Packet[VideoStream]] = deque()
        for following in self._demuxed():
            waiting.append(following)
            while waiting and (not waiting[0].is_corrupt or len(waiting) > _JOIN_PACKETS):
                packet = waiting.popleft()
                joined = any(each.is_keyframe for each in waiting)
                self._log.sending(packet, incomplete=packet.is_corrupt and not joined)
                yield packet
        for packet in waiting:
            self._log.sending(packet, incomplete=True)
            yield packet
        if waiting or (self._media is not None and is_broken(self._media.file, self._container.format.name)):
            self._cut_short = self._cut_short or _CUT_SHORT
        yield None

    def _demuxed(self) -> Iterator[Packet[VideoStream]]:
        """Yield packets of the stream to the end of the file; then `_cut_short` is set if that is early."""
        container, demuxed = self._container, self._container.demux()
        promised_seconds = (container.duration or 0) / av.time_base if container.format.name in _EXACT else 0.0
        reached_ticks, reached_seconds, errors = -1, 0.0, 0
        while True:
            try:
                packet = next_of(demuxed)
            except (av.error.FFmpegError, OSError) as exc:
                self._cut_short = reason(exc)
                errors += 1
                if self._job.stop_at_damage or errors == _MOST_READ_ERRORS:
                    return
                demuxed = container.demux()
                continue
            if packet is None:
                break
            # An empty packet would drain the decoder; PyAV ends with some, and AVI holds some for repeated pictures.
            if packet.size == 0:
                continue
            ticks = max(packet.pts or 0, packet.dts or 0)
            if promised_seconds:
                # The header's duration is that of the longest stream.
                reached_seconds = max(reached_seconds, float((ticks + (packet.duration or 0)) * packet.time_base))
            if packet.stream_index == self._stream.index:
                reached_ticks = max(reached_ticks, ticks)
                yield packet  # type: ignore[misc]
        missing = self._promised_ticks is not None and reached_ticks < self._promised_ticks
        if missing or reached_seconds < promised_seconds - _DURATION_TOLERANCE_SECONDS:
            self._cut_short = self._cut_short or _CUT_SHORT

    def _frames(self, timed: Timed) -> Iterator[Frame]:
        index = 0
        for seconds, picture in timed:
            yield self._frame(index, seconds, picture)
            index += 1
        if index == 0 and self._pictures_seen == 0:
            return
        lost, concealed = self.stats.lost_frames, self.stats.concealed_frames
        found = [self._cut_short] if self._cut_short else []
        if lost:
            found.append(f"{_frames_of(lost)} lost ({self._problem or 'not decodable'})")
        if concealed:
            found.append(f"{_frames_of(concealed)} unreliable, patched up by the decoder")
        if found:
            raise SourceDamaged(
                f"{self._job.name}: damaged: {', '.join(found)}; {_frames_of(index)} read",
                remedy="these frames are kept",
            )

    def _frame(self, index: int, seconds: float, picture: VideoFrame) -> Frame:
        self._check_size(picture.width, picture.height)
        self._colour = self._colour or colour_of(picture, self._job.untagged_matrix)
        rgb = self._upright.turn(picture, rgb_of(picture, self._job.untagged_matrix))
        return Frame(index, seconds, rgb, damaged=unreliable(picture))

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

    def _describe(self, first: Frame) -> SourceInfo:
        fps, duration = self._average_fps(), self._duration_seconds()
        total = self._stream.frames or (round(fps * duration) if fps and duration else None)
        container = self._container.format.name
        return SourceInfo(
            name=self._job.name,
            kind="animation" if container in _ANIMATIONS else "file",
            size_wh=first.size_wh,
            pixel_aspect=self._upright.pixel_aspect(self._stream),
            average_fps=fps,
            duration_seconds=duration,
            num_frames=self.reading.expected(total, fps),
            codec=self._stream.codec_context.name,
            path=self._job.folder,
            colour=self._colour,
            notices=self._notices,
        )


def _frames_of(count: int) -> str:
    return "1 frame was" if count == 1 else f"{count} frames were"
