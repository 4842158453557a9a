"""Fuzzing of what decodes: films, pictures, and files that refer to others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from fuzzing import media_seeds
from fuzzing.mutate import PLAIN, TEXT, Mutation, boxes, inserted, png_sums, words
from fuzzing.target import Run, Target

MOST_PIXELS = 1_000_000
_MOST_FRAMES = 40

_NAMES = (
    b"moov trak mdia minf stbl stsd stts stsc stsz stco co64 ctts stss elst edts dref url alis rsrc avcC hvcC "
    b"colr pasp tkhd mvhd mdhd hdlr meta ilst udta free wide mdat moof traf trun tfhd mvex trex sidx ftyp cmov "
    b"dcom cmvd avc1 hvc1 mp4v jpeg png rle raw ap4h svq1 cvid RIFF LIST hdrl avih strl strh strf strn movi "
    b"idx1 indx JUNK rec 00dc 00db MJPG XVID H264 HFYU MSVC IHDR PLTE IDAT IEND acTL fcTL fdAT iCCP eXIf tRNS "
    b"VP8 VP8L VP8X ANIM ANMF ALPH FLV DKIF"
)
TOKENS = (
    *(name.ljust(4)[:4] for name in _NAMES.split()),
    b"\x1a\x45\xdf\xa3",
    b"\x18\x53\x80\x67",
    b"\x1f\x43\xb6\x75",
    b"\x16\x54\xae\x6b",
    b"\x01\xff\xff\xff\xff\xff\xff\xff",
    b"\x00\x00\x01",
    b"\x00\x00\x00\x01\x67",
    b"\x00\x00\x01\xb3",
    b"\x00\x00\x01\xba",
    b"\x00\x00\x01\xe0",
    b"\x47\x40\x00\x10",
    b"\xff\xd8\xff",
    b"\xff\xda",
    b"\xff\xc0",
    b"GIF89a",
    b"\x21\xff\x0bNETSCAPE2.0",
    b"OggS",
    b"\x89PNG\r\n\x1a\n",
    b"II*\x00",
    b"canary.mp4",
    b"http://127.0.0.1:00000/canary.mp4",
    b"file:canary.ts",
)
_BINARY = (*PLAIN, boxes, boxes, boxes, inserted(TOKENS))


def _films(plans: tuple[media_seeds.Film, ...]) -> list[bytes]:
    """Each with its byte of options in front: as it is, and with motion vectors or a start in mid-film."""
    made = media_seeds.films(plans)
    return [bytes([(0, 0, 1, 2, 4)[index % 5]]) + data for index, data in enumerate(made)]


def _open_films(scratch: Path) -> Run:
    from arr_stream.sources import open_source

    path = scratch / "input.bin"

    def run(data: bytes) -> str:
        options, body = data[0], data[1:]
        path.write_bytes(body)
        with open_source(
            path,
            motion_vectors=bool(options & 1),
            start_seconds=0.1 if options & 2 else None,
            stride=2 if options & 4 else 1,
            max_frames=_MOST_FRAMES,
            max_pixels=MOST_PIXELS,
        ) as source:
            return _watched(source)

    return run


def _watched(source: object) -> str:
    """Take every frame of a source and hold it to what sources promise."""
    from arr_stream.sources import Source

    assert hasattr(source, "frames")
    real: Source = source  # type: ignore[assignment]
    info, count, last = real.info, 0, -math.inf
    for count, frame in enumerate(real.frames(), start=1):
        height, width, colours = frame.rgb.shape
        if frame.index != count - 1 or colours != 3 or frame.rgb.dtype != "uint8":
            raise AssertionError(f"frame {count - 1} is number {frame.index} of shape {frame.rgb.shape}")
        if width * height > MOST_PIXELS:
            raise AssertionError(f"a frame of {width}x{height} pixels")
        if not math.isfinite(frame.pts_seconds) or frame.pts_seconds < last:
            raise AssertionError(f"time {frame.pts_seconds} after {last}")
        last = frame.pts_seconds
    for number in (info.average_fps, info.duration_seconds, info.pixel_aspect, info.start_offset_seconds):
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


_ENDINGS = (*tuple(dict.fromkeys(ending for ending, _ in media_seeds.REFERRING)), ".mov", ".mkv", "")


def _referring_seeds() -> list[bytes]:
    texts = [bytes([_ENDINGS.index(ending)]) + data for ending, data in media_seeds.REFERRING]
    return texts + [bytes([_ENDINGS.index(".mov")]) + data for data in media_seeds.movie_with_references()]


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


_ADDRESSES = (
    b"canary.mp4",
    b"canary.ts",
    b"file:canary.mp4",
    b"http://127.0.0.1:00000/x.ts",
    b"tcp://127.0.0.1:00000",
    b"concat:canary.ts",
    b"crypto:canary.ts",
    b"data:video/mp4;base64,AAAA",
    b"async:canary.ts",
    b"cache:http://127.0.0.1:00000/",
    b"fd:0",
    b"pipe:0",
    b"subfile,,start,0,end,9,,:canary.ts",
    b"#EXTM3U\n",
    b'#EXT-X-MAP:URI="canary.mp4"\n',
    b"ffconcat version 1.0\n",
    b"udp://127.0.0.1:00000",
    b"tls://127.0.0.1:00000",
    b"rtmp://127.0.0.1:00000/a",
    b"gopher://127.0.0.1:00000/_",
    b"ftp://127.0.0.1:00000/a",
    b"/dev/zero",
    b"v=0\r\n",
)


def _target(
    name: str, about: str, plans: tuple[media_seeds.Film, ...], share: float, mutations: Sequence[Mutation] = _BINARY
) -> Target:
    return Target(name, about, lambda: _films(plans), _open_films, mutations, share, memory_mb=256)


TARGETS = (
    _target("video-mp4", "MP4, MOV, 3GP, F4V", media_seeds.MP4, 2.5),
    _target("video-mkv", "Matroska, WebM", media_seeds.MATROSKA, 2.0),
    _target("video-streams", "MPEG-TS and -PS, raw streams, IVF, Y4M", media_seeds.STREAMS, 2.0),
    _target("video-others", "AVI, FLV, GIF, APNG, NUT, Ogg, ASF, ...", media_seeds.OTHERS, 2.5, (*_BINARY, png_sums)),
    Target(
        "pictures",
        "PNG, JPEG, WebP, BMP, TIFF, PPM; examples",
        _picture_seeds,
        _open_pictures,
        (*_BINARY, png_sums, png_sums),
        2.0,
        traced=("arr_stream", "PIL"),
    ),
    Target(
        "references",
        "playlists and films that name other files",
        _referring_seeds,
        _open_referring,
        (*TEXT, inserted(_ADDRESSES), inserted(_ADDRESSES), words, boxes),
        1.0,
    ),
)
