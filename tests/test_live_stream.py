"""A live stream takes commands while it runs, goes on through changes, and ends at once when it is told to."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from arr_stream.config import Settings
from arr_stream.errors import BackendUnavailable, BudgetError, RegionOutsideFrame
from arr_stream.live.stream import LiveStream
from arr_stream.patch_set import PatchSet
from arr_stream.records.json_lines import read_records
from arr_stream.relevance.query import RegionQuery, parse_text
from arr_stream.run import records_of, run
from arr_stream.sources.live import open_live
from arr_stream.sources.live.browser import BrowserSource
from arr_stream.types import Frame
from tests.live_fakes import LIGHT, TEST_PICTURE, fed_source, no_thread_left, picture, wait_until


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    with no_thread_left():
        yield


class Fed:
    """A stream that is stepped by hand: push a picture, get its patch set."""

    def __init__(self, settings: Settings = LIGHT, *queries: str, size_wh: tuple[int, int] = (160, 128)) -> None:
        self.source: BrowserSource = fed_source(settings, size_wh)
        self.size_wh = size_wh
        self.said: list[str] = []
        self.stream = LiveStream(self.source, settings, [parse_text(q) for q in queries], on_notice=self.said.append)
        self._patches = iter(self.stream)
        self._pushed = 0

    def next(self) -> PatchSet:
        if self._pushed:
            self.source.push(picture(self._pushed, self.size_wh), time.monotonic())
        self._pushed += 1
        return next(self._patches)

    def until(self, true: Callable[[PatchSet], object], seconds: float = 40.0) -> PatchSet:
        deadline = time.monotonic() + seconds
        while not true(patches := self.next()):
            assert time.monotonic() < deadline, "it did not come about"
            time.sleep(0.02)
        return patches


@pytest.fixture
def fed() -> Iterator[Fed]:
    made = Fed()
    yield made
    made.stream.close()


def test_frames_do_not_wait_for_the_keyframe_models(fed: Fed) -> None:
    first = fed.next()
    assert first.index == 0 and first.keyframe_index is None
    fed.until(lambda patches: patches.parts.keys() >= {"clusters", "embedding"})


def test_settings_change_with_the_next_frame(fed: Fed) -> None:
    assert len(fed.next()) == 12
    fed.stream.configure(LIGHT.with_values({"selection.budget": "5"}))
    assert len(fed.next()) == 5
    with pytest.raises(BudgetError):
        fed.stream.configure(LIGHT.with_values({"selection.budget": "5000"}))
    assert len(fed.next()) == 5


def test_other_keyframe_models_are_loaded_beside_the_stream(fed: Fed) -> None:
    fed.until(lambda patches: "clusters" in patches.parts)
    fed.stream.configure(LIGHT.with_values({"keyframes.clusters": "slic-skimage", "selection.budget": "7"}))
    changed = fed.until(lambda patches: patches.parts.get("clusters", (0, ""))[1].startswith("slic"))
    assert len(changed) == 7


def test_models_that_cannot_be_loaded_leave_the_stream_as_it_is(fed: Fed) -> None:
    fed.next()
    fed.stream.configure(
        LIGHT.with_values({"keyframes.embeddings": "clip", "clip.model": "/nowhere/model", "models.folder": "/nowhere"})
    )
    fed.until(lambda _: fed.said)
    assert "settings were not changed" in fed.said[0]
    assert len(fed.next()) == 12


def test_models_that_cannot_be_loaded_at_the_start_end_the_run() -> None:
    settings = LIGHT.with_values({"keyframes.clusters": "sam", "models.folder": "/nowhere"})
    with LiveStream(open_live(TEST_PICTURE, settings), settings) as stream:
        result = run(stream, [])
    assert isinstance(result.error, BackendUnavailable) and result.reason == "failed"


def test_queries_and_regions_change_while_it_runs(fed: Fed) -> None:
    assert fed.next().query_scores == ()
    fed.stream.ask("red", RegionQuery((0, 32, 32, 32)))
    assert len(fed.next().query_scores) == 2
    with pytest.raises(RegionOutsideFrame):
        fed.stream.ask(RegionQuery((500, 32, 32, 32)))
    assert len(fed.next().query_scores) == 2
    fed.stream.ask()
    assert fed.next().query_scores == ()


def test_a_changed_frame_size_goes_on_and_regions_keep_their_place(fed: Fed) -> None:
    fed.stream.ask(RegionQuery((80, 64, 40, 32)))
    fed.next()
    fed.size_wh = (320, 256)
    patches = fed.next()
    assert patches.grid.size_wh == (320, 256) and patches.refresh_reason in ("size", None)
    assert fed.stream.queries == (RegionQuery((160, 128, 80, 64)),)
    fed.size_wh = (96, 64)
    assert fed.next().grid.size_wh == (96, 64)


def test_where_someone_looks_reaches_the_next_frame(fed: Fed) -> None:
    assert fed.next().texture.plane("gaze").max() == 0
    fed.stream.pointer.look(0.5, 0.5)
    plane = fed.next().texture.plane("gaze")
    assert plane.max() > 0.5 and plane[0, 0] < 0.1


def test_nothing_is_processed_while_it_is_paused(fed: Fed) -> None:
    fed.next()
    fed.stream.paused = True
    taken: list[PatchSet] = []
    taking = threading.Thread(target=lambda: taken.append(next(fed._patches)))
    taking.start()
    for number in range(3):
        fed.source.push(picture(number), time.monotonic())
        wait_until(lambda: fed.stream.waiting == 0 and not fed.source._waiting)
    assert not taken
    fed.stream.paused = False
    fed.source.push(picture(9), time.monotonic())
    taking.join(20)
    assert taken[0].index >= 3


def test_it_ends_at_once_while_it_waits_for_a_frame() -> None:
    made = Fed()
    made.next()
    threading.Timer(0.2, made.stream.close).start()
    began = time.monotonic()
    assert list(made._patches) == []
    assert time.monotonic() - began < 5


class Slow:
    """A consumer that takes so long for each frame."""

    def __init__(self, seconds: float, frames: int) -> None:
        self.seconds, self.left, self.stop = seconds, frames, threading.Event()
        self.ages: list[float] = []
        self.indices: list[int] = []

    def consume(self, frame: Frame, patches: PatchSet) -> None:
        assert frame.captured_seconds is not None
        self.ages.append(time.monotonic() - frame.captured_seconds)
        self.indices.append(frame.index)
        time.sleep(self.seconds)
        self.left -= 1
        if self.left <= 0:
            self.stop.set()

    def close(self, *, failed: bool = False, outcome: object = None) -> None: ...


def test_the_newest_frame_wins_and_what_is_dropped_is_counted() -> None:
    slow = Slow(0.2, 15)
    with LiveStream(open_live(TEST_PICTURE, LIGHT), LIGHT) as stream:
        result = run(stream, [slow], stop=slow.stop)
    assert result.frames == 15 and result.dropped >= 30
    assert slow.indices[-1] == result.frames + result.dropped - 1
    # An old frame would be as many times 0.2 s old as frames had waited before it.
    assert max(slow.ages[3:]) < 1.0


def test_every_takes_each_frame_while_the_buffer_has_room() -> None:
    settings = LIGHT.with_values({"live.policy": "every", "live.buffer_frames": 30})
    slow = Slow(0.2, 12)
    with LiveStream(open_live(TEST_PICTURE, settings), settings) as stream:
        result = run(stream, [slow], stop=slow.stop)
    assert slow.indices[:4] == [0, 1, 2, 3]
    assert result.dropped > 0 and max(slow.ages) > 0.5


def test_quality_follows_the_load_and_the_records_tell(tmp_path: Path) -> None:
    slow = Slow(0.06, 70)
    with LiveStream(open_live(TEST_PICTURE, LIGHT), LIGHT) as stream:
        path = tmp_path / "out.jsonl"
        result = run(stream, [records_of(stream, path), slow], stop=slow.stop)
    assert result.error is None
    _, frames, end = read_records(path)
    steps = [frame.quality for frame in frames]
    assert steps[0] == 0 and steps[-1] >= 1 and steps == sorted(steps)
    notices = [notice for frame in frames for notice in frame.notices if "quality" in notice]
    assert len(notices) == steps[-1] and "keyframes every 60" in notices[0]
    assert end is not None and end.dropped == result.dropped


def test_quality_stays_where_it_is_not_to_follow() -> None:
    settings = LIGHT.with_values({"live.adapt": False})
    slow = Slow(0.06, 50)
    with LiveStream(open_live(TEST_PICTURE, settings), settings) as stream:
        run(stream, [slow], stop=slow.stop)
        assert stream.quality == 0
