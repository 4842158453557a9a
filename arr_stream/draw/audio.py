"""The source's sound in the annotated video: copied if browsers can play it, else encoded as AAC.

Sound keeps the file's own clock. It ends with a notice where that clock goes back, as in joined recordings.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import av.error
from av.audio.frame import AudioFrame
from av.audio.resampler import AudioResampler
from av.audio.stream import AudioStream
from av.container import OutputContainer
from av.packet import Packet

from arr_stream.errors import SourceError
from arr_stream.sources.media import JOINABLE, next_of, open_media, reason

COPIED = frozenset({"aac", "mp3", "opus", "flac"})
"""Codecs that MP4 holds and browsers play. AC-3, Vorbis and the rest are re-encoded."""

_AAC_RATES = (96000, 88200, 64000, 48000, 44100, 32000, 24000, 22050, 16000, 12000, 11025, 8000)
_AAC_FRAME_SAMPLES = 1024
_AAC_BITS_PER_CHANNEL = 96_000
_TOUCHES_SECONDS = 0.001
"""Tolerance for a packet that ends where the output begins: it primes the decoder, and is kept."""
_BACKWARD_SECONDS = 0.1
"""Step back above which the file's clock counts as restarted."""
_LONGEST_SILENCE_SECONDS = 10.0
"""Longest gap that is encoded as silence; the container holds longer ones."""
_RESAMPLING = {"async": "1", "min_hard_comp": "0.01"}
"""Options that fill gaps and trim overlaps from 10 ms on, without a change of speed."""


class SourceAudio:
    """Copier of a source's first audio stream into an output, a little at a time, so that memory stays small.

    Must be made before the output gets its first packet. An error in the sound ends only the sound.

    Args:
        output: An open container.
        path: The source.
        origin_seconds: Time in the source's container that is 0.0 in the output.

    Attributes:
        notices: One line for every reason why sound is missing.
    """

    def __init__(self, output: OutputContainer, path: Path, *, origin_seconds: float) -> None:
        self.notices: list[str] = []
        self._output = output
        self._origin = origin_seconds
        self._name = path.name
        self._held: Packet[AudioStream] | None = None
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
        if self._origin > 1.0 and container.format.name not in JOINABLE:
            # Not every format can seek; packets before the origin are then read and skipped.
            with contextlib.suppress(av.error.FFmpegError, OSError):
                container.seek(int((self._origin - 0.5) * av.time_base))
        self._track = (_Copied if _can_copy(stream) else _Encoded)(self._output, stream)
        self._packets = self._demuxed(stream)

    def advance(self, until_seconds: float) -> None:
        """Copy the sound that begins before `until_seconds` of the output.

        Raises:
            OSError: The output cannot be written.
        """
        with self._ending_alone(until_seconds):
            while self._track is not None:
                packet = self._held or next(self._packets, None)
                self._held = None
                if packet is None:
                    return
                begins = _own_seconds(packet) - self._origin
                if begins >= until_seconds:
                    self._held = packet
                    return
                if begins + float((packet.duration or 0) * packet.time_base) > -_TOUCHES_SECONDS:
                    self._bring(packet, begins)

    def finish(self, end_seconds: float) -> None:
        """Copy the rest of the sound, to `end_seconds` of the output."""
        self.advance(end_seconds)
        with self._ending_alone(end_seconds):
            if self._track is not None:
                self._track.flush()
        self.close()

    def close(self) -> None:
        """Close the source."""
        self._track = None
        if self._media is not None:
            self._media.close()
            self._media = None

    @contextlib.contextmanager
    def _ending_alone(self, at_seconds: float) -> Iterator[None]:
        """Drop the sound if FFmpeg refuses it; raise disk errors, which affect the pictures too."""
        try:
            yield
        except OSError:
            raise
        except (av.error.FFmpegError, ValueError) as exc:
            self._track = None
            self.notices.append(f"sound ends at {at_seconds:.1f} s: {self._name}: {reason(exc)}")

    def _demuxed(self, stream: AudioStream) -> Iterator[Packet[AudioStream]]:
        assert self._media is not None
        demuxed, last_seconds = self._media.container.demux(stream), -math.inf
        while True:
            try:
                packet = next_of(demuxed)
            except (av.error.FFmpegError, OSError) as exc:
                self.notices.append(f"sound ends early: {self._name}: {reason(exc)}")
                return
            if packet is None:
                return
            if packet.size and not (packet.pts is None and packet.dts is None):
                seconds = _own_seconds(packet)
                if seconds < last_seconds - _BACKWARD_SECONDS:
                    at_seconds = last_seconds - self._origin
                    self.notices.append(f"sound ends at {at_seconds:.1f} s, where the clock of {self._name} restarts")
                    return
                last_seconds = seconds
                yield packet

    def _bring(self, packet: Packet[AudioStream], begins_seconds: float) -> None:
        assert self._track is not None
        problem = self._track.bring(packet, begins_seconds)
        if problem and not self.notices:
            self.notices.append(f"sound has gaps: {self._name}: {problem}")


class _Copied:
    """Copied packets with shifted times."""

    def __init__(self, output: OutputContainer, stream: AudioStream) -> None:
        self._output = output
        self._stream = output.add_stream_from_template(stream)
        self._last_dts: int | None = None

    def bring(self, packet: Packet[AudioStream], begins_seconds: float) -> str | None:
        """Write a packet that starts at `begins_seconds`, unless its time does not increase."""
        pts = round(begins_seconds / packet.time_base)
        dts = pts if packet.dts is None or packet.pts is None else pts + packet.dts - packet.pts
        if self._last_dts is None or dts > self._last_dts:
            self._last_dts = dts
            packet.pts, packet.dts, packet.stream = pts, dts, self._stream
            self._output.mux(packet)
        return None

    def flush(self) -> None:
        """Do nothing, since no packets are buffered."""


class _Encoded:
    """Packets re-encoded as AAC with shifted times."""

    def __init__(self, output: OutputContainer, stream: AudioStream) -> None:
        self._rate = stream.sample_rate if stream.sample_rate in _AAC_RATES else 48_000
        channels = 1 if stream.channels == 1 else 2
        self._layout = "mono" if channels == 1 else "stereo"
        self._output = output
        self._stream = output.add_stream(
            "aac", rate=self._rate, layout=self._layout, bit_rate=_AAC_BITS_PER_CHANNEL * channels
        )
        self._resampler: AudioResampler | None = None
        self._end_seconds = -math.inf

    def bring(self, packet: Packet[AudioStream], begins_seconds: float) -> str | None:
        """Encode a packet that starts at `begins_seconds`; return the reason if it cannot be decoded."""
        try:
            frames = packet.decode()
        except (av.error.FFmpegError, OSError) as exc:
            return reason(exc)
        shift = begins_seconds - _own_seconds(packet)
        for frame in frames:
            if frame.pts is not None:
                self._encode(frame, float(frame.pts * (frame.time_base or packet.time_base)) + shift)
        return None

    def flush(self) -> None:
        self._flush_resampler()
        self._output.mux(self._stream.encode(None))

    def _encode(self, frame: AudioFrame, begins_seconds: float) -> None:
        ends_seconds = begins_seconds + frame.samples / frame.sample_rate
        if ends_seconds <= max(0.0, self._end_seconds):
            return
        if self._resampler is None or begins_seconds - self._end_seconds > _LONGEST_SILENCE_SECONDS:
            self._flush_resampler()
            self._resampler = AudioResampler(
                "fltp", self._layout, self._rate, frame_size=_AAC_FRAME_SAMPLES, options=_RESAMPLING
            )
        self._end_seconds = ends_seconds
        frame.pts = round(begins_seconds * frame.sample_rate)
        frame.time_base = Fraction(1, frame.sample_rate)
        self._write(self._resampler.resample(frame))

    def _flush_resampler(self) -> None:
        if self._resampler is not None:
            self._write(self._resampler.resample(None))
            self._resampler = None

    def _write(self, frames: list[AudioFrame]) -> None:
        for frame in frames:
            self._output.mux(self._stream.encode(frame))


def _can_copy(stream: AudioStream) -> bool:
    name = stream.codec_context.codec.canonical_name
    if name == "mp3" and stream.sample_rate < 16_000:
        return False  # The container refuses it.
    # Transport streams carry AAC with a header on every packet instead of one in front; MP4 has no place for those.
    return name in COPIED and (name != "aac" or bool(stream.codec_context.extradata))


def _own_seconds(packet: Packet[Any]) -> float:
    return float(((packet.dts if packet.pts is None else packet.pts) or 0) * packet.time_base)
