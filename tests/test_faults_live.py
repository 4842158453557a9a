"""Live streams when something goes wrong: the source, the clocks, a consumer, the keyframe workers."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import av
import av.error
import pytest

from arr_stream.config import Settings
from arr_stream.keyframes.base import PARTS
from arr_stream.keyframes.worker import WorkerPool
from arr_stream.live.publishing import EventHub, Subscription
from arr_stream.live.registry import LiveStreams
from arr_stream.live.runner import RunnerParts, StreamRunner
from arr_stream.patch_set import PatchSet
from arr_stream.sources.live import SourceState, camera, open_live
from arr_stream.types import Frame
from tests.fault_helpers import worker_pids
from tests.faulty_camera import Feed
from tests.faulty_keyframes import ORDERS_VARIABLE, disturbed_workers
from tests.live_fakes import LIGHT, wait_until

QUICK = LIGHT.with_values({"live.stall_seconds": 10.0, "live.adapt": False})


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arr_stream.sources.live.source.RETRY_SECONDS", 0.05)
    monkeypatch.setattr("arr_stream.sources.live.source.LONGEST_RETRY_SECONDS", 0.1)


def feed() -> Feed:
    """A camera of 160x120 at its own 30 pictures a second, through the real decoder."""
    return Feed(paced=True)


class Told:
    """What a source says of itself."""

    def __init__(self) -> None:
        self.states: list[SourceState] = []

    def names(self) -> list[str]:
        """Each state once where it is told several times in a row."""
        names = [state.state for state in self.states]
        return [name for k, name in enumerate(names) if k == 0 or names[k - 1] != name]


def take(frames: Iterator[Frame], count: int) -> list[Frame]:
    return [next(frames) for _ in range(count)]


def check_times(frames: list[Frame]) -> None:
    """Times never go back, and never leap far from those of arrival."""
    for before, after in pairwise(frames):
        step = after.pts_seconds - before.pts_seconds
        assert step >= 0
        assert before.captured_seconds is not None and after.captured_seconds is not None
        assert step <= after.captured_seconds - before.captured_seconds + 1.5


def test_a_source_that_stalls_is_opened_anew() -> None:
    made, told = feed(), Told()
    with made.open(QUICK.with_values({"live.stall_seconds": 0.8}), told.states.append) as source:
        frames = source.frames()
        seen = take(frames, 10)
        made.stalled = True
        threading.Timer(1.2, lambda: setattr(made, "stalled", False)).start()
        seen += take(frames, 20)
        assert source.stats.stalls >= 1 and source.stats.reconnects >= 1
    check_times(seen)
    assert told.names()[:5] == ["connecting", "live", "stalled", "reconnecting", "live"]
    assert any("no data for 0.8 s" in (state.message or "") for state in told.states)


@pytest.fixture
def unplugged(monkeypatch: pytest.MonkeyPatch) -> Feed:
    """/dev/video7, whose driver is the feed."""
    made = feed()
    monkeypatch.setattr(camera, "find_camera", lambda target: target)
    monkeypatch.setattr(camera, "_FORMATS", {sys.platform: "a feed"})

    def opened(device: str, *args: Any, timeout: float, **options: Any) -> Any:
        assert device == "/dev/video7"
        return made.connect(current_interrupt(), timeout)

    monkeypatch.setattr(camera, "av", SimpleNamespace(open=opened, error=av.error))
    return made


def current_interrupt() -> Any:
    from arr_stream.sources.live import connection

    return connection._CURRENT.interrupt


def test_a_camera_that_vanishes_is_found_again(unplugged: Feed) -> None:
    told = Told()
    with open_live("/dev/video7", QUICK, on_state=told.states.append) as source:
        assert source.info.kind == "camera"
        frames = source.frames()
        seen = take(frames, 5)
        unplugged.away = True
        unplugged.cut(errno.ENODEV)
        threading.Timer(0.6, lambda: setattr(unplugged, "away", False)).start()
        seen += take(frames, 5)
    check_times(seen)
    messages = [state.message or "" for state in told.states if state.state == "reconnecting"]
    assert "has stopped" in messages[0] and "cannot be opened" in messages[-1]
    assert told.names() == ["connecting", "live", "reconnecting", "live"]


class Live:
    """A stream with alerts and metrics, as the server has it."""

    def __init__(self, settings: Settings, **parts: Any) -> None:
        self.hub, self.notices, self.states = EventHub(), list[str](), set[str]()
        self._subscription = Subscription(self._hear, kinds={"state", "notice"})
        self.hub.subscribe(self._subscription)
        self.feed = feed()
        made = RunnerParts(
            self.hub,
            rules=("relevance < 1",),
            **parts,
        )
        self.streams = LiveStreams(settings, parts=made)
        self.runner: StreamRunner = self.streams.add("camera", opener=self.feed.open)

    @property
    def newest(self) -> PatchSet:
        newest = self.runner.publisher.newest
        assert newest is not None
        return newest

    def wait_frames(self, count: int) -> None:
        wanted = self.runner.status()["frames"] + count
        wait_until(lambda: self.runner.status()["frames"] >= wanted)

    def _hear(self) -> None:
        for event in self._subscription.drain():
            if event["type"] == "state":
                self.states.add(event["status"]["state"])
            else:
                self.notices.append(event["text"])


@pytest.fixture(scope="module")
def disturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    orders = tmp_path_factory.mktemp("orders")
    settings = QUICK.with_values({"keyframes.interval": 5, "keyframes.timeout_seconds": 2.0})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(ORDERS_VARIABLE, str(orders))
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        made = Live(settings, pool=WorkerPool(disturbed_workers))
        wait_until(lambda: made.runner.publisher.newest is not None)
        yield made
        made.streams.close()
    assert "failed" not in made.states and not worker_pids()


def wait_keyframe(live: Live) -> None:
    """Until every part of a keyframe that is younger than now is in use."""
    now = live.newest.index
    asked = [part for part in PARTS if part != "objects"]  # Which no query asks for.
    wait_until(lambda: all(live.newest.parts.get(part, (-1, ""))[0] > now for part in asked))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("order", "words"),
    [("raise", "ArithmeticError"), ("memory", "MemoryError"), ("nan", "nan"), ("hang", "took longer than 2 s")],
)
def test_frames_go_on_while_a_keyframe_model_fails(disturbed: Live, order: str, words: str) -> None:
    wait_keyframe(disturbed)
    path = Path(os.environ[ORDERS_VARIABLE]) / order
    path.touch()
    wait_until(lambda: not path.exists())
    disturbed.wait_frames(10)
    wait_until(lambda: any(words in notice for notice in disturbed.notices))
    wait_keyframe(disturbed)


@pytest.mark.slow
def test_a_keyframe_worker_that_is_killed_is_replaced_while_frames_go_on(disturbed: Live) -> None:
    wait_keyframe(disturbed)
    (killed,) = worker_pids()
    os.kill(killed, signal.SIGKILL)
    disturbed.wait_frames(10)
    wait_keyframe(disturbed)
    assert killed not in worker_pids()
