"""The source's own sound beside the annotated pictures: copied where browsers can play it, else encoded as AAC."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeAlias

import av.error
from av.audio.frame import AudioFrame
from av.audio.resampler import AudioResampler
from av.audio.stream import AudioStream
from av.container import OutputContainer
from av.packet import Packet
from av.video.stream import VideoStream

from arr_stream.errors import SourceError
from arr_stream.sources.media import moving_pictures, next_of, open_media, reason

COPIED = frozenset({"aac", "mp3", "opus", "flac"})
"""What MP4 holds and browsers play. AC-3, Vorbis and the rest are encoded anew."""

Sound: TypeAlias = "Packet[Any]"

_AAC_RATES = (96000, 88200, 64000, 48000, 44100, 32000, 24000, 22050, 16000, 12000, 11025, 8000)
_AAC_FRAME_SAMPLES = 1024
_AAC_BITS_PER_CHANNEL = 96_000
_LOOKAHEAD_PACKETS = 256
_TOUCHES_SECONDS = 0.001
"""A packet that ends where the output begins primes the decoder, and is kept."""


class SourceAudio:
    """Brings the first audio stream of a source into an output, a little at a time, so that memory stays small.

    Must be made before the output gets its first packet.

    Args:
        output: An open container.
        path: The source.
        origin_seconds: Time in the source's container that is 0.0 in the output; what ends before is left out.

    Attributes:
        notices: One line for every reason why sound is missing.
    """

    def __init__(self, output: OutputContainer, path: Path, *, origin_seconds: float) -> None:
        self.notices: list[str] = []
        self._output = output
        self._origin = origin_seconds
        self._name = path.name
        self._held: Sound | None = None
        self._video_seen = float("-inf")
        self._track: _Copied | _Encoded | None = None
        self._media = None
        try:
            self._media = open_media(path, path.name)
            self._open_track()
        except SourceError as exc:
            self.notices.append(f"sound left out: {exc.message}")
        except (av.error.FFmpegError, OSError, ValueError) as exc:
            self.notices.append(f"sound left out: {self._name}: {reason(exc)}")

    def _open_track(self) -> None:
        assert self._media is not None
        container = self._media.container
        stream = next(iter(container.streams.audio), None)
        if stream is None:
            return
        context: object = stream.codec_context
        if context is None:
            raise ValueError("FFmpeg has no decoder for it")
        if self._origin > 1.0:
            # Not every format can; packets before the origin are then read and passed over.
            with contextlib.suppress(av.error.FFmpegError, OSError):
                container.seek(int((self._origin - 0.5) * av.time_base))
        self._track = (_Copied if _can_copy(stream) else _Encoded)(self._output, stream, self._origin)
        self._packets = self._demuxed([stream, *moving_pictures(container)[:1]])

    def advance(self, until_seconds: float) -> None:
        """Bring over what begins before `until_seconds` of the output."""
        while self._track is not None:
            packet = self._held or next(self._packets, None)
            self._held = None
            if packet is None:
                return
            if self._begins(packet) >= until_seconds:
                self._held = packet
                return
            self._bring(packet)

    def finish(self, *, last_seconds: float, end_seconds: float, whole: bool) -> None:
        """Bring over the rest: to the end of the pictures, or of the sound where the pictures were shown to their end.

        Args:
            last_seconds, end_seconds: When the last picture begins and ends, in the output.
            whole: The run was not cut short by an error.
        """
        if self._track is not None:
            self.advance(end_seconds)
            if whole:
                self._bring_tail(last_seconds)
            self._track.flush()
        self.close()

    def close(self) -> None:
        """Close the source."""
        self._track = None
        if self._media is not None:
            self._media.close()
            self._media = None

    def _bring_tail(self, last_seconds: float) -> None:
        """Sound goes on after the last picture shown: keep it, unless pictures that were not asked for do too."""
        packets = itertools.chain([self._held] if self._held else [], self._packets)
        # Interleaved files bring a picture within seconds of sound; past that there are no more.
        for ahead in (list(itertools.islice(packets, _LOOKAHEAD_PACKETS)), packets):
            for packet in ahead:
                if self._video_seen > last_seconds + 0.001:
                    return
                self._bring(packet)

    def _demuxed(self, streams: list[AudioStream | VideoStream]) -> Iterator[Sound]:
        assert self._media is not None
        demuxed = self._media.container.demux(streams)
        while True:
            try:
                packet = next_of(demuxed)
            except (av.error.FFmpegError, OSError) as exc:
                self.notices.append(f"sound ends early: {self._name}: {reason(exc)}")
                return
            if packet is None:
                return
            if packet.pts is None and packet.dts is None:
                continue
            if packet.stream.type == "video":
                self._video_seen = max(self._video_seen, self._begins(packet))
            elif packet.size and self._begins(packet) + _seconds(packet.duration, packet) > -_TOUCHES_SECONDS:
                yield packet

    def _begins(self, packet: Sound) -> float:
        return _seconds(packet.dts if packet.pts is None else packet.pts, packet) - self._origin

    def _bring(self, packet: Sound) -> None:
        assert self._track is not None
        problem = self._track.bring(packet)
        if problem and not self.notices:
            self.notices.append(f"sound has gaps: {self._name}: {problem}")


class _Copied:
    """Packets as they are, at shifted times."""

    def __init__(self, output: OutputContainer, stream: AudioStream, origin_seconds: float) -> None:
        self._output = output
        self._stream = output.add_stream_from_template(stream)
        self._shift = round(Fraction(origin_seconds) / (stream.time_base or Fraction(1, av.time_base)))
        self._last: int | None = None

    def bring(self, packet: Sound) -> str | None:
        time = packet.dts if packet.dts is not None else packet.pts
        assert time is not None
        if self._last is not None and time <= self._last:
            return "timestamps go backwards"
        self._last = time
        packet.dts = time - self._shift
        packet.pts = packet.dts if packet.pts is None else packet.pts - self._shift
        packet.stream = self._stream
        self._output.mux(packet)
        return None

    def flush(self) -> None:
        """Nothing is held."""


class _Encoded:
    """Decoded and encoded as AAC, at shifted times."""

    def __init__(self, output: OutputContainer, stream: AudioStream, origin_seconds: float) -> None:
        rate = stream.sample_rate if stream.sample_rate in _AAC_RATES else 48_000
        channels = 1 if stream.channels == 1 else 2
        layout = "mono" if channels == 1 else "stereo"
        self._output, self._origin = output, origin_seconds
        self._stream = output.add_stream("aac", rate=rate, layout=layout, bit_rate=_AAC_BITS_PER_CHANNEL * channels)
        self._resampler = AudioResampler("fltp", layout, rate, frame_size=_AAC_FRAME_SAMPLES)

    def bring(self, packet: Sound) -> str | None:
        try:
            frames = packet.decode()
        except (av.error.FFmpegError, OSError) as exc:
            return reason(exc)
        for frame in frames:
            if isinstance(frame, AudioFrame):
                self._encode(frame)
        return None

    def flush(self) -> None:
        for frame in self._resampler.resample(None):
            self._output.mux(self._stream.encode(frame))
        self._output.mux(self._stream.encode(None))

    def _encode(self, frame: AudioFrame) -> None:
        time_base = frame.time_base or Fraction(1, frame.sample_rate)
        if frame.pts is None:
            return
        begins = frame.pts * time_base - Fraction(self._origin)
        if begins + Fraction(frame.samples, frame.sample_rate) <= 0:
            return
        frame.pts = round(begins * frame.sample_rate)
        frame.time_base = Fraction(1, frame.sample_rate)
        for ready in self._resampler.resample(frame):
            self._output.mux(self._stream.encode(ready))


def _can_copy(stream: AudioStream) -> bool:
    name = stream.codec_context.codec.canonical_name
    # Transport streams carry AAC with a header on every packet instead of one in front; MP4 has no place for those.
    return name in COPIED and (name != "aac" or bool(stream.codec_context.extradata))


def _seconds(ticks: int | None, packet: Sound) -> float:
    return float((ticks or 0) * packet.time_base)
