"""Fuzzing of what decodes: films, pictures, and files that refer to others."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from fuzzing import media_seeds
from fuzzing.structure import png_chunk
from fuzzing.target import Run, Target, texts

if TYPE_CHECKING:
    from arr_stream.sources import Source

MOST_PIXELS = 1_000_000
_MOST_FRAMES = 40


def _films(plans: tuple[media_seeds.Film, ...]) -> list[bytes]:
    """Each with its byte of options in front: as it is, and with a start in mid-film or a stride."""
    made = media_seeds.films(plans)
    return [bytes([(0, 0, 1, 2)[index % 4]]) + data for index, data in enumerate(made)]


def _open_films(scratch: Path) -> Run:
    from arr_stream.sources import open_source

    path = scratch / "input.bin"

    def run(data: bytes) -> str:
        options, body = data[0], data[1:]
        path.write_bytes(body)
        with open_source(
            path,
            start_seconds=0.1 if options & 1 else None,
            stride=2 if options & 2 else 1,
            max_frames=_MOST_FRAMES,
            max_pixels=MOST_PIXELS,
        ) as source:
            return _watched(source)

    return run


def _watched(source: Source) -> str:
    """Take every frame of a source and hold it to what sources promise."""
    info, count, last = source.info, 0, -math.inf
    for count, frame in enumerate(source.frames(), start=1):
        height, width, colours = frame.rgb.shape
        if frame.index != count - 1 or colours != 3 or frame.rgb.dtype != "uint8":
            raise AssertionError(f"frame {count - 1} is number {frame.index} of shape {frame.rgb.shape}")
        if width * height > MOST_PIXELS:
            raise AssertionError(f"a frame of {width}x{height} pixels")
        if not math.isfinite(frame.pts_seconds) or frame.pts_seconds < last:
            raise AssertionError(f"time {frame.pts_seconds} after {last}")
        last = frame.pts_seconds
    for number in (info.average_fps, info.duration_seconds, info.pixel_aspect):
        if number is not None and not math.isfinite(number):
            raise AssertionError(f"{info} holds what is no number")
    info.name.encode("utf-8")
    return f"{info.codec} {min(count, 9)} frames"


def _picture_seeds() -> list[bytes]:
    made = media_seeds.pictures()
    return [bytes([index % 3]) + data for index, data in enumerate(made)] + [b"\x02" + made[-1]]


def _open_pictures(scratch: Path) -> Run:
    from arr_stream.relevance.query import load_example
    from arr_stream.sources import open_source

    folder = scratch / "pictures"
    folder.mkdir(exist_ok=True)
    good = media_seeds.pictures()[0]

    def run(data: bytes) -> str:
        body = data[1:]
        if data[0] % 3 == 2:
            path = scratch / "example.bin"
            path.write_bytes(body)
            rgb = load_example(path, max_pixels=MOST_PIXELS).rgb
            if rgb.ndim != 3 or rgb.shape[2] != 3 or rgb.dtype != "uint8":
                raise AssertionError(f"an example of shape {rgb.shape}")
            return "example"
        (folder / "1.png").write_bytes(body)
        if data[0] % 3 == 1:
            (folder / "2.png").write_bytes(good)
        else:
            (folder / "2.png").unlink(missing_ok=True)
        with open_source(folder, max_pixels=MOST_PIXELS) as source:
            return _watched(source)

    return run


_REFERRING: list[tuple[str, str]] = texts("references")
"""Files that name other files or addresses, with the ending that each lies under."""
_ENDINGS = (*dict.fromkeys(ending for ending, _ in _REFERRING), ".mov", ".mkv", "")


def _referring_seeds() -> list[bytes]:
    written = [bytes([_ENDINGS.index(ending)]) + data.encode() for ending, data in _REFERRING]
    return written + [bytes([_ENDINGS.index(".mov")]) + data for data in media_seeds.movie_with_references()]


def _open_referring(scratch: Path) -> Run:
    from arr_stream.sources import open_source

    def run(data: bytes) -> str:
        path = scratch / f"input{_ENDINGS[data[0] % len(_ENDINGS)]}"
        path.write_bytes(data[1:])
        try:
            with open_source(path, max_frames=_MOST_FRAMES, max_pixels=MOST_PIXELS) as source:
                return _watched(source)
        finally:
            path.unlink()

    return run


# FFmpeg allocates up to 1 GB for the index of samples that a damaged header states.
def _films_target(name: str, about: str, plans: tuple[media_seeds.Film, ...], share: float) -> Target:
    return Target(name, about, lambda: _films(plans), _open_films, "media", png_chunk, share, memory_mb=2048)


TARGETS = (
    _films_target("video-mp4", "MP4, MOV, 3GP, F4V", media_seeds.MP4, 2.5),
    _films_target("video-mkv", "Matroska, WebM", media_seeds.MATROSKA, 2.0),
    _films_target("video-streams", "MPEG-TS and -PS, raw streams, IVF, Y4M", media_seeds.STREAMS, 2.0),
    _films_target("video-others", "AVI, FLV, GIF, APNG, NUT, Ogg, ASF, ...", media_seeds.OTHERS, 2.5),
    Target(
        *("pictures", "PNG, JPEG, WebP, BMP, TIFF, PPM; examples", _picture_seeds, _open_pictures),
        *("media", png_chunk, 2.0),
    ),
    Target(
        *("references", "playlists and films that name other files", _referring_seeds, _open_referring),
        tokens="references",
    ),
)
