"""Live sources without servers: what is meant by a spec, times, test pictures, files at their own speed, cameras."""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import av.device
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arr_stream.config import Settings
from arr_stream.errors import (
    BackendUnavailable,
    CameraUnavailable,
    InvalidSetting,
    NotAMediaFile,
    SourceError,
    SourceNotFound,
    SourceTooLarge,
)
from arr_stream.sources.clock import ArrivalClock
from arr_stream.sources.live import SourceState, is_live_spec, list_cameras, open_live
from arr_stream.sources.live.camera import camera_options, find_camera
from arr_stream.sources.live.playing import checked_graph
from arr_stream.sources.live.spec import parse_spec
from tests.media import moving_frames, write_video


@pytest.mark.parametrize(
    ("spec", "family", "target"),
    [
        ("rtsp://me:pw@host/a", "network", "rtsp://me:pw@host/a"),
        ("HTTP://host/a.m3u8", "network", "HTTP://host/a.m3u8"),
        ("udp://@:1234", "network", "udp://@:1234"),
        ("0", "camera", "0"),
        ("/dev/video2", "camera", "/dev/video2"),
        ("camera:HD Pro", "camera", "HD Pro"),
        ("lavfi:testsrc2=size=64x48", "lavfi", "testsrc2=size=64x48"),
        ("loop:a.mp4", "loop", "a.mp4"),
        ("a.mp4", "file", "a.mp4"),
    ],
)
def test_what_is_meant(spec: str, family: str, target: str) -> None:
    found = parse_spec(spec)
    assert (found.family, found.target) == (family, target)
    assert is_live_spec(spec) == (family != "file")
    assert "me:pw" not in found.name


@pytest.mark.parametrize("spec", ["", " ", "camera:", "lavfi:", "loop:", "a\nb", "gopher://host/a", "http://[bad/a"])
def test_specs_that_mean_nothing(spec: str) -> None:
    with pytest.raises(SourceError) as caught:
        open_live(spec, Settings())
    assert "\n" not in str(caught.value)


@given(st.lists(st.tuples(st.one_of(st.none(), st.floats(-1e6, 1e6)), st.floats(0, 1e3), st.booleans())))
def test_time_never_goes_back(steps: list[tuple[float | None, float, bool]]) -> None:
    clock, now, last = ArrivalClock(), 100.0, 0.0
    for number, (own, step, restarted) in enumerate(steps):
        now += step
        if restarted:
            clock.restart()
        placed = clock.place(own, now)
        assert placed >= last and (number > 0 or placed == 0.0)
        last = placed
    assert last <= 1e3 * len(steps) + 1e6 * 2


def test_own_times_are_kept_through_uneven_arrival() -> None:
    clock = ArrivalClock()
    late = [0.3 if 10 <= number < 14 else 0.0 for number in range(30)]
    placed = [clock.place(7 + number / 30, 50 + number / 30 + late[number]) for number in range(30)]
    assert placed == pytest.approx([number / 30 for number in range(30)])


@pytest.mark.parametrize("jump_seconds", [1000.0, -1000.0])
def test_a_jump_of_the_sources_clock_is_put_right(jump_seconds: float) -> None:
    clock = ArrivalClock()
    for number in range(10):
        clock.place(number / 10, number / 10)
    after = [clock.place(jump_seconds + number / 10, number / 10) for number in range(10, 20)]
    assert after == pytest.approx([number / 10 for number in range(10, 20)])


@pytest.mark.parametrize(
    "graph",
    [
        "movie=/etc/passwd",
        "testsrc2,movie=a.mp4",
        "testsrc2[a];movie=b.mp4[b];[a][b]overlay",
        "amovie=a.wav",
        "testsrc2,drawtext=textfile=/etc/passwd",
        "testsrc2,subtitles=a.srt",
        "nullsrc,lut3d=a.cube",
        "life=filename=/etc/passwd",
        "sws_flags=bilinear;movie=a",
        "'movie'=a",
        "mo\\vie=a",
        "hflip",
        "testsrc2,hflip",
        "color=/c=a.txt",
        "testsrc2,scale=100000:100000",
        "sine",
    ],
)
def test_graphs_that_reach_further_are_refused(graph: str) -> None:
    with pytest.raises(NotAMediaFile):
        open_live(f"lavfi:{graph}", Settings())


def test_graphs_are_bounded_in_size() -> None:
    small = Settings().with_values({"source.max_pixels": 64 * 48})
    with pytest.raises(SourceTooLarge):
        checked_graph("testsrc2=size=65x48", "a", 64 * 48)
    with pytest.raises(SourceTooLarge):
        open_live("lavfi:testsrc2=size=hd720", small)
    with open_live("lavfi:testsrc2=size=64x48", small) as source:
        assert source.info.size_wh == (64, 48)


def test_size_and_rate_of_the_settings_are_asked_of_a_camera() -> None:
    asked = Settings().with_values({"live.size": "80x60", "live.fps": 25})
    assert camera_options(asked)["video_size"] == "80x60"
    with pytest.raises(InvalidSetting, match=r"live\.size='big'"):
        Settings().with_values({"live.size": "big"})


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    return write_video(tmp_path / "a.mp4", moving_frames(10), fps=50)


def test_a_loop_goes_on_without_a_gap(clip: Path) -> None:
    with open_live(f"loop:{clip}", Settings()) as source:
        assert source.info.kind == "loop"
        frames = list(islice(source.frames(), 25))
    assert [frame.index for frame in frames] == list(range(25))
    assert [frame.pts_seconds for frame in frames] == pytest.approx([number / 50 for number in range(25)], abs=2e-3)


def test_a_loop_whose_file_vanishes_ends_with_an_error(clip: Path) -> None:
    states: list[SourceState] = []
    with open_live(f"loop:{clip}", Settings(), on_state=states.append) as source, pytest.raises(SourceNotFound):
        for _ in source.frames():
            clip.unlink(missing_ok=True)
    assert states[-1].state == "failed"


@pytest.mark.skipif(sys.platform != "linux", reason="the names of Linux's devices")
def test_cameras_are_listed_by_their_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = [("/dev/video10", "Loop"), ("/dev/video0", "HD Pro Webcam C920"), ("/dev/radio0", "Radio")]
    found = [SimpleNamespace(name=name, description=words, media_types=[]) for name, words in devices]
    monkeypatch.setattr(av.device, "enumerate_input_devices", lambda name: found)
    assert [(camera.index, camera.source, camera.name) for camera in list_cameras()] == [
        (0, "/dev/video0", "HD Pro Webcam C920"),
        (10, "/dev/video10", "Loop"),
    ]
    assert find_camera("10") == find_camera("loop") == "/dev/video10"


def test_a_source_that_was_closed_before_its_first_frame_has_none() -> None:
    source = open_live("lavfi:testsrc2=size=64x64", Settings())
    source.close()
    assert list(source.frames()) == []


def test_a_camera_that_is_not_there() -> None:
    for spec in ("/dev/video987", "987", "camera:no camera is called so"):
        with pytest.raises((CameraUnavailable, BackendUnavailable)) as caught:
            open_live(spec, Settings())
        assert "987" in str(caught.value) or "called so" in str(caught.value)
