"""The measurements of live streams: the counter in the picture, the scene, the figures, and one real run."""

from __future__ import annotations

import json

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.live.process import Child, free_port
from benchmarks.live.scene import MODULUS, paint, read
from tests.conftest import Run


@given(st.integers(0, 3 * MODULUS), st.sampled_from([(640, 360), (320, 180), (1280, 720), (160, 120)]))
def test_the_counter_is_read_as_it_was_painted(number: int, size_wh: tuple[int, int]) -> None:
    rgb = np.full((size_wh[1], size_wh[0], 3), 90, np.uint8)
    paint(rgb, number)
    assert read(rgb) == number % MODULUS


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
