"""Runs end, always: on success, on errors of any part, and when they are told to stop."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest

import arr_stream
from arr_stream.config import Settings
from arr_stream.consumer import BackgroundConsumer, Outcome
from arr_stream.errors import ConsumerFailed, DiskFull
from arr_stream.outputs import records_of
from arr_stream.patch_set import PatchSet
from arr_stream.records.json_lines import read_records
from arr_stream.run import run
from arr_stream.stream import Stream
from arr_stream.types import Frame
from tests.choices import choose
from tests.media import write_video
from tests.scenes import moving_square

SETTINGS = Settings().with_values({"keyframes.text": "none", "selection.budget": "12"})


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("clip") / "clip.mp4"
    write_video(path, [frame.rgb for frame in moving_square(12)])
    return path


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + 3
    while (left := set(threading.enumerate()) - before) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not [thread.name for thread in left if thread.name.startswith("arr-stream")]


class Collecting:
    """Keeps indices; raises on frame `failing`."""

    def __init__(self, failing: int | None = None, error: Exception | None = None) -> None:
        self.indices: list[int] = []
        self.closed: list[tuple[bool, Outcome | None]] = []
        self._failing, self._error = failing, error or ValueError("broken pipe to nowhere")

    def consume(self, frame: Frame, patches: PatchSet) -> None:
        if frame.index == self._failing:
            raise self._error
        self.indices.append(patches.index)

    def close(self, *, failed: bool = False, outcome: Outcome | None = None) -> None:
        self.closed.append((failed, outcome))


def _stream(clip: Path) -> Stream:
    return arr_stream.open(clip, settings=SETTINGS)


@pytest.mark.parametrize("wrap", [lambda consumer: consumer, BackgroundConsumer], ids=["in step", "beside"])
def test_every_consumer_gets_every_frame_and_is_closed(clip: Path, wrap) -> None:
    first, second = Collecting(), Collecting()
    result = run(_stream(clip), [wrap(first), wrap(second)])
    assert (result.frames, result.reason, result.error) == (12, "finished", None)
    assert first.indices == second.indices == list(range(12))
    ((_, outcome),) = first.closed
    assert len(second.closed) == 1 and outcome is not None and outcome.counters["frames"] == 12


@pytest.mark.parametrize("wrap", [lambda consumer: consumer, BackgroundConsumer], ids=["in step", "beside"])
@pytest.mark.parametrize("error", [ValueError("broken"), DiskFull("out.mp4: no space")])
@pytest.mark.parametrize("frame", [5, 11])
def test_a_failing_consumer_ends_the_run_with_its_error(clip: Path, wrap, error: Exception, frame: int) -> None:
    bystander = Collecting()
    result = run(_stream(clip), [bystander, wrap(Collecting(frame, error))])
    assert result.reason == "failed"
    assert result.error is error or isinstance(result.error, ConsumerFailed)
    assert str(error) in str(result.error)
    # What fails beside on the last frame is heard of when it is closed.
    assert bystander.closed[0][0] is (frame == 5 or wrap is not BackgroundConsumer)
    assert frame <= len(bystander.indices) <= 12


def test_what_finds_no_room_in_the_background_is_left_out_and_told_of_where_that_is_wanted() -> None:
    may_go = threading.Event()

    class Waiting(Collecting):
        def consume(self, frame: Frame, patches: PatchSet) -> None:
            may_go.wait()
            super().consume(frame, patches)

    waiting = Waiting()
    background = BackgroundConsumer(waiting, depth=3, drops_for="out.mp4")
    for index in range(20):
        frame = Frame(index, index / 50, np.zeros((2, 2, 3), np.uint8))
        background.consume(frame, choose(frame))
    assert background.dropped in (16, 17)
    may_go.set()
    background.close()
    assert waiting.indices == sorted(waiting.indices) and len(waiting.indices) == 20 - background.dropped
    assert background.notices == [f"out.mp4: frames dropped because the consumer was too slow: {background.dropped}"]


def test_stop_ends_after_the_present_frame(clip: Path) -> None:
    stop, consumer = threading.Event(), Collecting()

    def on_frame(patches: PatchSet) -> None:
        if patches.index == 3:
            stop.set()

    result = run(_stream(clip), [consumer], on_frame=on_frame, stop=stop)
    assert (result.reason, result.frames) == ("interrupted", 4)


def test_keyboard_interrupt_closes_consumers(clip: Path, tmp_path: Path) -> None:
    stream = _stream(clip)

    def on_frame(patches: PatchSet) -> None:
        if patches.index == 2:
            raise KeyboardInterrupt

    result = run(stream, [records_of(stream, tmp_path / "r.jsonl")], on_frame=on_frame)
    assert result.reason == "interrupted"
    end = read_records(tmp_path / "r.jsonl")[2]
    assert end is not None
    assert (end.frames, end.reason) == (3, "interrupted")


def test_a_stream_answers_a_new_query_on_the_next_frame(clip: Path) -> None:
    with arr_stream.open(clip, settings=SETTINGS) as stream:
        for patches in stream:
            if patches.index == 2:
                assert patches.query_scores == ()
                stream.ask("red")
            if patches.index == 3:
                assert patches.query_scores[0] > 0.6
                break
