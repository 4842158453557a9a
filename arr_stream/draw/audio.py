"""The source's sound in the annotated video: copied if browsers can play it, else encoded as AAC.

Sound follows the clock of the pictures. If a file's clock restarts (joined recordings), frames give the shift of their
times against those of the file, and the sound of that part is moved by the same amount; gaps are filled with silence
and overlaps left out.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import av.error
from av.audio.frame import AudioFrame
from av.audio.resampler import AudioResampler
from av.audio.stream import AudioStream
from av.container import OutputContainer
from av.packet import Packet
from av.video.stream import VideoStream

from arr_stream.errors import SourceError
from arr_stream.sources.media import JOINABLE, moving_pictures, next_of, open_media, reason
from arr_stream.types import Frame

COPIED = frozenset({"aac", "mp3", "opus", "flac"})
"""Codecs that MP4 holds and browsers play. AC-3, Vorbis and the rest are re-encoded."""

Sound: TypeAlias = "Packet[Any]"


class Piece(NamedTuple):
    """Packet and its part of the file, see `_Parts`."""

    packet: Sound
    part: int


_AAC_RATES = (96000, 88200, 64000, 48000, 44100, 32000, 24000, 22050, 16000, 12000, 11025, 8000)
_AAC_FRAME_SAMPLES = 1024
_AAC_BITS_PER_CHANNEL = 96_000
_LOOKAHEAD_PACKETS = 256
_TOUCHES_SECONDS = 0.001
"""Tolerance for a packet that ends where the output begins: it primes the decoder, and is kept."""
_LONGEST_SILENCE_SECONDS = 10.0
"""Longest gap that is encoded as silence; the container holds longer ones."""
_CONTINUES_SECONDS = 0.5
"""Longest gap after which sound may still continue the sound before."""
_RESAMPLING = {"async": "1", "min_hard_comp": "0.01"}
"""Options that fill gaps and trim overlaps from 10 ms on, without a change of speed."""


class SourceAudio:
    """Copier of a source's first audio stream into an output, a little at a time, so that memory stays small.

    Must be made before the output gets its first packet. An error in the sound ends only the sound.

    Args:
        output: An open container.
        path: The source.
        origin_seconds: Time in the source's container that is 0.0 in the output, if its clock never restarted.

    Attributes:
        notices: One line for every reason why sound is missing.
    """

    def __init__(self, output: OutputContainer, path: Path, *, origin_seconds: float) -> None:
        self.notices: list[str] = []
        self._output = output
        self._origin = origin_seconds
        self._name = path.name
        self._held: Piece | None = None
        self._video_seen = self._ended = -math.inf
        self._parts = _Parts(origin_seconds)
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
        self._pieces = self._demuxed([stream, *moving_pictures(container)[:1]])

    def advance(self, until_seconds: float, frame: Frame) -> None:
        """Copy the sound that begins before `until_seconds` of the output, where `frame` begins."""
        self._parts.learn(frame.clock_part, frame.clock_shift_seconds)
        with self._ending_alone(until_seconds):
            self._advance(until_seconds)

    def finish(self, *, last_seconds: float, end_seconds: float, whole: bool) -> None:
        """Copy the rest: to the end of the pictures, or of the sound if the pictures were shown to their end.

        Args:
            last_seconds, end_seconds: Start and end of the last picture in the output.
            whole: No error cut the run short.
        """
        with self._ending_alone(end_seconds):
            self._advance(end_seconds)
            if whole and self._track is not None:
                self._bring_tail(last_seconds)
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

    def _advance(self, until_seconds: float) -> None:
        parts = self._parts
        while self._track is not None:
            piece = self._held or next(self._pieces, None)
            self._held = None
            if piece is None:
                return
            if parts.begins(piece) >= until_seconds and not parts.join(piece, self._ended, until_seconds):
                self._held = piece
                return
            self._bring(piece)

    def _bring_tail(self, last_seconds: float) -> None:
        """Copy the sound after the last picture shown, unless pictures outside the requested range follow too."""
        pieces = itertools.chain([self._held] if self._held else [], self._pieces)
        # Interleaved files bring a picture within seconds of sound; past that no more follow.
        for ahead in (list(itertools.islice(pieces, _LOOKAHEAD_PACKETS)), pieces):
            for piece in ahead:
                if self._video_seen > last_seconds + 0.001:
                    return
                self._bring(piece)

    def _demuxed(self, streams: list[AudioStream | VideoStream]) -> Iterator[Piece]:
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
            piece = Piece(packet, self._parts.part_of(packet))
            if packet.stream.type == "video":
                self._video_seen = max(self._video_seen, self._parts.begins(piece))
            elif packet.size:
                yield piece

    def _bring(self, piece: Piece) -> None:
        assert self._track is not None
        begins = self._parts.begins(piece)
        ends = begins + _seconds(piece.packet.duration, piece.packet)
        # Leave out sound that ends before the output begins, or is in a part without pictures.
        if not -_TOUCHES_SECONDS < ends < math.inf:
            return
        self._ended = ends
        problem = self._track.bring(piece.packet, begins)
        if problem and not self.notices:
            self.notices.append(f"sound has gaps: {self._name}: {problem}")


class _Parts:
    """Parts of a file with a continuous clock, and their shifts in the output.

    Sound belongs to the part at its position in the file. A part begins with a picture or with sound whose decoding
    time is before the one that came before it; its shift is known once one of its pictures was shown.
    """

    def __init__(self, origin_seconds: float) -> None:
        self._origin = origin_seconds
        self._shifts: dict[int, float] = {}
        self._newest: dict[str, int] = {"video": 0, "audio": 0}
        self._last: dict[str, float] = {}
        self._starts: list[int] = []

    def learn(self, part: int, shift_seconds: float) -> None:
        """Set the shift of a part from one of its pictures, later by `shift_seconds` than in the file."""
        self._shifts[part] = shift_seconds

    def part_of(self, packet: Sound) -> int:
        """Return the part of a packet; must be called for every packet, in the order of the file."""
        kind = packet.stream.type
        seconds = _seconds(packet.pts if packet.dts is None else packet.dts, packet)
        back = seconds < self._last.get(kind, -math.inf) - _TOUCHES_SECONDS
        self._last[kind] = seconds
        if kind == "video":
            if back:
                self._newest["video"] += 1
                self._starts.append(packet.pos if packet.pos is not None else -1)
        else:
            # Demuxers delay sound: packets from before the first picture of a part may come after it.
            by_place = sum(packet.pos is None or start <= packet.pos for start in self._starts)
            self._newest["audio"] = max(self._newest["audio"] + (back and by_place <= self._newest["audio"]), by_place)
        return self._newest[kind]

    def join(self, piece: Piece, ended_seconds: float, until_seconds: float) -> bool:
        """Give a part the newest shift if pictures continued without another; return True if so.

        Decoding times may go back although presentation times do not.
        """
        newest = max(self._shifts, default=None)
        if newest is None or piece.part <= newest:
            return False
        begins = self._shifted(piece.packet, newest)
        if abs(begins - ended_seconds) > _CONTINUES_SECONDS or until_seconds - begins < 2 * _CONTINUES_SECONDS:
            return False
        self._shifts[piece.part] = self._shifts[newest]
        return True

    def begins(self, piece: Piece) -> float:
        """Return a packet's start in the output: -inf in a part before the first that is shown, inf if unknown yet."""
        if piece.part not in self._shifts:
            return math.inf if piece.part > max(self._shifts, default=-1) else -math.inf
        return self._shifted(piece.packet, piece.part)

    def _shifted(self, packet: Sound, part: int) -> float:
        return _own_seconds(packet) - self._origin + self._shifts[part]


class _Copied:
    """Copied packets with shifted times."""

    def __init__(self, output: OutputContainer, stream: AudioStream) -> None:
        self._output = output
        self._stream = output.add_stream_from_template(stream)
        self._last: int | None = None

    def bring(self, packet: Sound, begins_seconds: float) -> str | None:
        """Write a packet that starts at `begins_seconds`; leave it out if it overlaps the sound before."""
        pts = round(begins_seconds / packet.time_base)
        own = packet.dts if packet.pts is None else packet.pts
        dts = pts if packet.dts is None or own is None else pts + packet.dts - own
        if self._last is not None and dts <= self._last:
            return None
        self._last = dts + max(0, (packet.duration or 0) // 2)
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
        self._form: tuple[object, ...] = ()
        self._end_seconds = -math.inf
        self._next = -(1 << 62)

    def bring(self, packet: Sound, begins_seconds: float) -> str | None:
        """Encode a packet that starts at `begins_seconds`."""
        try:
            frames = packet.decode()
        except (av.error.FFmpegError, OSError) as exc:
            return reason(exc)
        own = _own_seconds(packet)
        for frame in frames:
            if isinstance(frame, AudioFrame) and frame.pts is not None:
                self._encode(frame, float(frame.pts * (frame.time_base or packet.time_base)) - own + begins_seconds)
        return None

    def flush(self) -> None:
        self._flush_resampler()
        self._output.mux(self._stream.encode(None))

    def _encode(self, frame: AudioFrame, begins_seconds: float) -> None:
        ends_seconds = begins_seconds + frame.samples / frame.sample_rate
        if ends_seconds <= max(0.0, self._end_seconds):
            return
        form = (frame.format.name, frame.layout.name, frame.sample_rate)
        if form != self._form or begins_seconds - self._end_seconds > _LONGEST_SILENCE_SECONDS:
            self._flush_resampler()
            self._form = form
            self._resampler = AudioResampler(
                "fltp", self._layout, self._rate, frame_size=_AAC_FRAME_SAMPLES, options=_RESAMPLING
            )
        assert self._resampler is not None
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
            # Between two resamplers, times are rounded twice.
            frame.pts = max(frame.pts or 0, self._next)
            self._next = frame.pts + frame.samples
            self._output.mux(self._stream.encode(frame))


def _can_copy(stream: AudioStream) -> bool:
    name = stream.codec_context.codec.canonical_name
    if name == "mp3" and stream.sample_rate < 16_000:
        return False  # The container refuses it.
    # Transport streams carry AAC with a header on every packet instead of one in front; MP4 has no place for those.
    return name in COPIED and (name != "aac" or bool(stream.codec_context.extradata))


def _own_seconds(packet: Sound) -> float:
    return _seconds(packet.dts if packet.pts is None else packet.pts, packet)


def _seconds(ticks: int | None, packet: Sound) -> float:
    return float((ticks or 0) * packet.time_base)
