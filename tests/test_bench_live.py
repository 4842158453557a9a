"""The measurements of live streams: the counter in the picture, the scene, the figures, and one real run."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import av
import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arr_stream.errors import MeasurementFailed
from arr_stream.types import ByteArray, Frame
from benchmarks.live.figures import Figure, percentiles
from benchmarks.live.process import Child, captures, family_rss_bytes, free_port
from benchmarks.live.scene import MODULUS, CounterSource, Scene, paint, read
from tests.conftest import Run

SIZE_WH = (640, 360)
SCENE = Scene(SIZE_WH)


def compressed(rgb: ByteArray, quality: int) -> ByteArray:
    done, jpeg = cv2.imencode(".jpg", rgb, [cv2.IMWRITE_JPEG_QUALITY, quality])
    assert done
    return np.asarray(cv2.imdecode(jpeg, cv2.IMREAD_COLOR), dtype=np.uint8)


@given(st.integers(0, 3 * MODULUS), st.sampled_from([(640, 360), (320, 180), (1280, 720), (160, 120)]))
def test_the_counter_is_read_as_it_was_painted(number: int, size_wh: tuple[int, int]) -> None:
    rgb = np.full((size_wh[1], size_wh[0], 3), 90, np.uint8)
    paint(rgb, number)
    assert read(rgb) == number % MODULUS


@given(st.integers(0, MODULUS - 1), st.floats(0.2, 1.0), st.integers(40, 95))
def test_the_counter_survives_dimming_and_compression(number: int, brightness: float, quality: int) -> None:
    rgb = SCENE.picture(number, number / 30)
    dimmed = cv2.convertScaleAbs(rgb, alpha=brightness)
    assert read(compressed(np.asarray(dimmed, dtype=np.uint8), quality)) == number


def test_pictures_without_a_counter_are_hardly_ever_read() -> None:
    generator = np.random.default_rng(1)
    pictures = (cv2.resize(generator.integers(0, 256, (9, 16, 3), np.uint8), SIZE_WH) for _ in range(200))
    assert sum(read(np.asarray(picture, dtype=np.uint8)) is not None for picture in pictures) < 40
    assert read(np.zeros((360, 640, 3), np.uint8)) is None


def test_the_scene_moves_and_is_about_as_detailed_as_a_photograph() -> None:
    first, later = SCENE.picture(0, 0.0), SCENE.picture(0, 1.0)
    assert np.abs(first.astype(int) - later).mean() > 3
    done, jpeg = cv2.imencode(".jpg", first, [cv2.IMWRITE_JPEG_QUALITY, 80])
    assert done
    assert 20_000 < len(jpeg) < 80_000


def test_the_source_tells_the_capture_of_every_frame_and_ends_when_closed() -> None:
    told: dict[int, float] = {}
    before = time.time()
    with CounterSource(SCENE, 100.0, told.__setitem__) as source:
        threading.Timer(0.6, source.close).start()
        frames: list[Frame] = list(source.frames())
    assert len(frames) >= 5
    assert [frame.index for frame in frames] == list(range(len(frames)))
    assert [read(frame.rgb) for frame in frames] == list(range(len(frames)))
    offset = time.time() - time.monotonic()
    for frame in frames:
        assert frame.captured_seconds is not None
        assert before <= told[frame.index] <= time.time()
        assert told[frame.index] == pytest.approx(frame.captured_seconds + offset, abs=0.05)


def test_the_sender_streams_the_counter_until_it_is_killed() -> None:
    port = free_port()
    child = Child(["-m", "benchmarks.live.sender", "--port", str(port)], port)
    try:
        child.wait_ready("/")
        assert family_rss_bytes(child.pid) > 10e6
        with av.open(child.address, timeout=30.0) as container:
            numbers = [
                read(frame.to_ndarray(format="rgb24"))
                for _, frame in zip(range(20), container.decode(video=0), strict=False)
            ]
    finally:
        child.kill()
    assert numbers == list(range(numbers[0] or 0, (numbers[0] or 0) + 20))


def test_a_process_that_ends_at_once_is_told_with_its_last_words() -> None:
    child = Child(["-c", "raise SystemExit('no such luck')"], free_port())
    try:
        with pytest.raises(MeasurementFailed, match="no such luck"):
            child.wait_ready()
    finally:
        child.kill()


def test_a_child_ends_when_the_one_that_started_it_is_gone() -> None:
    port = free_port()
    script = (
        "import sys, time; from benchmarks.live.process import Child\n"
        f"c = Child(['-m', 'benchmarks.live.sender', '--port', '{port}'], {port})\n"
        "c.wait_ready('/'); print(c.pid, flush=True); import os; os._exit(0)"
    )
    parent = Child(["-c", script], port)
    try:
        parent._process.wait(60)
        deadline = time.monotonic() + 20
        while True:
            try:
                parent.get("/")
            except MeasurementFailed:
                break
            assert time.monotonic() < deadline, "the child of a process that is gone still answers"
            time.sleep(0.1)
    finally:
        parent.kill()


def test_captures_leave_out_a_line_that_is_half_written(tmp_path: Path) -> None:
    (tmp_path / "captures-0.txt").write_text("0 1000.5\n1 1000.533\n2 100")
    assert captures(tmp_path) == {0: 1000500.0, 1: 1000533.0}


def test_figures_know_whether_they_were_reached() -> None:
    assert Figure("a", "b", 60.0, "ms", 60.0).reached
    assert Figure("a", "b", 60.1, "ms", 60.0).reached is False
    assert Figure("a", "b", 29.0, "", 29.0, at_least=True).reached
    assert Figure("a", "b", 28.9, "", 29.0, at_least=True).reached is False
    assert Figure("a", "b", 1.0, "").reached is None
    median, p95, p99 = percentiles("a", "b", [10.0] * 98 + [90.0] * 2, 60.0, 50.0)
    assert (median.value, median.reached, p95.value, p95.reached) == (10.0, True, 10.0, True)
    assert p99.value > 50.0
    assert p99.reached is None
    with pytest.raises(MeasurementFailed, match="not one picture"):
        percentiles("a", "b", [])


def test_an_unknown_part_is_refused(measure: Run) -> None:
    code, _, error = measure("live", "--part", "pages")
    assert code == 51
    assert "choose from page," in error


@pytest.mark.slow
def test_the_page_is_measured(measure: Run) -> None:
    from arr_stream.errors import BackendUnavailable
    from benchmarks.live.browser import find_chromium

    pytest.importorskip("playwright", reason="the package playwright is missing")
    try:
        find_chromium()
    except BackendUnavailable as exc:
        pytest.skip(str(exc))
    code, out, error = measure("live", "--part", "page", "--part", "browser-camera", "--seconds", "3", "--json")
    assert code == 0, error
    figures = {(figure["part"], figure["what"]): figure["value"] for figure in json.loads(out)["figures"]}
    for part, what in (
        ("page", "age of a frame on the page"),
        ("browser-camera", "from the camera to the annotated picture"),
    ):
        # Half a minute would mean that the numbers are not what they are taken for; how fast it is depends on who asks.
        assert 0 < figures[part, f"{what}, median"] < 30_000
        assert figures[part, "pictures shown"] > 1
        assert figures[part, "pictures whose number could not be read"] < 20
