"""What every source promises, over all of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from arr_stream.errors import InvalidSetting, NothingInRange, SourceTooLarge
from arr_stream.sources import Source, open_source
from tests.media import moving_frames, write_gif, write_images, write_video

COUNT = 12
FRAMES = moving_frames(COUNT)


def _turned(path: Path) -> Path:
    return write_video(path, [np.rot90(frame).copy() for frame in FRAMES], rotation=90)


def _glob(folder: Path) -> Path:
    write_images(folder, FRAMES, suffix=".jpg")
    return folder / "frame*.jpg"


MAKERS: dict[str, tuple[Callable[[Path], Path], float]] = {
    "mp4": (lambda folder: write_video(folder / "a.mp4", FRAMES, audio=True), 30),
    "mkv": (lambda folder: write_video(folder / "a.mkv", FRAMES), 30),
    "webm-vp8": (lambda folder: write_video(folder / "a.webm", FRAMES, codec="libvpx"), 30),
    "webm-vp9": (lambda folder: write_video(folder / "a.webm", FRAMES, codec="libvpx-vp9"), 30),
    "avi-mpeg4": (lambda folder: write_video(folder / "a.avi", FRAMES, codec="mpeg4", options={"qmax": "4"}), 30),
    "hevc": (
        lambda folder: write_video(
            folder / "a.mp4", FRAMES, codec="libx265", options={"x265-params": "log-level=none"}
        ),
        30,
    ),
    "ts": (lambda folder: write_video(folder / "a.ts", FRAMES), 30),
    "mov-turned": (lambda folder: _turned(folder / "a.mov"), 30),
    "10-bit": (lambda folder: write_video(folder / "a.mp4", FRAMES, pix_fmt="yuv420p10le"), 30),
    "gif": (lambda folder: write_gif(folder / "a.gif", FRAMES), 10),
    "folder": (lambda folder: write_images(folder / "pictures", FRAMES), 30),
    "glob": (lambda folder: _glob(folder / "pictures"), 30),
}


class Made(NamedTuple):
    """A source that is there, and how to open it."""

    spec: str
    fps: float

    def open(self, **wish: Any) -> Source:
        return open_source(self.spec, **wish)


@pytest.fixture(scope="module", params=MAKERS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    make, fps = MAKERS[request.param]
    return Made(str(make(tmp_path_factory.mktemp(request.param))), fps)


def test_frames_are_the_pictures_in_order(made: Made) -> None:
    with made.open() as source:
        frames = list(source.frames())
    assert [frame.index for frame in frames] == list(range(COUNT))
    np.testing.assert_allclose([frame.pts_seconds for frame in frames], np.arange(COUNT) / made.fps, atol=1e-3)
    for frame, original in zip(frames, FRAMES, strict=True):
        assert frame.rgb.dtype == np.uint8 and frame.rgb.flags.c_contiguous
        assert frame.size_wh == (96, 64)
        assert np.abs(frame.rgb.astype(int) - original).mean() < 8
    errors = [[np.abs(frame.rgb.astype(int) - other).mean() for other in FRAMES] for frame in frames]
    assert list(np.argmin(errors, axis=1)) == list(range(COUNT))
    assert source.stats.frames == COUNT


def test_info_is_there_before_the_frames(made: Made) -> None:
    with made.open() as source:
        info = source.info
    assert info.size_wh == (96, 64)
    assert info.name == made.spec
    assert info.pixel_aspect == 1.0
    assert info.average_fps == pytest.approx(made.fps, rel=0.02)
    assert info.duration_seconds == pytest.approx(COUNT / made.fps, rel=0.1)
    assert info.num_frames is not None and abs(info.num_frames - COUNT) <= 1


def test_start_end_stride_and_limit_choose_among_the_same_frames(made: Made) -> None:
    with made.open() as source:
        whole = list(source.frames())
    start, end = 3 / made.fps - 0.001, 11 / made.fps - 0.001
    with made.open(start_seconds=start, end_seconds=end, stride=3, max_frames=2) as source:
        part = list(source.frames())
        assert source.info.num_frames == 2
    assert [frame.index for frame in part] == [0, 1]
    for frame, same in zip(part, (whole[3], whole[6]), strict=True):
        assert frame.pts_seconds == pytest.approx(same.pts_seconds)
        np.testing.assert_array_equal(frame.rgb, same.rgb)
    with made.open(start_seconds=start, end_seconds=end) as source:
        assert len(list(source.frames())) == 8


def test_nothing_in_range_names_the_length(made: Made) -> None:
    with pytest.raises(NothingInRange, match="no frame at or after 100 s") as caught:
        made.open(start_seconds=100)
    length = float(str(caught.value).split("the source is ")[1].split(" s")[0])
    assert length == pytest.approx(COUNT / made.fps, rel=0.1)
    with pytest.raises(NothingInRange):
        made.open(start_seconds=2, end_seconds=1)


@pytest.mark.parametrize(
    "wrong", [{"stride": 0}, {"max_frames": 0}, {"start_seconds": -1}, {"end_seconds": float("nan")}]
)
def test_values_that_mean_nothing_are_refused(made: Made, wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidSetting):
        made.open(**wrong)  # type: ignore[arg-type]


def test_too_many_pixels_are_refused(made: Made) -> None:
    with pytest.raises(SourceTooLarge, match="at most 1000"):
        made.open(max_pixels=1000)
    with made.open(max_pixels=96 * 64) as source:
        assert len(list(source.frames())) == COUNT


def test_one_pass(made: Made) -> None:
    with made.open() as source:
        assert len(list(source.frames())) == COUNT
        with pytest.raises(RuntimeError, match="taken already"):
            source.frames()


def _open_files() -> set[str]:
    links = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            links.add(str(descriptor.readlink()))
        except OSError:
            continue
    return links


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="open files are counted through /proc")  # noqa: PTH112
@pytest.mark.parametrize("end", ["close", "exhausted", "generator", "with"])
def test_nothing_stays_open(made: Made, end: str) -> None:
    folder = str(Path(made.spec).parent)

    def read() -> Source:
        source = made.open()
        if end == "close":
            source.close()
            source.close()
        elif end == "exhausted":
            list(source.frames())
        elif end == "generator":
            frames = source.frames()
            next(frames)
            frames.close()  # type: ignore[attr-defined]
        else:
            with source:
                next(source.frames())
        return source

    kept = read()
    assert kept.stats.frames <= COUNT
    assert not [name for name in _open_files() if name.startswith(folder)]
