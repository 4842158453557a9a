"""Writer of H.264 in MP4 files that can be played at any moment of the writing.

It uses FFmpeg's hybrid mode: fragments of about a second while the file grows, of which all but the last can be played
if the process is killed, and an ordinary index once it is closed.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import av.error
import cv2
import numpy as np
from av.video.frame import VideoFrame
from av.video.reformatter import ColorPrimaries, ColorRange, Colorspace, ColorTrc

from arr_stream.config import VideoSettings
from arr_stream.errors import EncodingFailed
from arr_stream.files import output_error, partial_path, publish
from arr_stream.types import ByteArray

TICKS_PER_SECOND = 90_000
_TICK = Fraction(1, TICKS_PER_SECOND)
_X264_PRESET = "veryfast"
LONGEST_SECONDS = 6 * 3600
"""Longest duration of a picture: FFmpeg refuses to write more than 2^31 ticks into MP4."""
_CONTAINER_OPTIONS = {
    # delay_moov: the index in front is written with the first fragment, when the exact start of each stream is known.
    "movflags": "hybrid_fragmented+delay_moov",
    "frag_duration": "1000000",
    "flush_packets": "1",
}


class Mp4Writer:
    """Encoder of pictures at given times into the partial file of `path`.

    Args:
        path: The final name; see `publish`.
        size_wh: Size of the pictures in pixels; odd sides are padded to even ones by repeating the edge.
        settings: Quality and speed.
        frame_seconds: Usual time from frame to frame, for the rate control and for the duration of a lone frame.
        pixel_aspect: Width of a pixel over its height.
        threads: Number of encoder threads; 0 leaves the choice to the encoder.

    Raises:
        EncodingFailed: The encoder refuses the size or the settings.
        DiskFull, OutputUnwritable: The system refuses to write, now or in `write` and `finish`.
    """

    def __init__(
        self,
        path: Path,
        *,
        size_wh: tuple[int, int],
        settings: VideoSettings,
        frame_seconds: float,
        pixel_aspect: float,
        threads: int = 0,
    ) -> None:
        self.path = path
        self.size_wh = size_wh
        self.frames = 0
        self._durations: dict[int, int] = {}
        self._last_tick = -1
        self._left_out_ticks = 0
        self._step = max(1, round(frame_seconds * TICKS_PER_SECOND))
        with self.encoding():
            self.container = av.open(
                f"file:{partial_path(path).absolute()}", "w", format="mp4", container_options=_CONTAINER_OPTIONS
            )
            fps = Fraction(1 / frame_seconds).limit_denominator(1001)
            # Without B-frames pictures are stored in display order. With them, FFmpeg's fragments lose a last picture
            # whose packet is in an earlier fragment, and a killed run loses more.
            options = {"crf": str(settings.crf), "preset": _X264_PRESET, "bf": "0"}
            self._stream = self.container.add_stream("libx264", rate=fps, options=options)
            self._stream.codec_context.thread_count = threads
            self._describe(size_wh, pixel_aspect)

    def _describe(self, size_wh: tuple[int, int], pixel_aspect: float) -> None:
        stream, context = self._stream, self._stream.codec_context
        stream.width, stream.height = (side + side % 2 for side in size_wh)
        stream.pix_fmt = "yuv420p"
        stream.time_base = context.time_base = _TICK
        context.sample_aspect_ratio = Fraction(pixel_aspect).limit_denominator(255)
        # OpenCV converts with the BT.601 matrix; players guess BT.709 for large untagged pictures.
        context.colorspace = int(Colorspace.SMPTE170M)
        context.color_range = int(ColorRange.MPEG)
        context.color_primaries = int(ColorPrimaries.BT709)
        context.color_trc = int(ColorTrc.BT709)

    @property
    def end_seconds(self) -> float:
        """End time of the last frame."""
        return (self._last_tick + self._step) / TICKS_PER_SECOND

    @property
    def last_seconds(self) -> float:
        """Start time of the last frame."""
        return self._last_tick / TICKS_PER_SECOND

    def write(self, rgb: ByteArray, pts_seconds: float) -> None:
        """Encode one picture `[H, W, 3]` of the writer's size.

        Times that do not increase are moved one tick (11 us) past the frame before. A pause longer than six hours is
        shortened to six, and all later times are moved by the difference.
        """
        tick = max(round(pts_seconds * TICKS_PER_SECOND) - self._left_out_ticks, self._last_tick + 1)
        if self.frames and (too_long := tick - self._last_tick - LONGEST_SECONDS * TICKS_PER_SECOND) > 0:
            self._left_out_ticks += too_long
            tick -= too_long
        if self.frames:
            self._durations[self._last_tick] = tick - self._last_tick
            if tick - self._last_tick > 1:
                self._step = tick - self._last_tick
        self._last_tick = tick
        with self.encoding():
            frame = VideoFrame.from_ndarray(_planes(rgb), format="yuv420p")
            frame.pts, frame.time_base = tick, _TICK
            self._mux(frame)
        self.frames += 1

    def finish(self) -> None:
        """Encode what the encoder still holds and write the index."""
        with self.encoding():
            try:
                self._mux(None)
            finally:
                self.container.close()

    def publish(self, *, force: bool) -> None:
        """Give the file its final name."""
        publish(self.path, force=force)

    def salvage(self, *, force: bool) -> bool:
        """Publish the file after an error if it can be played, else remove it. Return True if published."""
        with contextlib.suppress(OSError, av.error.FFmpegError):
            self.container.close()
        partial = partial_path(self.path)
        with contextlib.suppress(OSError):
            cut_to_whole_fragments(partial)
        if playable(partial):
            publish(self.path, force=force)
            return True
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        return False

    def _mux(self, frame: VideoFrame | None) -> None:
        for packet in self._stream.encode(frame):
            # The container takes the duration of all frames but the last from the next one's time.
            packet.duration = self._durations.pop(packet.pts or 0, self._step)
            self.container.mux(packet)

    @contextlib.contextmanager
    def encoding(self) -> Iterator[None]:
        """Turn FFmpeg's errors into ours."""
        try:
            yield
        except OSError as exc:
            raise output_error(exc, self.path) from exc
        except (av.error.FFmpegError, ValueError) as exc:
            raise EncodingFailed(
                f"{self.path}: the encoder refused: {getattr(exc, 'strerror', None) or exc}",
                remedy="check video.crf",
            ) from exc


def cut_to_whole_fragments(path: Path) -> None:
    """Remove a last fragment that was only partly written, which decoders cannot handle."""
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        place = whole = 0
        while place + 8 <= size:
            file.seek(place)
            length, name = struct.unpack(">I4s", file.read(8))
            if length == 1:
                (length,) = struct.unpack(">Q", file.read(8))
            if length < 8 or place + length > size:
                break
            place += length
            # A fragment's index is useless without the data that follows it.
            if name != b"moof":
                whole = place
        file.truncate(whole)


def playable(path: Path) -> bool:
    """Return True if at least one picture of the file can be shown."""
    try:
        with av.open(f"file:{path.absolute()}") as container:
            return next(container.decode(video=0), None) is not None
    except (OSError, av.error.FFmpegError, IndexError):
        return False


def _planes(rgb: ByteArray) -> ByteArray:
    """Return the three planes of 4:2:0 as `[H * 3 / 2, W]`, sides made even."""
    height, width = rgb.shape[:2]
    even: Any = rgb
    if height % 2 or width % 2:
        even = cv2.copyMakeBorder(rgb, 0, height % 2, 0, width % 2, cv2.BORDER_REPLICATE)
    return np.asarray(cv2.cvtColor(even, cv2.COLOR_RGB2YUV_I420), dtype=np.uint8)
