"""Sources of frames: media files, animations, and pictures in a folder or glob."""

from __future__ import annotations

from pathlib import Path

from arr_stream.errors import NoVideoStream
from arr_stream.sources.base import Job, Matrix, Reading, Source, SourceInfo, SourceKind, SourceStats
from arr_stream.sources.locate import files_of, public_name

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
        start_seconds: Begin with the first frame at or after this time.
        end_seconds: End before this time.
        stride: Every Nth frame from there.
        max_frames: Largest number of frames.
        max_pixels: Refuse frames with more pixels.
        untagged_matrix: Matrix of video that names none; `auto` is BT.709 for HD and BT.601 below.
        stop_at_damage: End at the first packet or picture that cannot be decoded, instead of skipping it.

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
    name = public_name(str(spec))
    paths, folder, pictures, left_out = files_of(spec)
    if pictures and video_stream:
        raise NoVideoStream(f"{name}: pictures have no video stream {video_stream}", remedy="leave it out")
    job = Job(paths, name, pictures, folder, left_out, reading, max_pixels, untagged_matrix, stop_at_damage)
    if pictures:
        from arr_stream.sources.images import ImagesSource

        return ImagesSource(job)
    from arr_stream.sources.ffmpeg import FfmpegSource

    return FfmpegSource(job)
