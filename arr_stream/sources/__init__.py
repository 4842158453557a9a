"""Where frames come from: media files, animations, and pictures in a folder or glob."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from arr_stream.errors import MotionVectorsUnavailable, NoVideoStream
from arr_stream.sources.base import Source, SourceInfo, SourceKind, SourceStats, Span
from arr_stream.sources.locate import (
    is_glob,
    is_picture,
    local_spec,
    pictures_in,
    pictures_matching,
    public_name,
    require_file,
)

if TYPE_CHECKING:
    from arr_stream.config import SandboxSettings

__all__ = ["Source", "SourceInfo", "SourceKind", "SourceStats", "Span", "open_source"]


@dataclass(frozen=True, slots=True)
class _Wish:
    name: str
    span: Span
    video_stream: int | None
    motion_vectors: bool
    max_pixels: int
    hardware: str
    sandbox: SandboxSettings | None


def open_source(
    spec: str | Path,
    *,
    video_stream: int | None = None,
    start_seconds: float | None = None,
    end_seconds: float | None = None,
    stride: int = 1,
    max_frames: int | None = None,
    motion_vectors: bool = False,
    max_pixels: int = 100_000_000,
    hardware: str = "off",
    sandbox: SandboxSettings | None = None,
) -> Source:
    """Open whatever `spec` names and read its first frame.

    A folder or glob is read as pictures, a file that ends like a picture as one, anything else as media. A file of
    exactly the given name comes before a glob.

    Args:
        spec: A file, a folder, a glob, or a `file://` URL.
        video_stream: Which of several video streams, 0 the first; None the first.
        start_seconds: Begin with the first frame at or after this time.
        end_seconds: End before this time.
        stride: Every Nth frame from there.
        max_frames: At most so many.
        motion_vectors: Hand out the decoder's motion vectors with the frames.
        max_pixels: Refuse frames with more pixels.
        hardware: Who decodes media: `off` for software, `auto`, or a kind of hardware, see `sources.hardware`.
        sandbox: Decode in a process of its own, with these limits; None decodes here. See `sources.sandbox`.

    Raises:
        SourceError: One of its kinds, see `arr_stream.errors`.
        InvalidSetting: A start, end, stride or limit that means nothing, or hardware that FFmpeg does not know.
        BackendUnavailable: The hardware that was asked for is not there, or cannot decode the file, or there is no
            sandbox on this system.
    """
    span = Span(start_seconds, end_seconds, stride, max_frames)
    wish = _Wish(public_name(str(spec)), span, video_stream, motion_vectors, max_pixels, hardware, sandbox)
    text = local_spec(spec)
    path = Path(text)
    if path.is_dir():
        return _open_pictures(pictures_in(path), wish, path)
    if is_glob(text):
        return _open_pictures(pictures_matching(text), wish, None)
    require_file(path, wish.name)
    return _open_pictures([path], wish, path) if is_picture(path) else _open_media(path, wish)


def _open_pictures(paths: Sequence[Path], wish: _Wish, path: Path | None) -> Source:
    if wish.motion_vectors:
        raise MotionVectorsUnavailable(
            f"{wish.name}: pictures have no motion vectors", remedy="use --set motion.flow=dis"
        )
    if wish.video_stream:
        raise NoVideoStream(f"{wish.name}: pictures have no video stream {wish.video_stream}", remedy="leave it out")
    if wish.sandbox is not None:
        return _open_sandboxed(paths, wish, path, pictures=True)
    from arr_stream.sources.images import ImagesSource

    return ImagesSource(paths, name=wish.name, folder=path, span=wish.span, max_pixels=wish.max_pixels)


def _open_sandboxed(paths: Sequence[Path], wish: _Wish, path: Path | None, *, pictures: bool) -> Source:
    from arr_stream.sources.sandbox.source import SandboxedSource

    return SandboxedSource(
        paths,
        name=wish.name,
        pictures=pictures,
        folder=path,
        span=wish.span,
        video_stream=wish.video_stream,
        motion_vectors=wish.motion_vectors,
        max_pixels=wish.max_pixels,
        hardware=wish.hardware,
        settings=wish.sandbox,
    )


def _open_media(path: Path, wish: _Wish) -> Source:
    if wish.sandbox is not None:
        return _open_sandboxed([path], wish, path, pictures=False)
    from arr_stream.sources.ffmpeg import FfmpegSource

    return FfmpegSource(
        path,
        name=wish.name,
        video_stream=wish.video_stream,
        span=wish.span,
        motion_vectors=wish.motion_vectors,
        max_pixels=wish.max_pixels,
        hardware=wish.hardware,
    )
