"""Media files: what they say about themselves, and what is wrong with them."""

from __future__ import annotations

import io
import shutil
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

from arr_stream.errors import NoFrames, NotAMediaFile, NoVideoStream, SourceDamaged
from arr_stream.sources import open_source
from arr_stream.sources.colour import rgb_of
from arr_stream.types import ByteArray, Frame
from tests.media import moving_frames, quadrants, write_video


def read(spec: str | Path, **wish: object) -> list[Frame]:
    with open_source(spec, **wish) as source:  # type: ignore[arg-type]
        return list(source.frames())


def read_until_damage(spec: Path, *, stop: bool = False) -> tuple[list[Frame], SourceDamaged]:
    frames = []
    with open_source(spec, stop_at_damage=stop) as source, pytest.raises(SourceDamaged) as caught:
        for frame in source.frames():
            frames.append(frame)
    return frames, caught.value


def packets_of(path: Path) -> list[tuple[int, int]]:
    """Where each packet of the video begins in the file, and its size."""
    with av.open(str(path)) as container:
        return [(packet.pos or 0, packet.size) for packet in container.demux(video=0) if packet.size]


@pytest.mark.parametrize("mirror", [False, True])
@pytest.mark.parametrize("rotation", [0, 90, 180, 270])
def test_all_eight_ways_to_lie_come_out_upright(tmp_path: Path, rotation: int, mirror: bool) -> None:
    stored = quadrants((64, 32))
    path = write_video(tmp_path / "a.mov", [stored] * 2, rotation=rotation, mirror=mirror)
    upright = np.rot90(stored, -rotation // 90)
    if mirror:
        upright = upright[:, ::-1]
    with open_source(path) as source:
        frames = list(source.frames())
    assert source.info.size_wh == (upright.shape[1], upright.shape[0])
    assert np.abs(frames[0].rgb.astype(int) - upright).mean() < 6


def test_pixel_aspect_turns_with_the_picture(tmp_path: Path) -> None:
    frames = moving_frames(2)
    flat = write_video(tmp_path / "a.mp4", frames, pixel_aspect=Fraction(4, 3))
    turned = write_video(tmp_path / "b.mp4", frames, pixel_aspect=Fraction(4, 3), rotation=90)
    with open_source(flat) as one, open_source(turned) as other:
        assert one.info.pixel_aspect == pytest.approx(4 / 3)
        assert other.info.pixel_aspect == pytest.approx(3 / 4)


@pytest.mark.parametrize("size_wh", [(1, 1), (8, 8), (33, 17), (5, 64), (314, 273)])
def test_odd_sizes(tmp_path: Path, size_wh: tuple[int, int]) -> None:
    path = write_video(tmp_path / "a.mp4", moving_frames(3, size_wh), pix_fmt="yuv444p")
    frames = read(path)
    assert [frame.size_wh for frame in frames] == [size_wh] * 3
    assert all(frame.rgb.flags.c_contiguous for frame in frames)


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("matrix", ["bt709", "smpte170m"])
def test_colour_matrix_and_range_are_respected(tmp_path: Path, matrix: str, full: bool) -> None:
    luma, blue, red = 126, 90, 200
    options = {"crf": "0", "x264-params": f"colormatrix={matrix}:fullrange={'on' if full else 'off'}"}
    path = tmp_path / "a.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=10)
        stream.width, stream.height, stream.pix_fmt, stream.options = 32, 32, "yuv444p", options
        picture = av.VideoFrame.from_ndarray(
            np.full((3, 32, 32), 0, np.uint8) + np.array([luma, blue, red], np.uint8)[:, None, None], format="yuv444p"
        )
        container.mux(stream.encode(picture))
        container.mux(stream.encode(None))
    weight_red, weight_blue = (0.2126, 0.0722) if matrix == "bt709" else (0.299, 0.114)
    y = luma / 255 if full else (luma - 16) / 219
    u, v = ((each - 128) / (255 if full else 224) for each in (blue, red))
    r, b = y + 2 * (1 - weight_red) * v, y + 2 * (1 - weight_blue) * u
    g = (y - weight_red * r - weight_blue * b) / (1 - weight_red - weight_blue)
    expected = np.clip(np.array([r, g, b]) * 255, 0, 255)
    np.testing.assert_allclose(read(path)[0].rgb[16, 16], expected, atol=2)


def test_interleaved_chroma_gives_the_colours_of_planes(tmp_path: Path) -> None:
    with av.open(write_video(tmp_path / "a.mp4", moving_frames(2))) as container:
        picture = next(container.decode(video=0))
    assert picture.format.name == "yuv420p"
    assert np.array_equal(rgb_of(picture.reformat(format="nv12")), rgb_of(picture))


@pytest.mark.parametrize("suffix", [".mp4", ".mkv"])
def test_uneven_steps_keep_their_times(tmp_path: Path, suffix: str) -> None:
    times = [0.0, 0.04, 0.08, 0.12, 0.5, 0.54, 1.2, 1.24]
    path = write_video(tmp_path / f"a{suffix}", moving_frames(8), fps=25, pts=times)
    with open_source(path) as source:
        np.testing.assert_allclose([frame.pts_seconds for frame in source.frames()], times, atol=2e-3)
    assert source.stats.backward_jumps == 0


@pytest.mark.parametrize("start", [0.0, 2.0])
def test_a_late_start_is_zero(tmp_path: Path, start: float) -> None:
    times = np.arange(30) / 10
    path = write_video(tmp_path / "a.mkv", moving_frames(30), pts=list(5 + times), options={"g": "5"})
    with open_source(path, start_seconds=start) as source:
        read_seconds = [frame.pts_seconds for frame in source.frames()]
    np.testing.assert_allclose(read_seconds, times[times >= start], atol=2e-3)


@pytest.mark.parametrize("start", [0.5, 1.0, 1.93])
def test_seeking_gives_the_same_pictures_as_reading_from_the_beginning(tmp_path: Path, start: float) -> None:
    path = write_video(tmp_path / "a.mp4", moving_frames(60), options={"g": "7", "bf": "2", "crf": "20"})
    whole = [frame for frame in read(path) if frame.pts_seconds >= start - 1e-6]
    part = read(path, start_seconds=start)
    assert [frame.pts_seconds for frame in part] == [frame.pts_seconds for frame in whole]
    for one, other in zip(part, whole, strict=True):
        np.testing.assert_array_equal(one.rgb, other.rgb)


def test_several_video_streams(tmp_path: Path) -> None:
    other = moving_frames(5, (64, 64), seed=3)
    path = write_video(tmp_path / "a.mkv", moving_frames(5), more_videos=[other], audio=True)
    with open_source(path) as first, open_source(path, video_stream=1) as second:
        assert (first.info.size_wh, second.info.size_wh) == ((96, 64), (64, 64))
        assert len(list(second.frames())) == 5
    with pytest.raises(NoVideoStream, match="0 to 1 exist"):
        open_source(path, video_stream=2)


def test_cover_art_is_not_video(tmp_path: Path) -> None:
    path, cover = tmp_path / "a.mka", io.BytesIO()
    Image.fromarray(quadrants((32, 32))).save(cover, "PNG")
    with av.open(str(path), "w", format="matroska") as container:
        container.add_attachment("cover.png", "image/png", cover.getvalue())
        tone = container.add_stream("aac", rate=44_100, layout="mono")
        block = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        block.sample_rate = 44_100
        container.mux(tone.encode(block))
        container.mux(tone.encode(None))
    with av.open(str(path)) as container:
        assert container.streams.video, "the file must hold a picture for this test to mean anything"
    with pytest.raises(NoVideoStream):
        open_source(path)


@pytest.mark.parametrize("stop", [False, True])
def test_damage_in_the_middle_is_skipped_or_ends_the_file(tmp_path: Path, stop: bool) -> None:
    path = write_video(tmp_path / "a.mp4", moving_frames(40), options={"bf": "0", "g": "30", "slices": "1"})
    originals = read(path)
    position, size = packets_of(path)[20]
    content = bytearray(path.read_bytes())
    content[position : position + size] = b"\xff" * size
    path.write_bytes(content)
    frames, error = read_until_damage(path, stop=stop)
    assert error.exit_code == 15
    assert (18 <= len(frames) <= 20) if stop else len(frames) == 39
    missing = {frame.pts_seconds for frame in originals} - {frame.pts_seconds for frame in frames}
    assert stop or missing == {originals[20].pts_seconds}
    by_time = {frame.pts_seconds: frame for frame in originals}
    for frame in frames:
        # Up to the next keyframe, pictures refer to the lost one.
        assert frame.damaged == (20 < by_time[frame.pts_seconds].index < 30)
        if not frame.damaged:
            np.testing.assert_array_equal(frame.rgb, by_time[frame.pts_seconds].rgb)


def test_a_wrong_header_count_is_not_damage(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.avi", moving_frames(10), codec="mpeg4")
    content = bytearray(path.read_bytes())
    # dwTotalFrames of the main header, and dwLength of the stream's.
    for mark, offset in ((b"avih", 8 + 16), (b"strh", 8 + 32)):
        at = content.index(mark) + offset
        content[at : at + 4] = (500).to_bytes(4, "little")
    path.write_bytes(content)
    assert len(read(path)) == 10


@pytest.mark.parametrize("name", ["a.mp4", "readme.txt"])
@pytest.mark.parametrize("content", [b"", b"not a video at all\n" * 50, bytes(5000), b"\x89PNG\r\n\x1a\n" + bytes(20)])
def test_garbage_and_text_are_not_media(tmp_path: Path, content: bytes, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises((NotAMediaFile, NoFrames)):
        open_source(path)


@pytest.mark.parametrize("name", ["-dash-.mp4", "http:a.mp4", "a%03d.mp4", "clip[1].mp4", "что.mp4", "a b.mp4"])
def test_names_that_mean_something_elsewhere(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write_video(tmp_path / "plain.mp4", moving_frames(3))
    shutil.move(tmp_path / "plain.mp4", tmp_path / name)
    monkeypatch.chdir(tmp_path)
    assert len(read(name)) == 3


TRANSPARENT: dict[str, tuple[str, str, dict[str, str]]] = {
    # Codec, how it stores pictures, and options.
    "png.mov": ("png", "rgba", {}),
    "prores.mov": ("prores_ks", "yuva444p10le", {"profile": "4444"}),
    "animation.mov": ("qtrle", "argb", {}),
    "a.apng": ("apng", "rgba", {}),
}


def transparent_scene(hidden: tuple[int, int, int] = (220, 20, 30)) -> ByteArray:
    """Clear on the left, half-clear green at its foot, opaque blue on the right; clear pixels have a hidden colour."""
    scene = np.zeros((64, 96, 4), np.uint8)
    scene[:, :48, :3] = hidden
    scene[:, 48:] = (20, 60, 200, 255)
    scene[40:, :48] = (0, 200, 0, 128)
    return scene


@pytest.mark.parametrize("name", TRANSPARENT)
def test_transparency_is_laid_on_white_as_in_pictures(tmp_path: Path, name: str) -> None:
    codec, pix_fmt, options = TRANSPARENT[name]
    path, scene = tmp_path / name, transparent_scene()
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream(codec, rate=10, options=options)
        stream.width, stream.height, stream.pix_fmt = 96, 64, pix_fmt
        for index in range(12):
            picture = av.VideoFrame.from_ndarray(scene, format="rgba")
            picture.pts = index
            container.mux(stream.encode(picture))
        container.mux(stream.encode(None))
    Image.fromarray(scene).save(tmp_path / "a.png")
    expected = read(tmp_path / "a.png")[0].rgb.astype(int)
    assert expected[10, 10].tolist() == [255, 255, 255]
    whole, part = read(path), read(path, start_seconds=0.8)
    assert [len(whole), len(part)] == [12, 4]
    for frame in (*whole, *part):
        # Away from the borders, which codecs blur.
        for rows, columns in (
            (slice(6, 34), slice(6, 42)),
            (slice(46, 60), slice(6, 42)),
            (slice(6, 60), slice(54, 90)),
        ):
            assert np.abs(frame.rgb[rows, columns].astype(int) - expected[rows, columns]).max() <= 8
