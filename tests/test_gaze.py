"""Gaze files and the bumps that they leave."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arr_stream.errors import QueryUnreadable
from arr_stream.relevance.gaze import GazeTrack, load_gaze, splat


def _file(tmp_path: Path, text: str, encoding: str = "utf-8") -> Path:
    path = tmp_path / "gaze.csv"
    path.write_text(text, encoding=encoding)
    return path


def test_columns_in_any_order_beside_others_with_spaces_and_a_byte_order_mark(tmp_path: Path) -> None:
    text = "pupil, Y ,x , PTS_seconds\r\n\r\n3.1, 0.25, 0.5 , 7\r\n, 0.5,0.5,7,extra\r\n"
    track = load_gaze(_file(tmp_path, text, "utf-8-sig"))
    np.testing.assert_allclose(track.pts_seconds, [7, 7])
    np.testing.assert_allclose(track.points_xy, [[0.5, 0.25], [0.5, 0.5]])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "line 1: no column pts_seconds, x, y"),
        ("0.0,0.5,0.5\n", "line 1: no column"),
        ("pts_seconds,x\n0,0\n", "line 1: no column y"),
        ("pts_seconds,x,y\n", "no sample"),
        ("pts_seconds,x,y\n0,0.5,0.5\n1,0.5\n", "line 3: could not convert"),
        ("pts_seconds,x,y\n0,a,0.5\n", "line 2: could not convert string to float: 'a'"),
        ("pts_seconds,x,y\n0,nan,0.5\n", r"line 2: \(nan, 0.5\) is outside"),
        ("pts_seconds,x,y\ninf,0.5,0.5\n", "line 2: pts_seconds is inf"),
        ("pts_seconds,x,y\n0,0.5,0.5\n\n1,640,480\n", r"line 4: \(640, 480\) is outside"),
        ("pts_seconds,x,y\n1,0.5,0.5\n0.5,0.5,0.5\n", "line 3: time goes back from 1 to 0.5 s"),
    ],
)
def test_malformed_files_name_the_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(QueryUnreadable, match=says) as caught:
        load_gaze(_file(tmp_path, text))
    assert caught.value.remedy


def test_missing_folder_and_binary(tmp_path: Path) -> None:
    with pytest.raises(QueryUnreadable, match="No such file"):
        load_gaze(tmp_path / "none.csv")
    with pytest.raises(QueryUnreadable):
        load_gaze(tmp_path)
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00\x01" * 100)
    with pytest.raises(QueryUnreadable, match="not a CSV text file"):
        load_gaze(tmp_path / "binary.csv")


@given(
    st.lists(st.floats(0, 10), max_size=40).map(sorted),
    st.lists(st.floats(0, 10), min_size=1, max_size=10, unique=True).map(sorted),
)
def test_every_sample_falls_to_exactly_one_frame(times: list[float], frames: list[float]) -> None:
    points = np.linspace(0, 1, 2 * len(times), dtype=np.float32).reshape(-1, 2)
    track = GazeTrack(np.asarray(times, np.float64), points)
    starts = [-np.inf, *frames]
    got = [track.between(a, b) for a, b in zip(starts, [*frames, np.inf], strict=True)]
    np.testing.assert_array_equal(np.concatenate(got), points)
    for (after, until), part in zip(zip(starts, frames, strict=False), got, strict=False):
        assert len(part) == sum(after < time <= until for time in times)


def test_a_bump_peaks_at_its_point_and_fades() -> None:
    bump = splat(np.array([[0.25, 0.5]], np.float32), (120, 216), 0.04)
    assert bump.dtype == np.float32
    row, column = np.unravel_index(bump.argmax(), bump.shape)
    assert abs((column + 0.5) / 216 - 0.25) < 0.005 and abs((row + 0.5) / 120 - 0.5) < 0.005
    assert 0.98 < bump.max() <= 1
    assert bump[60, 53 + round(0.04 * np.hypot(120, 216))] == pytest.approx(np.exp(-0.5), abs=0.03)
    assert bump[:, 120:].max() == 0


@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), max_size=6), st.tuples(st.integers(1, 40), st.integers(1, 40))
)
def test_bumps_stay_in_range_on_any_map(points: list[tuple[float, float]], hw: tuple[int, int]) -> None:
    xy = np.asarray(points, np.float32).reshape(-1, 2)
    bump = splat(xy, hw, 0.1)
    assert bump.shape == hw
    assert bump.min() >= 0 and bump.max() <= 1
    assert bump.any() == bool(points)
    np.testing.assert_array_equal(bump, splat(xy[::-1], hw, 0.1))
