"""The source that a browser fills: who wins, when it ends, what it refuses."""

from __future__ import annotations

import threading
from itertools import pairwise

import numpy as np
import pytest

from arr_stream.config import Settings
from arr_stream.errors import ConnectionFailed, SourceTooLarge, StreamSilent
from arr_stream.sources.live.browser import BrowserSource
from arr_stream.types import ByteArray, Frame
from tests.live_fakes import wait_until

EVERY = {"live.policy": "every", "live.buffer_frames": 4}


def picture(value: int, size_wh: tuple[int, int] = (32, 16)) -> ByteArray:
    return np.full((size_wh[1], size_wh[0], 3), value, np.uint8)


def source(**values: object) -> BrowserSource:
    return BrowserSource("camera of a browser", Settings().with_values(values))


def test_the_newest_wins() -> None:
    with source() as made:
        for n in range(5):
            assert made.push(picture(n), 10.0 + n)
        frame = next(made.frames())
        assert frame.rgb[0, 0, 0] == 4 and frame.index == 0
        assert frame.captured_seconds == 14.0 and frame.pts_seconds == 4.0
        assert made.dropped == 4 and made.stats.frames == 1


def test_every_one_is_kept_while_there_is_room() -> None:
    with source(**EVERY) as made:
        for n in range(6):
            made.push(picture(n), 10.0 + n)
        frames = made.frames()
        assert [int(next(frames).rgb[0, 0, 0]) for _ in range(4)] == [2, 3, 4, 5]
        assert made.dropped == 2


def test_a_waiting_reader_gets_what_comes_and_ends_when_it_is_finished() -> None:
    made = source(**EVERY)
    got: list[Frame] = []
    reader = threading.Thread(target=lambda: got.extend(made.frames()), daemon=True)
    reader.start()
    for n in range(5):
        made.push(picture(n), float(n))
        wait_until(lambda n=n: len(got) > n)  # type: ignore[misc]
    made.finish()
    reader.join(10)
    assert not reader.is_alive()
    assert [frame.index for frame in got] == list(range(5))
    assert made.push(picture(9), 9.0) is False and made.ended


def test_closing_ends_a_waiting_reader_and_tells_the_other_side_once() -> None:
    made = source()
    told: list[str] = []
    made.on_close = lambda: told.append(threading.current_thread().name)
    reader = threading.Thread(target=lambda: list(made.frames()), name="reader", daemon=True)
    reader.start()
    made.close()
    reader.join(10)
    made.close()
    assert not reader.is_alive() and len(told) == 1


def test_a_changed_size_goes_on() -> None:
    with source(**EVERY) as made:
        made.push(picture(1), 0.0)
        made.push(picture(2, (64, 48)), 0.1)
        frames = made.frames()
        assert [next(frames).size_wh for _ in range(2)] == [(32, 16), (64, 48)]
        assert made.info.size_wh == (32, 16)


def test_what_it_is_is_known_with_the_first_picture() -> None:
    with source(**{"live.connect_seconds": 0.05}) as made:
        with pytest.raises(RuntimeError, match="wait_first"):
            _ = made.info
        with pytest.raises(StreamSilent, match=r"no picture from the browser within 0.05 s"):
            made.wait_first()
        made.codec = "vp8"
        made.push(picture(1), 0.0)
        info = made.wait_first()
        assert (info.kind, info.live, info.codec, info.size_wh, info.path) == ("browser", True, "vp8", (32, 16), None)


def test_an_end_before_the_first_picture_is_told_at_once() -> None:
    made = source()
    threading.Timer(0.05, made.finish).start()
    with pytest.raises(ConnectionFailed, match="before its first picture"):
        made.wait_first(1000)


@pytest.mark.parametrize("first", [True, False])
def test_too_many_pixels_end_it_with_an_error(first: bool) -> None:
    made = source(**{"source.max_pixels": 1024})
    if not first:
        made.push(picture(1), 0.0)
        made.wait_first()
    assert made.push(picture(1, (64, 17)), 0.0) is False
    with pytest.raises(SourceTooLarge, match="64x17 are 1088 pixels, at most 1024"):
        made.wait_first() if first else list(made.frames())
    assert isinstance(made.error, SourceTooLarge)


def test_frames_can_be_taken_once() -> None:
    with source() as made:
        made.frames()
        with pytest.raises(RuntimeError, match="taken already"):
            made.frames()


def test_times_are_the_senders_while_they_agree_with_arrival() -> None:
    with source(**(EVERY | {"live.buffer_frames": 100})) as made:
        jitter = [0.0, 0.02, 0.0, 0.03, 0.01]
        for n in range(20):
            made.push(picture(n), 50.0 + n / 30 + jitter[n % 5], 1000.0 + n / 30)
        # The sender's clock jumps an hour ahead, and then back.
        for n in range(20, 40):
            made.push(picture(n), 50.0 + n / 30, 4600.0 + n / 30)
        for n in range(40, 60):
            made.push(picture(n), 50.0 + n / 30, 3.0 + n / 30)
        frames = made.frames()
        times = [next(frames).pts_seconds for _ in range(60)]
    assert times[0] == 0.0
    steps = [b - a for a, b in pairwise(times)]
    assert min(steps) >= 0 and max(steps) < 0.1
    assert steps[:19] == pytest.approx([1 / 30] * 19, abs=1e-6)
    assert times[-1] == pytest.approx(59 / 30, abs=0.1)
