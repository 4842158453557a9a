"""Recordings whose clock jumps, stops or is missing, whose pictures change their size, and empty packets."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

import arr_stream
from arr_stream.config import Settings
from arr_stream.live.live_stream import LiveStream
from arr_stream.outputs import annotated_video, records_of
from arr_stream.patch_set import PatchSet
from arr_stream.records.json_lines import read_records
from arr_stream.run import run
from arr_stream.sources import open_source
from arr_stream.sources.live import open_live
from arr_stream.types import ByteArray
from tests.fault_helpers import decoded
from tests.media import moving_frames, write_video

SETTINGS = Settings().with_values({"keyframes.text": "none", "keyframes.clusters": "grid", "selection.budget": "2"})
HOUR = 3600.0
STEP = 1 / 25


def write_packets(path: Path, frames: Sequence[ByteArray], times: Sequence[float | None], *, empty: int = 0) -> Path:
    """Pictures that each stand for themselves, at any times in seconds; None for no time.

    Args:
        path: Where to; its ending names the container.
        frames: Pictures `[H, W, 3]`.
        times: Of the pictures.
        empty: Add a packet without content after every so many.
    """
    tick = Fraction(1, 1000)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mjpeg", rate=25)
        stream.height, stream.width = frames[0].shape[:2]
        stream.pix_fmt, stream.time_base = "yuvj420p", tick
        for index, (pixels, seconds) in enumerate(zip(frames, times, strict=True)):
            picture = av.VideoFrame.from_ndarray(pixels, format="rgb24").reformat(format="yuvj420p")
            picture.pts, picture.time_base = index * 40, tick
            for packet in stream.encode(picture):
                packet.pts = packet.dts = None if seconds is None else round(seconds / tick)
                packet.time_base = tick
                container.mux(packet)
            if empty and index % empty == 0:
                nothing = av.Packet(b"")
                nothing.stream, nothing.time_base = stream, tick
                nothing.pts = nothing.dts = index * 40 + 20
                container.mux(nothing)
    return path


def check(source: Path, tmp_path: Path, expected_frames: int) -> list[float]:
    """Run it into a video and records; both hold every frame once, in order of time. The times."""
    stream = arr_stream.open(source, settings=SETTINGS)
    video = annotated_video(stream, tmp_path / "out.mp4")
    result = run(stream, [video, records_of(stream, tmp_path / "out.jsonl")])
    assert (result.reason, result.error, result.frames) == ("finished", None, expected_frames)
    _, frames, end = read_records(tmp_path / "out.jsonl")
    times = [frame.pts_seconds for frame in frames]
    assert [frame.index for frame in frames] == list(range(expected_frames))
    assert all(map(math.isfinite, times)) and times == sorted(times) and times[0] == 0.0
    shown = [seconds for seconds, _ in decoded(tmp_path / "out.mp4")]
    assert len(shown) == expected_frames and all(a < b for a, b in itertools.pairwise(shown))
    assert np.allclose(shown, times, atol=0.002)
    assert end is not None and end.reason == "finished"
    return times


@pytest.mark.parametrize("jumps", [[2], [5, 5, 5, 5]])
def test_a_clock_that_jumps_forward_keeps_its_times(tmp_path: Path, jumps: list[float]) -> None:
    times = [index * STEP + HOUR * sum(jumps[: index // 3]) for index in range(15)]
    source = write_packets(tmp_path / "clip.mkv", moving_frames(15), times)
    assert np.allclose(check(source, tmp_path, 15), times, atol=0.002)


@pytest.mark.parametrize("hours", [20, 2000])
def test_a_jump_that_no_video_can_hold_is_shortened_there(tmp_path: Path, hours: int) -> None:
    times = [index * STEP + (hours * HOUR if index >= 6 else 0.0) for index in range(12)]
    source = write_video(tmp_path / "clip.mkv", moving_frames(12), fps=25, pts=times)
    stream = arr_stream.open(source, settings=SETTINGS)
    video = annotated_video(stream, tmp_path / "out.mp4")
    result = run(stream, [video, records_of(stream, tmp_path / "out.jsonl")])
    assert (result.error, result.frames) == (None, 12)
    recorded = [frame.pts_seconds for frame in read_records(tmp_path / "out.jsonl")[1]]
    assert np.allclose(recorded, times, atol=0.002)
    shown = [seconds for seconds, _ in decoded(tmp_path / "out.mp4")]
    assert np.allclose(
        shown, [index * STEP + (6 * HOUR - STEP if index >= 6 else 0.0) for index in range(12)], atol=0.002
    )


def test_a_clock_that_is_set_back_goes_on_by_one_step(tmp_path: Path) -> None:
    """Two recordings in one file: the second begins at 0 again."""
    for name, pictures in (("a.ts", moving_frames(10)), ("b.ts", moving_frames(10, seed=1))):
        write_video(tmp_path / name, pictures, fps=25)
    source = tmp_path / "both.ts"
    source.write_bytes((tmp_path / "a.ts").read_bytes() + (tmp_path / "b.ts").read_bytes())
    times = check(source, tmp_path, 20)
    assert np.allclose(np.diff(times), STEP, atol=0.003)


@pytest.mark.parametrize("counts", [(60, 60), (20, 60, 40), (60, 20, 50)])
@pytest.mark.parametrize("start_seconds", [0.5, 1.0, 2.6, 3.9])
def test_a_start_in_joined_recordings_goes_by_the_times_of_the_frames(
    tmp_path: Path, counts: tuple[int, ...], start_seconds: float
) -> None:
    source = tmp_path / "joined.ts"
    parts = [
        write_video(tmp_path / f"{n}.ts", moving_frames(count, seed=n), fps=25, options={"g": "10"}, audio=True)
        for n, count in enumerate(counts)
    ]
    source.write_bytes(b"".join(part.read_bytes() for part in parts))
    with open_source(source) as whole:
        expected = [frame for frame in whole.frames() if frame.pts_seconds >= start_seconds - 1e-6]
    stream = arr_stream.open(source, settings=SETTINGS, start_seconds=start_seconds)
    assert any("clock restarts" in notice for notice in stream.notices)
    got = list(stream.source.frames())
    assert [frame.pts_seconds for frame in got] == pytest.approx([frame.pts_seconds for frame in expected])
    assert all(np.array_equal(one.rgb, other.rgb) for one, other in zip(got, expected, strict=True))


def test_a_clock_that_stands_still(tmp_path: Path) -> None:
    times = [min(index, 4) * STEP for index in range(10)]
    source = write_packets(tmp_path / "clip.mkv", moving_frames(10), times)
    stream = arr_stream.open(source, settings=SETTINGS)
    result = run(stream, [annotated_video(stream, tmp_path / "o.mp4"), records_of(stream, tmp_path / "o.jsonl")])
    assert (result.error, result.frames) == (None, 10)
    given = [frame.pts_seconds for frame in read_records(tmp_path / "o.jsonl")[1]]
    assert given == sorted(given) and len(given) == 10
    shown = [seconds for seconds, _ in decoded(tmp_path / "o.mp4")]
    assert len(shown) == 10 and all(a < b for a, b in itertools.pairwise(shown))


def test_without_any_timestamps_frames_come_at_their_rate(tmp_path: Path) -> None:
    source = write_video(tmp_path / "clip.h264", moving_frames(10), fps=25, options={"bf": "0", "preset": "ultrafast"})
    times = check(source, tmp_path, 10)
    steps = np.diff(times)
    assert (steps > 0).all() and np.allclose(steps, steps[0], atol=0.002)


@pytest.mark.parametrize("ending", ["avi", "mkv", "nut"])
def test_packets_that_hold_nothing_are_passed_over(tmp_path: Path, ending: str) -> None:
    times = [index * STEP for index in range(10)]
    source = write_packets(tmp_path / f"clip.{ending}", moving_frames(10), times, empty=3)
    check(source, tmp_path, 10)


def test_pictures_that_change_their_size_in_mid_file(tmp_path: Path) -> None:
    for name, size_wh in (("a.ts", (96, 64)), ("b.ts", (160, 96)), ("c.ts", (64, 64))):
        write_video(tmp_path / name, moving_frames(6, size_wh), fps=25)
    source = tmp_path / "all.ts"
    source.write_bytes(b"".join((tmp_path / name).read_bytes() for name in ("a.ts", "b.ts", "c.ts")))
    check(source, tmp_path, 18)
    header, frames, _ = read_records(tmp_path / "out.jsonl")
    sizes = [frame.frame_size_wh or header.frame_size_wh for frame in frames]
    assert sizes == [(96, 64)] * 6 + [(160, 96)] * 6 + [(64, 64)] * 6
    for frame, (width, height) in zip(frames, sizes, strict=True):
        assert all(0 <= x0 < x1 <= width + 0.01 and 0 <= y0 < y1 <= height + 0.01 for x0, y0, x1, y1, _ in frame.cells)
    assert frames[6].refresh_reason == frames[12].refresh_reason == "size"
    assert {picture.shape for _, picture in decoded(tmp_path / "out.mp4")} == {(64, 96, 3)}


def test_the_wall_clock_has_no_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is set back and forth by days during the run; what is measured and waited for goes by another clock."""
    source = write_video(tmp_path / "clip.mp4", moving_frames(15), fps=25)
    true_time, leaps = time.time, itertools.cycle((72 * HOUR, -72 * HOUR))
    monkeypatch.setattr(time, "time", lambda: true_time() + next(leaps))
    began = time.monotonic()
    seen: list[PatchSet] = []
    stream = LiveStream(open_live(str(source), SETTINGS), SETTINGS)
    result = run(stream, [annotated_video(stream, tmp_path / "out.mp4")], on_frame=seen.append)
    assert result.error is None and result.frames + result.dropped == 15
    assert all(0.0 <= ms < 60_000 for patches in seen for ms in patches.latency_ms.values())
    assert time.monotonic() - began >= 14 * STEP
    assert len(decoded(tmp_path / "out.mp4")) == result.frames
