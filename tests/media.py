"""Makers of small real media for the tests."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from av.container import OutputContainer
from av.video.stream import VideoStream
from PIL import Image

from arr_stream.types import ByteArray

_TICK = Fraction(1, 90_000)


def moving_frames(
    count: int, size_wh: tuple[int, int] = (96, 64), *, seed: int = 0, step_px: int = 2
) -> list[ByteArray]:
    """A red square that goes right over a smooth random background; its column tells the frame's number."""
    width, height = size_wh
    rng = np.random.default_rng(seed)
    coarse = rng.integers(40, 200, (max(1, height // 8), max(1, width // 8), 3), dtype=np.uint8)
    background = np.asarray(Image.fromarray(coarse).resize(size_wh, Image.Resampling.BICUBIC))
    side = max(1, min(size_wh) // 4)
    frames = []
    for index in range(count):
        frame = background.copy()
        left = (index * step_px) % max(1, width - side)
        top = max(0, (height - side) // 2)
        frame[top : top + side, left : left + side] = (230, 30, 30)
        frames.append(frame)
    return frames


def quadrants(size_wh: tuple[int, int]) -> ByteArray:
    """Red top left, green top right, blue bottom left, white bottom right: every turn and mirror looks different."""
    width, height = size_wh
    frame = np.empty((height, width, 3), np.uint8)
    frame[: height // 2, : width // 2] = (220, 30, 30)
    frame[: height // 2, width // 2 :] = (30, 200, 30)
    frame[height // 2 :, : width // 2] = (30, 30, 220)
    frame[height // 2 :, width // 2 :] = (240, 240, 240)
    return frame


def write_video(
    path: Path,
    frames: Sequence[ByteArray],
    *,
    fps: float | Fraction = 30,
    codec: str = "libx264",
    pix_fmt: str = "yuv420p",
    pts: Sequence[float] | None = None,
    audio: bool = False,
    rotation: int = 0,
    mirror: bool = False,
    options: Mapping[str, str] | None = None,
    container_options: Mapping[str, str] | None = None,
    container_format: str | None = None,
    pixel_aspect: Fraction | None = None,
    more_videos: Sequence[Sequence[ByteArray]] = (),
) -> Path:
    """Write a real media file; the container follows from the name unless given.

    Args:
        path: Where to.
        frames: Pictures `[H, W, 3]`, uint8, all of one size, as they are stored.
        fps: Frames a second.
        codec, pix_fmt, options: As FFmpeg calls them.
        pts: Time of each frame in seconds, for uneven steps; None for even ones.
        audio: Add a 440 Hz tone of the same length.
        rotation: Clockwise degrees by which a player must turn what is stored.
        mirror: A player must also mirror left and right, after turning.
        container_options, container_format: For the muxer, such as `{"movflags": "faststart"}`.
        pixel_aspect: Width of a pixel over its height.
        more_videos: Frames of further video streams.
    """
    rate = Fraction(fps).limit_denominator(100_000)
    with av.open(str(path), "w", format=container_format, options=dict(container_options or {})) as container:
        streams = [
            _add_video(container, each, rate, codec=codec, pix_fmt=pix_fmt, options=options)
            for each in (frames, *more_videos)
        ]
        if rotation or mirror:
            streams[0].set_display_rotation(-rotation, hflip=mirror)
        if pixel_aspect is not None:
            streams[0].codec_context.sample_aspect_ratio = pixel_aspect
        if pts is not None:
            streams[0].codec_context.time_base = _TICK
        tone = container.add_stream("aac", rate=44_100, layout="mono") if audio else None
        for stream, pictures in zip(streams, (frames, *more_videos), strict=True):
            times = pts if stream is streams[0] else None
            _encode(container, stream, pictures, times)
        if tone is not None:
            _encode_tone(container, tone, len(frames) / float(rate))
    return path


def _add_video(
    container: OutputContainer,
    frames: Sequence[ByteArray],
    rate: Fraction,
    *,
    codec: str,
    pix_fmt: str,
    options: Mapping[str, str] | None,
) -> VideoStream:
    stream = container.add_stream(codec, rate=rate)
    assert isinstance(stream, VideoStream)
    stream.height, stream.width = frames[0].shape[:2]
    stream.pix_fmt = pix_fmt
    stream.options = dict(options or ({"crf": "12", "preset": "ultrafast"} if codec == "libx264" else {}))
    return stream


def _encode(
    container: OutputContainer, stream: VideoStream, frames: Sequence[ByteArray], pts: Sequence[float] | None
) -> None:
    for index, pixels in enumerate(frames):
        picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")
        if pts is not None:
            picture.pts, picture.time_base = round(pts[index] / _TICK), _TICK
        else:
            picture.pts, picture.time_base = index, 1 / Fraction(stream.codec_context.framerate)
        container.mux(stream.encode(picture))
    container.mux(stream.encode(None))


def _encode_tone(container: OutputContainer, stream: av.AudioStream, seconds: float) -> None:
    samples = np.sin(2 * np.pi * 440 * np.arange(round(seconds * 44_100)) / 44_100).astype(np.float32) * 0.3
    for start in range(0, len(samples), 1024):
        block = av.AudioFrame.from_ndarray(samples[None, start : start + 1024], format="fltp", layout="mono")
        block.sample_rate, block.pts, block.time_base = 44_100, start, Fraction(1, 44_100)
        container.mux(stream.encode(block))
    container.mux(stream.encode(None))


def write_audio(path: Path, seconds: float = 0.5) -> Path:
    """A file with sound and no picture."""
    with av.open(str(path), "w") as container:
        _encode_tone(container, container.add_stream("aac", rate=44_100, layout="mono"), seconds)
    return path


def write_gif(path: Path, frames: Sequence[ByteArray], *, step_ms: int = 100) -> Path:
    """An animated GIF."""
    first, *rest = [Image.fromarray(frame) for frame in frames]
    first.save(path, save_all=True, append_images=rest, duration=step_ms, loop=0)
    return path


def write_images(folder: Path, frames: Sequence[ByteArray], *, suffix: str = ".png", stem: str = "frame") -> Path:
    """A folder of pictures frame1, frame2, ..., frame10: names whose plain order is wrong."""
    folder.mkdir(parents=True, exist_ok=True)
    for index, frame in enumerate(frames):
        Image.fromarray(frame).save(folder / f"{stem}{index + 1}{suffix}")
    return folder


def data_folder(*parts: str) -> Path:
    """A folder of the evaluation data; skips the test where `ARR_STREAM_DATA` does not name it."""
    root = os.environ.get("ARR_STREAM_DATA")
    if not root:
        pytest.skip("ARR_STREAM_DATA is not set: it names the folder with the evaluation data")
    folder = Path(root, *parts)
    if not folder.exists():
        pytest.skip(f"ARR_STREAM_DATA holds no {'/'.join(parts)}")
    return folder
