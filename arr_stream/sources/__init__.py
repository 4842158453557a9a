"""Sources of frames: media files, animations, and pictures in a folder or glob."""

from __future__ import annotations

from pathlib import Path

from arr_stream.errors import NoVideoStream
from arr_stream.extras import need
from arr_stream.sources.base import Job, Matrix, Reading, Source, SourceInfo, SourceKind, SourceStats
from arr_stream.sources.locate import (
    content_of,
    is_glob,
    is_picture,
    local_spec,
    pictures_of,
    public_name,
    require_file,
)

__all__ = ["Source", "SourceInfo", "SourceKind", "SourceStats", "open_source"]


def open_source(
    spec: str | Path,
    *,
    video_stream: int | None = None,
    start_seconds: float | None = None,
    end_seconds: float | None = None,
    stride: int = 1,
    max_frames: int | None = None,
    max_pixels: int = 100_000_000,
    untagged_matrix: Matrix = "auto",
    stop_at_damage: bool = False,
) -> Source:
    """Open the source that `spec` names and read its first frame.

    A folder or glob is read as pictures. The content of a file decides its format, its ending only
    if the content is inconclusive. A file of exactly the given name comes before a glob.

    Args:
        spec: A file, a folder, a glob, or a `file://` URL.
        video_stream: Number of the video stream, from 0; None for the first.
        start_seconds, end_seconds: Begin with the first frame at or after the start; end before the end.
        stride: Every Nth frame from there.
        max_frames: Largest number of frames.
        max_pixels, untagged_matrix, stop_at_damage: As in the settings of `source`.

    Raises:
        SourceError: One of its kinds, see `arr_stream.errors`.
        InvalidSetting: A start, end, stride or limit is out of range.
        BackendUnavailable: It is HEIF, and the package that reads it is not installed.
    """
    reading = Reading(
        video_stream=video_stream,
        start_seconds=start_seconds,
        end_seconds=end_seconds,
        stride=stride,
        max_frames=max_frames,
    )
    text, name = local_spec(spec), public_name(str(spec))
    path = Path(text)
    named: Path | None = path
    if path.is_dir() or is_glob(text):
        paths, left_out = pictures_of(text)
        pictures, named = True, path if path.is_dir() else None
    else:
        require_file(path, name)
        content = content_of(path)
        if content == "heif":
            need("pillow_heif", f"{name}: HEIF")
        paths, left_out, pictures = [path], [], content == "animation" or is_picture(path)
    if pictures and video_stream:
        raise NoVideoStream(f"{name}: pictures have no video stream {video_stream}", remedy="leave it out")
    job = Job(paths, name, named, left_out, reading, max_pixels, untagged_matrix, stop_at_damage)
    if pictures:
        from arr_stream.sources.images import ImagesSource

        return ImagesSource(job)
    from arr_stream.sources.ffmpeg import FfmpegSource

    return FfmpegSource(job)
