"""A live stream takes commands while it runs, goes on through changes, and ends at once when it is told to."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from arr_stream.errors import BackendUnavailable, BudgetError, RegionOutsideFrame, SourceDamaged
from arr_stream.keyframes.worker import WorkerPool
from arr_stream.live.live_stream import LiveReader, LiveStream
from arr_stream.outputs import records_of
from arr_stream.patch_set import PatchSet
from arr_stream.records.json_lines import read_records
from arr_stream.relevance.query import RegionQuery
from arr_stream.run import RunResult, run
from arr_stream.sources.live import open_live
from arr_stream.sources.live.browser import BrowserSource
from arr_stream.types import Frame
from tests.live_fakes import LIGHT, TEST_PICTURE, fed_source, jpeg, no_thread_left, picture, wait_until
from tests.live_fakes import pool as pool


@pytest.fixture(autouse=True)
def _no_thread_is_left(pool: WorkerPool) -> Iterator[None]:
    with no_thread_left():
        yield


class Fed:
    """A stream that is stepped by hand: push a picture, get its patch set."""

    def __init__(self, pool: WorkerPool | None) -> None:
        self.source: BrowserSource = fed_source()
        self.size_wh = (160, 128)
        self.stream = LiveStream(self.source, LIGHT, pool=pool)
        self._patches = iter(self.stream)
        self._pushed = 0

    def next(self) -> PatchSet:
        if self._pushed:
            self.source.push(jpeg(self._pushed, self.size_wh), time.monotonic())
        self._pushed += 1
        return next(self._patches)

    def until(self, true: Callable[[PatchSet], object], seconds: float = 40.0) -> PatchSet:
        deadline = time.monotonic() + seconds
        while not true(patches := self.next()):
            assert time.monotonic() < deadline, "it did not come about"
            time.sleep(0.02)
        return patches


@pytest.fixture
def fed(pool: WorkerPool) -> Iterator[Fed]:
    made = Fed(pool)
    with made.stream:
        yield made


def test_settings_change_with_the_next_frame(fed: Fed) -> None:
    assert len(fed.next()) == 12
    fed.stream.configure(LIGHT.with_values({"selection.budget": "5"}))
    assert len(fed.next()) == 5
    with pytest.raises(BudgetError):
        fed.stream.configure(LIGHT.with_values({"selection.budget": "0"}))
    assert len(fed.next()) == 5
    fed.stream.configure(LIGHT.with_values({"selection.budget": "5000"}))
    patches = fed.next()
    assert len(patches) == patches.grid.cells


def test_other_keyframe_models_are_loaded_while_the_stream_runs(fed: Fed) -> None:
    fed.until(lambda patches: "clusters" in patches.parts)
    values = {"keyframes.clusters": "features", "selection.budget": "7"}
    changing = threading.Thread(target=fed.stream.configure, args=(LIGHT.with_values(values),))
    changing.start()
    changed = fed.until(lambda patches: patches.parts.get("clusters", (0, ""))[1].startswith("features"))
    changing.join()
    assert len(changed) == 7 and fed.stream.settings == LIGHT.with_values(values)


def test_models_that_cannot_be_loaded_leave_the_stream_as_it_is(fed: Fed) -> None:
    fed.next()
    with pytest.raises(BackendUnavailable):
        fed.stream.configure(LIGHT.with_values({"keyframes.clusters": "sam", "models.folder": "/nowhere"}))
    assert len(fed.next()) == 12
    assert fed.stream.settings == LIGHT


def test_models_that_cannot_be_loaded_at_the_start_end_the_run(pool: WorkerPool) -> None:
    settings = LIGHT.with_values({"keyframes.clusters": "sam"})
    with LiveStream(open_live(TEST_PICTURE, settings), settings, pool=pool) as stream:
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


def test_each_frame_tells_where_the_region_is_by_now(fed: Fed) -> None:
    assert fed.next().region is None
    fed.stream.ask(RegionQuery((8, 32, 32, 32)))  # where the red square is on the next picture
    for value in range(1, 9):
        region = fed.next().region
        assert region is not None
        left, top, right, bottom = region[0] * 160, region[1] * 128, region[2] * 160, region[3] * 128
        # It is looked for on every third frame, and moves 8 pixels from one to the next.
        assert 8 * (value - 2) - 8 <= left <= 8 * value + 8 and right - left == pytest.approx(32, abs=12)
        assert (top, bottom) == pytest.approx((32, 64), abs=8)
    fed.stream.ask()
    assert fed.next().region is None


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
    fed.stream.pointer.set_gaze(0.5, 0.5)
    plane = fed.next().texture.plane("gaze")
    assert plane.max() > 0.5 and plane[0, 0] < 0.1


def test_nothing_is_processed_while_it_is_paused(fed: Fed) -> None:
    fed.next()
    fed.stream.paused = True
    taken: list[PatchSet] = []
    taking = threading.Thread(target=lambda: taken.append(next(fed._patches)))
    taking.start()
    for number in range(3):
        fed.source.push(jpeg(number), time.monotonic())
        wait_until(lambda: fed.stream._reader.waiting == 0 and not fed.source._waiting)
    assert not taken
    fed.stream.paused = False
    fed.source.push(jpeg(9), time.monotonic())
    taking.join(20)
    assert taken[0].index >= 3


def test_it_ends_at_once_while_it_waits_for_a_frame(fed: Fed) -> None:
    fed.next()
    threading.Timer(0.2, fed.stream.close).start()
    began = time.monotonic()
    assert list(fed._patches) == []
    assert time.monotonic() - began < 5


class Slow:
    """A consumer that takes so long for each frame."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.ages: list[float] = []
        self.indices: list[int] = []

    def consume(self, frame: Frame, patches: PatchSet) -> None:
        assert frame.captured_seconds is not None
        self.ages.append(time.monotonic() - frame.captured_seconds)
        self.indices.append(frame.index)
        time.sleep(self.seconds)

    def close(self, *, failed: bool = False, outcome: object = None) -> None: ...


def slowly(
    pool: WorkerPool, slow: Slow, frames: int, records: Path | None = None, **values: object
) -> tuple[RunResult, LiveStream]:
    """Run the test picture into a slow consumer for so many frames."""
    settings, stop = LIGHT.with_values({f"live.{key}": value for key, value in values.items()}), threading.Event()
    with LiveStream(open_live(TEST_PICTURE, settings), settings, pool=pool) as stream:
        written = [records_of(stream, records)] if records is not None else []
        stop_after = lambda _: stop.set() if len(slow.indices) >= frames else None  # noqa: E731
        return run(stream, [*written, slow], on_frame=stop_after, stop=stop), stream


def test_the_newest_frame_wins_and_what_is_dropped_is_counted(pool: WorkerPool) -> None:
    slow = Slow(0.2)
    result, _ = slowly(pool, slow, 10)
    assert result.frames == 10 and result.dropped >= 20
    assert slow.indices[-1] == result.frames + result.dropped - 1
    # An old frame would be as many times 0.2 s old as frames had waited before it.
    assert max(slow.ages[3:]) < 1.0


def test_an_error_of_the_source_arrives_after_its_frames() -> None:
    def breaking() -> Iterator[Frame]:
        yield Frame(0, 0.0, picture())
        raise SourceDamaged("cut")

    with closing(LiveReader(breaking())) as reader, pytest.raises(SourceDamaged):
        taken = []
        for frame in reader:
            taken.append(frame.index)
    assert taken == [0]


def test_quality_follows_the_load_and_the_records_tell(
    pool: WorkerPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("arr_stream.live.live_stream.WINDOW_SECONDS", 0.3)
    path = tmp_path / "out.jsonl"
    result, _ = slowly(pool, Slow(0.06), 25, path)
    assert result.error is None
    header, frames, end = read_records(path)
    assert header.provenance is not None and header.provenance.realtime and all(frame.latency_ms for frame in frames)
    steps = [frame.quality for frame in frames]
    assert steps[0] == 0 and steps[-1] >= 1 and steps == sorted(steps)
    notices = [notice for frame in frames for notice in frame.notices if "quality" in notice]
    assert len(notices) == steps[-1] and "keyframes every 60" in notices[0]
    assert end is not None and end.dropped == result.dropped
    _, stream = slowly(pool, Slow(0.06), 20, adapt=False)
    assert stream.quality == 0
