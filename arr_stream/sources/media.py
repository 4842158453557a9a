"""Safe opening of media with FFmpeg, choice of the video stream, and orientation of decoded pictures."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

import av
import av.error
import cv2
import numpy as np
from av.container import InputContainer
from av.sidedata.sidedata import SideData
from av.stream import Disposition
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from arr_stream.errors import NoFrames, NotAMediaFile, NoVideoStream
from arr_stream.sources.base import Job
from arr_stream.types import ByteArray

# Formats whose content names other files or addresses to open, devices, and text shown as pictures.
_REFERRING = {"avisynth", "concat", "dash", "hls", "image2", "imf", "mlv", "rtp", "rtsp", "sap", "sdp", "vapoursynth"}
_REFERRING |= {"vobsub", "webm_dash_manifest"}
_DEVICES = {"alsa", "dvdvideo", "fbdev", "jack", "kmsgrab", "lavfi", "libcdio", "oss", "pulse", "sndio"}
_DEVICES |= {"video4linux2,v4l2", "x11grab", "xcbgrab"}
_TEXT = {"adf", "bin", "idf", "tty", "xbin"}
_REFUSED_FORMATS = _REFERRING | _DEVICES | _TEXT
JOINABLE = {"mpegts", "mpeg", "flv"}
"""Formats whose parts can be concatenated, with a clock that restarts in each."""
_COVER = Disposition.attached_pic | Disposition.timed_thumbnails
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Media:
    """Open container with the file behind it."""

    container: InputContainer
    file: IO[bytes]

    def close(self) -> None:
        self.container.close()
        self.file.close()


def open_media(path: Path, name: str) -> Media:
    """Open a file, and nothing but this file; `name` is for messages.

    FFmpeg reads through the given file handle and is allowed no protocol at all, so that a playlist or a container with
    references cannot reach another file or an address.

    Raises:
        NotAMediaFile: FFmpeg cannot open it, or the file is not readable.
    """
    try:
        file = path.open("rb")
    except OSError as exc:
        raise NotAMediaFile(f"{name}: cannot be read: {exc.strerror}", remedy="check its permissions") from exc
    allowed = ",".join(sorted(av.formats_available - _REFUSED_FORMATS))
    try:
        options = {"protocol_whitelist": "none", "format_whitelist": allowed}
        container = av.open(file, "r", options=options, metadata_errors="replace", buffer_size=1 << 16)
    except (av.error.FFmpegError, OSError, ValueError) as exc:
        empty = path.stat().st_size == 0
        file.close()
        raise NotAMediaFile(
            f"{name}: the file is empty" if empty else f"{name}: FFmpeg cannot open it: {reason(exc)}",
            remedy="give a video file, an animated GIF, or pictures; playlists and text are not read",
        ) from exc
    return Media(container, file)


@contextmanager
def opened_video(job: Job) -> Iterator[tuple[InputContainer, VideoStream]]:
    """Open the media file of a job once more, beside its source; raises as `open_media` and `choose_stream` do."""
    media = open_media(job.paths[0], job.name)
    try:
        yield media.container, choose_stream(media.container, job.name, job.reading.video_stream)
    finally:
        media.close()


def moving_pictures(container: InputContainer) -> list[VideoStream]:
    """Return the video streams of a container without cover art."""
    return [stream for stream in container.streams.video if not stream.disposition & _COVER]


def choose_stream(container: InputContainer, name: str, number: int | None) -> VideoStream:
    """Return the video stream of that number, from 0 and without cover art.

    Raises:
        NoFrames: The container holds no streams at all.
        NoVideoStream: Audio only, or no video stream of that number.
        NotAMediaFile: FFmpeg has no decoder for it.
    """
    if not container.streams:
        raise NoFrames(f"{name}: the container is empty", remedy="check that the file was written to its end")
    streams = moving_pictures(container)
    if not streams:
        # The only pictures left are covers.
        kinds = ", ".join(sorted({stream.type.replace("video", "a cover picture") for stream in container.streams}))
        raise NoVideoStream(f"{name}: no video, only {kinds}", remedy="give a source with moving pictures")
    if number is not None and not 0 <= number < len(streams):
        allowed = "0 is the only one" if len(streams) == 1 else f"0 to {len(streams) - 1} exist"
        raise NoVideoStream(f"{name}: no video stream {number}", remedy=f"video streams are counted from 0; {allowed}")
    stream = streams[number or 0]
    # A stream without a decoder has no context, although PyAV's stubs do not say so.
    context: object = stream.codec_context
    if context is None:
        raise NotAMediaFile(f"{name}: FFmpeg has no decoder for its video", remedy="convert it to H.264 first")
    return stream


def next_of(made: Iterator[T]) -> T | None:
    """Return the next packet that PyAV reads; None at the end.

    Raises:
        FFmpegError, OSError: It cannot be read.
    """
    try:
        return next(made, None)
    except IndexError:
        # At the end PyAV also drains streams that appeared later, but it knows only those from the beginning.
        return None


def reason(error: Exception) -> str:
    """Return FFmpeg's own message, without its numbers and file names."""
    text = getattr(error, "strerror", None) or str(error)
    return text[:1].lower() + text[1:]


class Upright:
    """Orientation of a sequence of pictures: a transposition, then mirroring of either axis.

    The display matrix is read of the first picture and of each with another angle: a picture whose side data was read
    is freed by the garbage collector only, and many large ones would pile up.
    """

    def __init__(self) -> None:
        self._rotation: int | None = None
        self._transposed = self._mirror_x = self._mirror_y = False

    def turn(self, picture: VideoFrame, rgb: ByteArray) -> ByteArray:
        """Return the RGB of a picture upright, `[H, W, 3]`, C-contiguous; the same array if it is upright already."""
        if picture.rotation != self._rotation:
            self._rotation = picture.rotation
            self._read_matrix(picture)
        upright: Any = cv2.transpose(rgb) if self._transposed else rgb
        if self._mirror_x or self._mirror_y:
            upright = cv2.flip(upright, -1 if self._mirror_x and self._mirror_y else int(self._mirror_x))
        return np.ascontiguousarray(upright)

    def pixel_aspect(self, stream: VideoStream) -> float:
        """Return the width of an upright pixel over its height; 1.0 if the stream does not say."""
        aspect = float(stream.sample_aspect_ratio or 1) or 1.0
        return 1 / aspect if self._transposed else aspect

    def _read_matrix(self, picture: VideoFrame) -> None:
        """Read FFmpeg's 3x3 integers, which map (x, y) to (ax + cy, bx + dy); zeros turn nothing."""
        matrix, a, b, c, d = picture.side_data.get("DISPLAYMATRIX"), 1, 0, 0, 1
        if isinstance(matrix, SideData):
            a, b, _, c, d = struct.unpack_from("=5i", bytes(matrix))
        # Angles are rounded to the nearest quarter turn.
        self._transposed = abs(b) + abs(c) > abs(a) + abs(d)
        self._mirror_x, self._mirror_y = (c < 0, b < 0) if self._transposed else (a < 0, d < 0)
