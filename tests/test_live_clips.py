"""Clips of alerts: what they show and when, and what becomes of the folder that they are in."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

import av
import numpy as np
import pytest

from arr_stream.config import VideoSettings
from arr_stream.live.clips import CLIP_NAME, LONGEST_CLIP_SECONDS, ClipRecorder, delete_oldest, find_clip, list_clips
from arr_stream.types import ByteArray
from tests.choices import boxes

FAST = VideoSettings(preset="ultrafast", crf=18)
MADE_UNIX = 1_795_269_933.0
FPS = 10


def grey(index: int, size_wh: tuple[int, int] = (96, 64)) -> ByteArray:
    """A picture whose brightness tells its number."""
    return np.full((size_wh[1], size_wh[0], 3), 40 + 4 * (index % 50), np.uint8)


class Told:
    """Collects what a recorder says."""

    def __init__(self) -> None:
        self.notices: list[str] = []
        self.finished: list[tuple[Path, bool]] = []

    def recorder(self, folder: Path, **options) -> ClipRecorder:
        options = {"stream_name": "Front door", "before_seconds": 1.0, "after_seconds": 1.0, "settings": FAST} | options
        return ClipRecorder(
            folder,
            on_finished=lambda path, whole: self.finished.append((path, whole)),
            on_notice=self.notices.append,
            **options,
        )


@pytest.fixture
def told() -> Told:
    return Told()


def play(recorder: ClipRecorder, indices: range, alerts: tuple[int, ...] = (), size_wh: tuple[int, int] = (96, 64)):
    """Give frames, and start clips at some of them; the paths that were told."""
    paths = []
    for index in indices:
        recorder.add(index / FPS, grey(index, size_wh))
        if index in alerts:
            paths.append(recorder.start(index / FPS, "relevance > 0.6", MADE_UNIX))
        while recorder.behind:
            recorder.write_some()
    return paths


def shown(path: Path) -> tuple[list[float], list[int], tuple[int, int]]:
    """Times, numbers and size of a clip's pictures."""
    with av.open(str(path)) as container:
        pictures = [(float(f.pts * f.time_base), f.to_ndarray(format="rgb24")) for f in container.decode(video=0)]
    numbers = [round((float(rgb[rgb.shape[0] // 2, rgb.shape[1] // 2].mean()) - 40) / 4) for _, rgb in pictures]
    return [at for at, _ in pictures], numbers, pictures[0][1].shape[1::-1]


def test_shows_the_seconds_before_and_after_at_their_own_times(tmp_path: Path, told: Told) -> None:
    recorder = told.recorder(tmp_path / "clips")
    (path,) = play(recorder, range(50), (20,))
    assert told.finished == [(path, True)] and told.notices == []
    assert path is not None and CLIP_NAME.fullmatch(path.name) and path.name.endswith("_front-door_relevance-0-6.mp4")
    assert path.name.startswith(time.strftime("%Y-%m-%d_%H-%M-%S_", time.localtime(MADE_UNIX)))
    times, numbers, size_wh = shown(path)
    assert numbers == list(range(10, 31))
    assert times == pytest.approx([i / FPS for i in range(21)], abs=2e-4)
    assert size_wh == (96, 64)
    assert boxes(path)[-1] == "moov"
    with av.open(str(path)) as container:
        assert container.streams.video[0].codec_context.name == "h264"
        assert container.streams.video[0].pix_fmt == "yuv420p"


def test_an_alert_on_the_first_frame_and_an_end_soon_after(tmp_path: Path, told: Told) -> None:
    recorder = told.recorder(tmp_path)
    (path,) = play(recorder, range(3), (0,))
    assert recorder.recording and list_clips(tmp_path) == []
    recorder.finish()
    assert path is not None and shown(path)[1] == [0, 1, 2]
    recorder.finish()
    assert len(told.finished) == 1


def test_alerts_that_overlap_share_a_clip(tmp_path: Path, told: Told) -> None:
    first, second = play(told.recorder(tmp_path), range(60), (20, 26))
    assert first == second and told.finished == [(first, True)]
    assert shown(first)[1] == list(range(10, 37))


def test_an_alert_after_the_end_begins_another_with_a_name_of_its_own(tmp_path: Path, told: Told) -> None:
    first, second = play(told.recorder(tmp_path), range(60), (20, 35))
    assert first != second and [whole for _, whole in told.finished] == [True, True]
    assert shown(second)[1] == list(range(25, 46)), "what another clip shows too is shown again"


def test_an_alert_before_a_clip_is_written_out_extends_it(tmp_path: Path, told: Told) -> None:
    recorder = told.recorder(tmp_path)
    for index in range(40):
        recorder.add(index / FPS, grey(index))
        if index in (10, 23):
            recorder.start(index / FPS, "rule", MADE_UNIX)
    recorder.finish()
    ((path, whole),) = told.finished
    assert whole and shown(path)[1] == list(range(34)), "no picture is missing between the two"


def test_a_clip_does_not_go_on_for_ever(tmp_path: Path, told: Told) -> None:
    recorder = told.recorder(tmp_path, after_seconds=200.0)
    for index in range(40):
        at = index * 20.0
        recorder.add(at, grey(index))
        recorder.start(at, "rule", MADE_UNIX)
    recorder.finish()
    lengths = [shown(path)[0][-1] for path, _ in told.finished]
    assert len(lengths) >= 2 and max(lengths) <= LONGEST_CLIP_SECONDS


def test_pictures_of_another_size_are_fitted(tmp_path: Path, told: Told) -> None:
    recorder = told.recorder(tmp_path)
    play(recorder, range(10), (9,))
    play(recorder, range(10, 15), size_wh=(64, 200))
    recorder.finish()
    ((path, whole),) = told.finished
    times, numbers, size_wh = shown(path)
    assert whole and size_wh == (96, 64) and numbers == list(range(15)) and len(times) == 15


def test_large_pictures_are_made_smaller(tmp_path: Path, told: Told) -> None:
    recorder = told.recorder(tmp_path)
    play(recorder, range(3), (1,), size_wh=(3840, 100))
    recorder.finish()
    assert shown(told.finished[0][0])[2] == (1920, 50)


def test_time_that_begins_anew_ends_the_clip(tmp_path: Path, told: Told) -> None:
    recorder = told.recorder(tmp_path)
    play(recorder, range(20, 25), (24,))
    (path,) = play(recorder, range(5), (4,))
    recorder.finish()
    assert [shown(clip)[1] for clip, _ in told.finished] == [[20, 21, 22, 23, 24], [0, 1, 2, 3, 4]]
    assert told.finished[1][0] == path


def test_memory_of_the_past_is_bounded(tmp_path: Path, told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arr_stream.live.clips._MOST_KEPT_BYTES", 200_000)
    recorder = told.recorder(tmp_path, before_seconds=1e9, after_seconds=1e9)
    noise = np.random.default_rng(0).integers(0, 256, (120, 160, 3), np.uint8)
    for index in range(50):
        recorder.add(index / FPS, noise)
        if index == 20:
            recorder.start(index / FPS, "rule", MADE_UNIX)
    recorder.finish()
    times, _, _ = shown(told.finished[0][0])
    assert 30 <= len(times) < 45, "the oldest were forgotten before the alert, none after it"
    assert times == pytest.approx([i / FPS for i in range(len(times))], abs=2e-4)


def test_a_folder_that_cannot_be_made_is_told_once(tmp_path: Path, told: Told) -> None:
    (tmp_path / "file").write_text("")
    recorder = told.recorder(tmp_path / "file" / "clips")
    assert play(recorder, range(50), (5, 30)) == [None, None]
    assert len(told.notices) == 1 and "clip not recorded" in told.notices[0]
    recorder.finish()


def test_a_disk_that_is_full_is_told_and_what_can_be_played_is_kept(tmp_path: Path, told: Told) -> None:
    recorder = told.recorder(tmp_path, after_seconds=1000.0)
    rng = np.random.default_rng(0)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, before[1]))
    try:
        for index in range(120):
            recorder.add(index / FPS, rng.integers(0, 256, (120, 160, 3), np.uint8))
            if index == 5:
                recorder.start(index / FPS, "rule", 0.0)
            while recorder.behind:
                recorder.write_some()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not recorder.recording
    assert len(told.notices) == 1 and "clip not recorded" in told.notices[0], told.notices
    ((path, whole),) = told.finished
    assert whole and len(shown(path)[0]) > 5
    assert not list(tmp_path.glob("*.partial.mp4"))


def made(folder: Path, name: str, size: int, age_seconds: float) -> Path:
    path = folder / name
    path.write_bytes(bytes(size))
    when = time.time() - age_seconds
    os.utime(path, (when, when))
    return path


def test_the_oldest_clips_are_deleted_and_nothing_else(tmp_path: Path) -> None:
    oldest = made(tmp_path, "2026-01-03_00-00-00_a_b.mp4", 500, 300)
    middle = made(tmp_path, "2026-01-01_00-00-00_a_b.mp4", 500, 200)
    newest = made(tmp_path, "2026-01-02_00-00-00_a_b_2.mp4", 500, 100)
    left_over = made(tmp_path, "2026-01-02_00-00-00_a_b.partial.mp4", 500, 7200)
    others = [
        made(tmp_path, "holiday.mp4", 5000, 9000),
        made(tmp_path, "2026-01-01_00-00-00_A_b.mp4", 5000, 9000),
        made(tmp_path, "2026-01-01_00-00-00_a_b.mp4.txt", 5000, 9000),
        made(tmp_path, "2026-01-01_00-00-00_now_b.partial.mp4", 5000, 5),
    ]
    target = made(tmp_path, "elsewhere", 5000, 9000)
    link = tmp_path / "2020-01-01_00-00-00_a_b.mp4"
    link.symlink_to(target)
    (tmp_path / "2020-01-01_00-00-00_c_d.mp4").mkdir()
    delete_oldest(tmp_path, 1200)
    assert not left_over.exists() and not oldest.exists()
    assert middle.exists() and newest.exists() and link.is_symlink() and target.exists()
    assert all(path.exists() for path in others)
    delete_oldest(tmp_path, 0, keep=middle)
    assert middle.exists() and not newest.exists()


def test_the_limit_holds_while_clips_are_made(tmp_path: Path, told: Told) -> None:
    recorder = told.recorder(tmp_path, most_bytes=1)
    paths = play(recorder, range(0, 120), (10, 50, 90))
    assert [clip.name for clip in list_clips(tmp_path)] == [paths[-1].name]


def test_listing_and_finding_take_no_other_names(tmp_path: Path, told: Told) -> None:
    assert list_clips(tmp_path / "nowhere") == []
    play(told.recorder(tmp_path), range(60), (10, 40))
    (tmp_path / "notes.txt").write_text("")
    names = [clip.name for clip in list_clips(tmp_path)]
    assert len(names) == 2 and all(find_clip(tmp_path, name) == tmp_path / name for name in names)
    assert all(clip.bytes == (tmp_path / clip.name).stat().st_size for clip in list_clips(tmp_path))
    for name in ("notes.txt", "../" + names[0], f"{names[0]}\0", "", ".", "2026-01-01_00-00-00_a_b.mp4"):
        assert find_clip(tmp_path, name) is None


def test_streams_of_the_same_name_write_different_clips(tmp_path: Path, told: Told) -> None:
    recorders = [told.recorder(tmp_path), told.recorder(tmp_path)]
    for index in range(10):
        for recorder in recorders:
            recorder.add(index / FPS, grey(index))
    first, second = (recorder.start(0.9, "cut = 1", MADE_UNIX) for recorder in recorders)
    for recorder in recorders:
        recorder.finish()
    assert first is not None and second is not None and first != second
    assert {path.name for path in tmp_path.iterdir()} == {first.name, second.name}
    assert shown(first)[1] == shown(second)[1] == list(range(10))
    assert told.notices == []
