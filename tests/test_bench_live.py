"""The measurements of live streams: the counter in the picture, the scene, the figures, and one real run."""

from __future__ import annotations

import json
import threading
import time

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arr_stream.errors import MeasurementFailed
from arr_stream.types import Frame
from benchmarks.live.process import Child, free_port
from benchmarks.live.scene import MODULUS, CounterSource, Scene, paint, read
from tests.conftest import Run

SIZE_WH = (640, 360)
SCENE = Scene(SIZE_WH)


@given(st.integers(0, 3 * MODULUS), st.sampled_from([(640, 360), (320, 180), (1280, 720), (160, 120)]))
def test_the_counter_is_read_as_it_was_painted(number: int, size_wh: tuple[int, int]) -> None:
    rgb = np.full((size_wh[1], size_wh[0], 3), 90, np.uint8)
    paint(rgb, number)
    assert read(rgb) == number % MODULUS


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
