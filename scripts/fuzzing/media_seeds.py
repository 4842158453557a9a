"""Small valid media of many containers and codecs, and files that refer to others; all are made here, none is kept."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

import av
import numpy as np
from PIL import Image

SIZE_WH = (48, 32)
FRAMES = 6


@dataclass(frozen=True, slots=True)
class Film:
    """Encoding of one seed.

    Args:
        container: FFmpeg's name of the muxer.
        codec: And of the encoder.
        pix_fmt: Pixels that it takes.
        options, muxing: Of the encoder and of the muxer.
        audio: Codec of a tone beside it; empty for none.
        size_wh: Of its pictures.
        rotation: Degrees that a player must turn it by.
    """

    container: str
    codec: str
    pix_fmt: str = "yuv420p"
    options: Mapping[str, str] = field(default_factory=dict)
    muxing: Mapping[str, str] = field(default_factory=dict)
    audio: str = ""
    size_wh: tuple[int, int] = SIZE_WH
    rotation: int = 0


_X264 = {"preset": "ultrafast", "bf": "2", "threads": "1"}
# Pictures smaller than its largest block make this encoder write behind its own memory.
_X265 = {"preset": "ultrafast", "x265-params": "log-level=none:pools=none:frame-threads=1"}
_VPX = {"deadline": "realtime", "cpu-used": "8", "threads": "1"}

MP4 = (
    Film("mp4", "libx264", options=_X264, audio="aac"),
    Film("mp4", "libx264", options=_X264, muxing={"movflags": "frag_keyframe+empty_moov"}),
    Film("mp4", "libx265", options=_X265, size_wh=(64, 64), rotation=90),
    Film("mov", "prores_ks", "yuv422p10le"),
    Film("mov", "qtrle", "rgb24"),
    Film("mov", "mjpeg", "yuvj420p"),
    Film("mp4", "mpeg4", options={"bf": "1"}),
)
MATROSKA = (
    Film("matroska", "libx264", options=_X264, audio="flac"),
    Film("webm", "libvpx", options=_VPX),
    Film("webm", "libvpx-vp9", options=_VPX, audio="libopus"),
    Film("matroska", "ffv1"),
    Film("matroska", "mpeg2video", options={"bf": "1"}),
)
STREAMS = (
    Film("mpegts", "libx264", options=_X264, audio="mp2"),
    Film("mpegts", "libx265", options=_X265, size_wh=(64, 64)),
    Film("mpeg", "mpeg1video"),
    Film("h264", "libx264", options=_X264),
    Film("hevc", "libx265", options=_X265, size_wh=(64, 64)),
    Film("ivf", "libvpx", options=_VPX),
    Film("mjpeg", "mjpeg", "yuvj420p"),
    Film("yuv4mpegpipe", "wrapped_avframe"),
)
OTHERS = (
    Film("avi", "mpeg4", audio="mp2"),
    Film("avi", "mjpeg", "yuvj420p"),
    Film("avi", "msvideo1", "rgb555le"),
    Film("flv", "flv"),
    Film("gif", "gif", "rgb8"),
    Film("apng", "apng", "rgb24"),
    Film("nut", "ffvhuff"),
    Film("ogg", "vp8", options=_VPX),
    Film("asf", "wmv2"),
    Film("mxf", "mpeg2video"),
)


def film(plan: Film) -> bytes:
    """A coded film of a moving square."""
    out = io.BytesIO()
    with av.open(out, "w", format=plan.container, options=dict(plan.muxing)) as container:
        stream = container.add_stream(plan.codec, rate=25)
        stream.width, stream.height = plan.size_wh
        stream.pix_fmt = plan.pix_fmt
        stream.options = {"threads": "1", **plan.options}
        if plan.rotation:
            stream.set_display_rotation(-plan.rotation)
        tone = container.add_stream(plan.audio, rate=48_000, layout="mono") if plan.audio else None
        for index in range(FRAMES):
            picture = av.VideoFrame.from_ndarray(_picture(index, plan.size_wh), format="rgb24")
            picture.pts, picture.time_base = index, Fraction(1, 25)
            container.mux(stream.encode(picture.reformat(format=plan.pix_fmt)))
        container.mux(stream.encode(None))
        if tone is not None:
            _mux_silence(container, tone)
    return out.getvalue()


def films(plans: tuple[Film, ...]) -> list[bytes]:
    """Return the seeds that this FFmpeg can write; only the reader is tested."""
    made = []
    for plan in plans:
        try:
            made.append(film(plan))
        except (av.error.FFmpegError, ValueError):
            continue
    return made


def pictures() -> list[bytes]:
    """Pictures of every format that is read, in unlike ways of colour and packing."""
    picture = Image.fromarray(_picture(0, SIZE_WH))
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "turned"
    wanted: list[tuple[Image.Image, str, dict[str, object]]] = [
        (picture, "PNG", {}),
        (picture.convert("P"), "PNG", {"transparency": 3}),
        (Image.fromarray(_picture(0, SIZE_WH)[..., 0].astype(np.uint16) * 257), "PNG", {}),
        (picture.convert("RGBA"), "PNG", {"exif": exif}),
        (picture, "JPEG", {"exif": exif}),
        (picture, "JPEG", {"progressive": True, "quality": 60}),
        (picture.convert("CMYK"), "JPEG", {}),
        (picture.convert("L"), "JPEG", {"icc_profile": b"icc" * 50}),
        (picture, "WEBP", {"lossless": True}),
        (picture.convert("RGBA"), "WEBP", {"quality": 40, "exif": exif}),
        (picture, "BMP", {}),
        (picture, "TIFF", {"compression": "tiff_lzw"}),
        (picture, "TIFF", {"compression": "jpeg"}),
        (picture.convert("1"), "TIFF", {"compression": "group4"}),
        (picture, "TIFF", {"compression": "tiff_adobe_deflate", "tiffinfo": {270: "said"}}),
        (picture, "PPM", {}),
        (picture, "GIF", {"save_all": True, "append_images": [picture.rotate(90)]}),
    ]
    made = []
    for image, name, options in wanted:
        out = io.BytesIO()
        image.save(out, name, **options)  # type: ignore[arg-type]
        made.append(out.getvalue())
    return made


def movie_with_references() -> list[bytes]:
    """QuickTime films whose samples are said to lie in another file: an alias by path, and an address."""
    plain = film(Film("mov", "mjpeg", "yuvj420p"))
    old = b"\x00\x00\x00\x0curl \x00\x00\x00\x01"
    made = []
    for kind, body in (
        (b"url ", b"http://127.0.0.1:00000/canary.mp4\x00"),
        (b"url ", b"canary.mp4\x00"),
        (b"alis", _alias(b"canary.mp4")),
    ):
        # The entry grows: so do the boxes around it, and the film goes on behind as before.
        entry = (12 + len(body)).to_bytes(4, "big") + kind + b"\x00\x00\x00\x00" + body
        made.append(_grown(plain, old, entry))
    return made


def _alias(name: bytes) -> bytes:
    """Return a data reference as QuickTime writes it: a record of 150 bytes, then the path in tagged pieces."""
    head = bytearray(150)
    head[10] = 3
    head[50 : 51 + len(name)] = bytes([len(name)]) + name
    head[134:136] = (1).to_bytes(2, "big")
    head[136:138] = (1).to_bytes(2, "big")
    path = (2).to_bytes(2, "big") + len(name).to_bytes(2, "big") + name + b"\x00" * (len(name) % 2)
    return bytes(head) + path + (0xFFFF).to_bytes(2, "big") + b"\x00\x00"


def _grown(data: bytes, old: bytes, new: bytes) -> bytes:
    at = data.find(old)
    if at < 0:
        raise ValueError("this film has no box of the expected form")
    more, out = len(new) - len(old), bytearray(data)
    for name in (b"moov", b"trak", b"mdia", b"minf", b"dinf", b"dref"):
        place = data.rfind(name, 0, at) - 4
        size = int.from_bytes(data[place : place + 4], "big")
        out[place : place + 4] = (size + more).to_bytes(4, "big")
    return bytes(out[:at]) + new + bytes(out[at + len(old) :])


def _picture(index: int, size_wh: tuple[int, int]) -> np.ndarray[tuple[int, int, int], np.dtype[np.uint8]]:
    width, height = size_wh
    y, x = np.mgrid[:height, :width]
    rgb = np.stack([x * 4 % 256, y * 6 % 256, (x + y) * 3 % 256], axis=-1).astype(np.uint8)
    rgb[8:20, 4 + 3 * index : 16 + 3 * index] = (230, 30, 30)
    return rgb


def _mux_silence(container: av.container.OutputContainer, stream: av.AudioStream) -> None:
    context = stream.codec_context
    kind, size = context.format.name if context.format else "fltp", 1152
    resampler = av.AudioResampler(format=kind, layout="mono", rate=48_000, frame_size=context.frame_size or size)
    frame = av.AudioFrame.from_ndarray(np.zeros((1, 8 * size), np.float32), format="fltp", layout="mono")
    frame.sample_rate, frame.pts, frame.time_base = 48_000, 0, Fraction(1, 48_000)
    for piece in resampler.resample(frame):
        container.mux(stream.encode(piece))
    container.mux(stream.encode(None))
