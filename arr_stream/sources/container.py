"""Opening media of unknown origin with FFmpeg, and choosing the stream to show."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeVar

import av
import av.error
from av.codec.hwaccel import HWAccel
from av.container import InputContainer
from av.stream import Disposition
from av.video.stream import VideoStream

from arr_stream.errors import NoFrames, NotAMediaFile, NoVideoStream

# Formats whose content names other files or addresses to open, devices, and text shown as pictures.
_REFERRING = {"avisynth", "concat", "dash", "hls", "image2", "imf", "mlv", "rtp", "rtsp", "sap", "sdp", "vapoursynth"}
_REFERRING |= {"vobsub", "webm_dash_manifest"}
_DEVICES = {"alsa", "dvdvideo", "fbdev", "jack", "kmsgrab", "lavfi", "libcdio", "oss", "pulse", "sndio"}
_DEVICES |= {"video4linux2,v4l2", "x11grab", "xcbgrab"}
_TEXT = {"adf", "bin", "idf", "tty", "xbin"}
_REFUSED_FORMATS = _REFERRING | _DEVICES | _TEXT
T = TypeVar("T")
_COVER = Disposition.attached_pic | Disposition.timed_thumbnails


@dataclass(frozen=True, slots=True)
class Media:
    """An open container with the file behind it."""

    container: InputContainer
    file: IO[bytes]

    def close(self) -> None:
        self.container.close()
        self.file.close()


def open_media(path: Path, name: str, *, accelerator: HWAccel | None = None) -> Media:
    """Open a file, and nothing but this file.

    FFmpeg reads through the file handle it is given and is allowed no protocol at all, so that a playlist or a
    container with references cannot reach another file or an address.

    Args:
        path: The file.
        name: What to call it in messages.
        accelerator: Decode with this hardware.

    Raises:
        NotAMediaFile: FFmpeg cannot open it, or it may not be read.
    """
    try:
        file = path.open("rb")
    except OSError as exc:
        raise NotAMediaFile(f"{name}: cannot be read: {exc.strerror}", remedy="check its permissions") from exc
    allowed = ",".join(sorted(av.formats_available - _REFUSED_FORMATS))
    try:
        options = {"protocol_whitelist": "none", "format_whitelist": allowed}
        container = av.open(
            file, "r", options=options, metadata_errors="replace", buffer_size=1 << 16, hwaccel=accelerator
        )
    except (av.error.FFmpegError, OSError, ValueError) as exc:
        file.close()
        raise NotAMediaFile(
            f"{name}: FFmpeg cannot open it: {reason(exc)}",
            remedy="give a video file, an animated GIF, or pictures; playlists and text are not read",
        ) from exc
    return Media(container, file)


def choose_stream(container: InputContainer, name: str, number: int | None) -> tuple[VideoStream, int]:
    """The video stream of that number (0 is the first), and how many there are; cover art does not count.

    Raises:
        NoFrames: The container holds no streams at all.
        NoVideoStream: Audio only, or no video stream of that number.
        NotAMediaFile: FFmpeg has no decoder for it.
    """
    if not container.streams:
        raise NoFrames(f"{name}: the container is empty", remedy="check that the file was written to its end")
    streams = [stream for stream in container.streams.video if not stream.disposition & _COVER]
    if not streams:
        kinds = ", ".join(sorted({stream.type for stream in container.streams}))
        raise NoVideoStream(f"{name}: no video, only {kinds}", remedy="give a source with moving pictures")
    if number is not None and not 0 <= number < len(streams):
        allowed = "0 is the only one" if len(streams) == 1 else f"0 to {len(streams) - 1} exist"
        raise NoVideoStream(f"{name}: no video stream {number}", remedy=f"video streams are counted from 0; {allowed}")
    stream = streams[number or 0]
    # PyAV's stubs do not say so, but there is no context where there is no decoder.
    context: object = stream.codec_context
    if context is None:
        raise NotAMediaFile(f"{name}: FFmpeg has no decoder for its video", remedy="convert it to H.264 first")
    return stream, len(streams)


def next_of(made: Iterator[T]) -> T | None:
    """The next packet or picture that PyAV makes; None at the end.

    Raises:
        FFmpegError, OSError: It cannot be read.
    """
    try:
        return next(made, None)
    except IndexError:
        # At the end PyAV drains streams that appeared on the way too, and knows only those from the beginning.
        return None


def reason(error: Exception) -> str:
    """FFmpeg's own words, without its numbers and file names."""
    text = getattr(error, "strerror", None) or str(error)
    return text[:1].lower() + text[1:]
