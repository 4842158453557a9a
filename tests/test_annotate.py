"""The annotated video: read back, it must be what was put in."""

from __future__ import annotations

import itertools
import os
import resource
import shutil
import signal
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from arr_stream.config import VideoSettings
from arr_stream.draw import mp4
from arr_stream.draw.annotate import AnnotatedVideo
from arr_stream.draw.overlay import draw_patches
from arr_stream.errors import DiskFull, EncodingFailed, InvalidSetting, OutputExists, OutputUnwritable
from arr_stream.files import partial_path
from arr_stream.types import Frame, Grid
from tests.choices import PlainSource, boxes, choose, frames_of
from tests.media import moving_frames

FAST = VideoSettings(crf=10)


def annotate(path: Path, frames: list[Frame], *, source: PlainSource | None = None, **options) -> AnnotatedVideo:
    video = AnnotatedVideo(
        path, size_wh=frames[0].size_wh, source=source or PlainSource(), **({"settings": FAST} | options)
    )
    for frame in frames:
        video.consume(frame, choose(frame))
    video.close()
    return video


def read_back(path: Path) -> tuple[list[float], av.VideoFrame]:
    """Times of all frames in seconds, and the first frame."""
    with av.open(str(path)) as container:
        pictures = list(container.decode(video=0))
    return [float(picture.pts * picture.time_base) for picture in pictures], pictures[0]


@pytest.mark.parametrize("size_wh", [(1, 1), (17, 33), (320, 240), (2, 200)])
def test_every_size_is_h264_that_browsers_play(tmp_path: Path, size_wh: tuple[int, int]) -> None:
    frames = frames_of(moving_frames(7, size_wh))
    annotate(tmp_path / "out.mp4", frames)
    times, first = read_back(tmp_path / "out.mp4")
    assert times == pytest.approx([frame.pts_seconds for frame in frames], abs=1e-4)
    assert (first.width, first.height) == tuple(side + side % 2 for side in size_wh)
    with av.open(str(tmp_path / "out.mp4")) as container:
        stream = container.streams.video[0]
        assert (stream.codec_context.name, stream.pix_fmt) == ("h264", "yuv420p")
        assert float(stream.duration * stream.time_base) == pytest.approx(7 / 30, abs=1e-3)
    assert boxes(tmp_path / "out.mp4")[-1] == "moov", "an ordinary index once closed"
    assert not partial_path(tmp_path / "out.mp4").exists()


@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.sampled_from([0.0, 0.001, 0.02, 0.033, 0.04, 0.5, 3.0]), min_size=1, max_size=12))
def test_uneven_times_stay_uneven(tmp_path: Path, steps: list[float]) -> None:
    pts = list(itertools.accumulate([0.0, *steps]))
    frames = frames_of(moving_frames(len(pts), (32, 32)), pts)
    annotate(tmp_path / "out.mp4", frames, force=True)
    times, _ = read_back(tmp_path / "out.mp4")
    assert times == pytest.approx(pts, abs=2e-4)
    assert all(later > earlier for earlier, later in itertools.pairwise(times)), "equal times are moved apart"


def test_start_is_the_zero_of_the_output_and_pixel_aspect_is_kept(tmp_path: Path) -> None:
    frames = frames_of(moving_frames(3), [5.02, 5.06, 5.1])
    annotate(tmp_path / "out.mp4", frames, start_seconds=5.0, source=PlainSource(pixel_aspect=16 / 11))
    assert read_back(tmp_path / "out.mp4")[0] == pytest.approx([0.02, 0.06, 0.1], abs=1e-4)
    with av.open(str(tmp_path / "out.mp4")) as container:
        assert container.streams.video[0].sample_aspect_ratio == Fraction(16, 11)


def test_colours_survive_the_round_trip(tmp_path: Path) -> None:
    picture = np.zeros((64, 96, 3), np.uint8)
    picture[:, :32], picture[:, 32:64], picture[:, 64:] = (200, 40, 40), (40, 180, 60), (50, 60, 210)
    frame = Frame(0, 0.0, picture)
    video = AnnotatedVideo(tmp_path / "out.mp4", size_wh=(96, 64), source=PlainSource(), settings=FAST)
    video.draw = lambda frame, patches: frame.rgb  # type: ignore[method-assign]
    video.consume(frame, choose(frame))
    video.close()
    _, first = read_back(tmp_path / "out.mp4")
    shown = first.to_ndarray(format="rgb24").astype(int)
    for x in (16, 48, 80):
        assert np.abs(shown[32, x] - picture[32, x]).max() <= 8


def test_frames_of_another_size_are_fitted(tmp_path: Path) -> None:
    frames = frames_of([*moving_frames(2, (96, 64)), *moving_frames(2, (64, 128))])
    annotate(tmp_path / "out.mp4", frames)
    with av.open(str(tmp_path / "out.mp4")) as container:
        shown = [picture.to_ndarray(format="rgb24") for picture in container.decode(video=0)]
    assert [picture.shape for picture in shown] == [(64, 96, 3)] * 4
    assert shown[3][:, :20].max() < 24, "bars beside a tall frame"
    assert shown[3][:, 40:56].max() > 24


def test_chosen_cells_are_bright_and_the_rest_dim() -> None:
    frame = Frame(0, 0.0, np.full((96, 128, 3), 200, np.uint8))
    patches = choose(frame)
    picture = draw_patches(frame.rgb, patches)
    grid = Grid.for_size((128, 96))
    chosen = {(r, c) for r, c, level in zip(patches.rows, patches.columns, patches.level, strict=True) if level <= 0}
    coarse = [box for box, level in zip(patches.cells_xyxy, patches.level, strict=True) if level > 0]
    for row, column in itertools.product(range(grid.rows), range(grid.columns)):
        y, x = row * 32 + 16, column * 32 + 16
        in_coarse = any(x0 <= x < x1 and y0 <= y < y1 for x0, y0, x1, y1 in coarse)
        expected = 200 if (row, column) in chosen else 113 if in_coarse else 70
        assert abs(int(picture[y, x, 0]) - expected) <= 1


@given(width=st.integers(1, 90), height=st.integers(1, 90))
@settings(max_examples=25)
def test_drawing_fits_every_size(width: int, height: int) -> None:
    frame = Frame(0, 0.0, np.full((height, width, 3), 90, np.uint8))
    assert draw_patches(frame.rgb, choose(frame)).shape == frame.rgb.shape


class TestTrouble:
    def test_leftovers_of_a_killed_run_are_not_overwritten(self, tmp_path: Path) -> None:
        partial_path(tmp_path / "out.mp4").write_bytes(b"precious")
        with pytest.raises(OutputExists, match=r"out\.partial\.mp4"):
            AnnotatedVideo(tmp_path / "out.mp4", size_wh=(8, 8), source=PlainSource())

    def test_folders_are_made(self, tmp_path: Path) -> None:
        annotate(tmp_path / "a" / "b" / "-out.mp4", frames_of(moving_frames(1)))
        assert (tmp_path / "a" / "b" / "-out.mp4").exists()

    @pytest.mark.parametrize("name", ["out.avi", "out", "file/out.mp4", "folder.mp4"])
    def test_places_that_will_not_do(self, tmp_path: Path, name: str) -> None:
        (tmp_path / "file").touch()
        (tmp_path / "folder.mp4").mkdir()
        with pytest.raises(OutputUnwritable):
            AnnotatedVideo(tmp_path / name, size_wh=(8, 8), source=PlainSource())

    def test_unknown_view_names_the_nearest(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidSetting, match="relevance"):
            AnnotatedVideo(tmp_path / "out.mp4", size_wh=(8, 8), source=PlainSource(), view="relevence")

    def test_an_encoder_that_refuses(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(mp4, "_X264_PRESET", "swift")
        video = AnnotatedVideo(tmp_path / "out.mp4", size_wh=(96, 64), source=PlainSource())
        frame = frames_of(moving_frames(1))[0]
        with pytest.raises(EncodingFailed, match=r"video\.crf"):
            video.consume(frame, choose(frame))
        video.close(failed=True)
        assert list(tmp_path.iterdir()) == []

    def test_what_was_written_before_a_failure_is_kept(self, tmp_path: Path) -> None:
        video = AnnotatedVideo(tmp_path / "out.mp4", size_wh=(96, 64), source=PlainSource(), settings=FAST)
        for frame in frames_of(moving_frames(25)):
            video.consume(frame, choose(frame))
        video.close(failed=True)
        assert len(read_back(tmp_path / "out.mp4")[0]) == 25

    def noise(self, tmp_path: Path) -> tuple[AnnotatedVideo, list[Frame]]:
        """A video, and 120 frames that take much room in it."""
        rng = np.random.default_rng(0)
        frames = frames_of([rng.integers(0, 255, (64, 96, 3), dtype=np.uint8) for _ in range(120)])
        return AnnotatedVideo(tmp_path / "out.mp4", size_wh=(96, 64), source=PlainSource(), settings=FAST), frames

    def test_a_killed_run_leaves_a_playable_file(self, tmp_path: Path) -> None:
        video, frames = self.noise(tmp_path)
        for frame in frames:
            video.consume(frame, choose(frame))
        # What has been written by now is what a kill would leave.
        shutil.copy(partial_path(tmp_path / "out.mp4"), tmp_path / "left.mp4")
        assert not (tmp_path / "out.mp4").exists(), "nothing half-written under the final name"
        video.close(failed=True)
        times, _ = read_back(tmp_path / "left.mp4")
        assert len(times) > 50
        assert times == pytest.approx([index / 30 for index in range(len(times))], abs=1e-3)

    @pytest.mark.parametrize("limit", [400_000, 4_000])
    def test_a_full_disk_keeps_what_fitted(self, tmp_path: Path, limit: int) -> None:
        video, frames = self.noise(tmp_path)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        try:
            with pytest.raises(DiskFull):
                for frame in frames:
                    video.consume(frame, choose(frame))
            video.close(failed=True)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            signal.signal(signal.SIGXFSZ, before)
        assert not partial_path(tmp_path / "out.mp4").exists()
        if limit > 100_000:
            times, _ = read_back(tmp_path / "out.mp4")
            assert len(times) >= 30
        else:
            assert not (tmp_path / "out.mp4").exists(), "not one picture fitted"

    def test_a_device_is_not_replaced(self, tmp_path: Path) -> None:
        (tmp_path / "out.mp4").symlink_to("/dev/null")
        with pytest.raises(OutputUnwritable, match="regular file"):
            AnnotatedVideo(tmp_path / "out.mp4", size_wh=(8, 8), source=PlainSource(), force=True)

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
    def test_a_folder_without_permission(self, tmp_path: Path) -> None:
        (tmp_path / "locked").mkdir(mode=0o500)
        with pytest.raises(OutputUnwritable, match="permissions"):
            AnnotatedVideo(tmp_path / "locked" / "out.mp4", size_wh=(8, 8), source=PlainSource())
