"""Several streams run by themselves, each with its own query and settings; what fails in one disturbs no other."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from arr_stream.config import Settings
from arr_stream.errors import (
    AuthenticationFailed,
    BackendUnavailable,
    ConnectionFailed,
    InvalidSetting,
)
from arr_stream.keyframes.worker import KeyframeWorker, WorkerPool, make_workers
from arr_stream.live.publishing import EventHub, Subscription
from arr_stream.live.registry import LiveStreams
from arr_stream.live.runner import RunnerParts, StreamRunner
from arr_stream.sources.base import Source
from arr_stream.sources.live import open_live
from tests.live_fakes import LIGHT, TEST_PICTURE, fed_source, jpeg, no_thread_left, wait_until
from tests.live_fakes import pool as pool
from tests.media import moving_frames, write_video
from tests.test_watching import ScriptedSession


class Listening:
    """Live streams whose events are kept."""

    def __init__(self, pool: WorkerPool, parts: dict[str, Any]) -> None:
        self.hub = EventHub()
        self.events: list[dict[str, Any]] = []
        self._subscription = Subscription(lambda: self.events.extend(self._subscription.drain()))
        self.hub.subscribe(self._subscription)
        self.streams = LiveStreams(
            LIGHT,
            presets={"few": LIGHT.with_values({"selection.budget": "3"})},
            parts=RunnerParts(self.hub, pool, **parts),
            most_streams=3,
        )

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["type"] == kind]


@pytest.fixture
def parts() -> dict[str, Any]:
    """What a test gives its runners beside the usual."""
    return {}


@pytest.fixture
def listening(pool: WorkerPool, parts: dict[str, Any]) -> Iterator[Listening]:
    with no_thread_left():
        made = Listening(pool, parts)
        yield made
        made.streams.close()


def live(runner: StreamRunner, frames: int = 1) -> StreamRunner:
    wait_until(lambda: runner.status()["state"] == "live" and runner.status()["frames"] >= frames)
    return runner


def test_streams_are_added_and_removed_while_others_run(listening: Listening) -> None:
    streams = listening.streams
    first = live(streams.add(TEST_PICTURE, query=["red"], name="door"))
    second = live(streams.add(TEST_PICTURE, preset="few", settings={"keyframes.interval": 9}))
    assert [runner.name for runner in streams.runners] == ["door", TEST_PICTURE]
    status = second.status()
    assert status["tokens"] == 3 and status["settings"]["keyframes.interval"] == 9 and status["preset"] == "few"
    assert first.status()["tokens"] == 12 and first.status()["query"] == ["red"]
    json.dumps(streams.statuses(), allow_nan=False)
    before = first.status()["frames"]
    assert streams.remove(second.id) and not streams.remove(second.id) and streams.get(second.id) is None
    assert not second.alive
    wait_until(lambda: first.status()["frames"] > before + 5)
    assert [len(event["streams"]) for event in listening.of("streams")] == [1, 2, 1]


def test_records_and_summaries_tell_every_frame(listening: Listening) -> None:
    runner = live(listening.streams.add(TEST_PICTURE), frames=20)
    runner.close()
    indices = [record["index"] for record in runner.publisher.records()]
    told = [point[0] for event in listening.of("summary") for point in event["points"]]
    assert indices == sorted(set(indices)) and told == indices[: len(told)] and len(told) > 5
    assert not listening.of("frame"), "only for those who name it"


class Failing:
    """Opens only from the `good`th time on."""

    def __init__(self, error: Exception, good: int = 99) -> None:
        self.error, self.good, self.times = error, good, 0

    def __call__(self, settings: Settings, on_state: Any, interrupt: Any) -> Source:
        self.times += 1
        if self.times < self.good:
            raise self.error
        return open_live(TEST_PICTURE, settings, on_state=on_state, interrupt=interrupt)


def test_a_source_that_is_down_is_tried_again_and_disturbs_nobody(listening: Listening) -> None:
    opener = Failing(ConnectionFailed("rtsp://host/x: refused", remedy="start the server"), good=3)
    other = live(listening.streams.add(TEST_PICTURE))
    runner = listening.streams.add("rtsp://user:secret@host/x", opener=opener)
    wait_until(lambda: runner.status()["state"] == "failed")
    assert "refused" in runner.status()["message"] and "next attempt in" in runner.status()["message"]
    live(runner)
    assert opener.times == 3 and other.status()["state"] == "live"
    assert "secret" not in json.dumps(listening.events)


def test_a_wrong_password_is_not_tried_again_by_itself(listening: Listening) -> None:
    opener = Failing(AuthenticationFailed("rtsp://host/x: wrong password"), good=2)
    runner = listening.streams.add("rtsp://host/x", opener=opener)
    wait_until(lambda: runner.status()["state"] == "failed")
    time.sleep(1.5)
    assert opener.times == 1
    runner.retry()
    live(runner)


def test_a_stream_that_is_removed_while_its_server_is_mute_ends_at_once(listening: Listening) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}/x"
        runner = listening.streams.add(address, settings={"live.connect_seconds": 600})
        server.accept()
        began = time.monotonic()
        assert listening.streams.remove(runner.id)
        assert time.monotonic() - began < 2.0 and not runner.alive


def test_an_unexpected_error_is_told_and_only_this_stream_stands(listening: Listening) -> None:
    runner = listening.streams.add("x", opener=Failing(ZeroDivisionError("oh")))
    wait_until(lambda: runner.status()["state"] == "failed")
    assert runner.status()["message"].startswith("ZeroDivisionError: oh; next attempt in") and runner.alive


def test_a_file_ends_and_can_be_shown_again(listening: Listening, tmp_path: Path) -> None:
    runner = listening.streams.add(str(write_video(tmp_path / "clip.mp4", moving_frames(15, (160, 128)))))
    wait_until(lambda: runner.status()["state"] == "ended", 60)
    before = runner.status()["frames"]
    runner.retry()
    wait_until(lambda: runner.status()["frames"] > before)
    # What is asked while it runs is no wish to see it a third time.
    runner.retry()
    wait_until(lambda: runner.status()["state"] == "ended", 60)
    assert runner.status()["frames"] + runner.status()["dropped"] == 2 * 15
    assert [record["index"] for record in runner.publisher.records()] == list(range(before))


def test_a_source_that_cannot_be_opened_again_takes_its_channel_with_it(listening: Listening) -> None:
    source = fed_source()
    runner = listening.streams.add("browser camera", opener=lambda *_: source, once=True)
    for number in range(5):
        source.push(jpeg(number), time.monotonic())
        time.sleep(0.02)
    live(runner)
    source.finish()
    wait_until(lambda: not listening.streams.runners and not runner.alive)
    assert listening.of("streams")[-1]["streams"] == []


class TestModel:
    """A stream with a model to ask."""

    sessions: list[ScriptedSession]

    @pytest.fixture
    def parts(self) -> dict[str, Any]:
        self.sessions = []
        return {"make_session": lambda settings: self.sessions.append(ScriptedSession()) or self.sessions[-1]}

    def test_is_asked_at_once_every_so_often_and_no_more(self, listening: Listening) -> None:
        runner = live(listening.streams.add(TEST_PICTURE, settings={"vlm.fps": 10}))
        runner.question("What is there?")
        wait_until(lambda: listening.of("answer"))
        answer = listening.of("answer")[0]
        assert answer["question"] == "What is there?" and answer["text"] == "fine" and answer["stream"] == runner.id
        kinds = [event["type"] for event in listening.events if event["type"] in ("asking", "text", "answer")]
        assert kinds[:3] == ["asking", "text", "answer"]
        runner.question("And now?", "every", 0.2)
        assert runner.status()["plan"] == {"question": "And now?", "when": "every", "every_seconds": 0.2}
        wait_until(lambda: len(listening.of("answer")) >= 3)
        assert [each["question"] for each in runner.publisher.answers][1:3] == ["And now?"] * 2
        runner.ask_no_more()
        time.sleep(0.3)
        count = len(listening.of("answer"))
        time.sleep(0.5)
        assert len(listening.of("answer")) == count and runner.status()["plan"] is None
        with pytest.raises(InvalidSetting):
            runner.question("x", "every", 0.0)
        listening.streams.close()
        assert self.sessions[0].closed


class TestNoModel:
    """A model that cannot be made ends the run."""

    @pytest.fixture
    def parts(self) -> dict[str, Any]:
        def make_session(settings: Settings) -> Any:
            raise BackendUnavailable("transformers is not installed")

        return {"make_session": make_session}

    def test_is_told(self, listening: Listening) -> None:
        runner = listening.streams.add(TEST_PICTURE)
        wait_until(lambda: runner.status()["state"] == "failed")
        assert runner.status()["message"] == "transformers is not installed"


def test_what_is_asked_and_set_while_it_is_opened_holds_from_the_first_frame(
    listening: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening, go_on = threading.Event(), threading.Event()

    def slow(*args: Any, **options: Any) -> Source:
        opening.set()
        assert go_on.wait(20)
        return open_live(*args, **options)

    monkeypatch.setattr("arr_stream.live.registry.open_live", slow)
    runner = listening.streams.add(TEST_PICTURE)
    assert opening.wait(20)
    runner.ask_for(["red"])
    runner.configure({"selection.budget": "4"})
    go_on.set()
    status = live(runner).status()
    assert status["tokens"] == 4 and status["query"] == ["red"] and len(runner.publisher.newest.query_scores) == 1


class SlowModels:
    """Makes the usual keyframe workers, but those of 77 clusters load for a minute; calls `during` first."""

    def __init__(self) -> None:
        self.during: Callable[[], None] = lambda: None
        self.loading = threading.Event()

    def __call__(self, settings: Settings) -> tuple[KeyframeWorker, ...]:
        during, self.during = self.during, lambda: None
        during()
        if settings.keyframes.cluster_count != 77:
            return make_workers(settings)
        self.loading.set()
        return (KeyframeWorker({"start_seconds": 60.0}, factory="tests.keyframe_fakes:make_slowly"),)


class TestModelsThatLoadForLong:
    @pytest.fixture
    def models(self) -> SlowModels:
        return SlowModels()

    @pytest.fixture
    def pool(self, models: SlowModels) -> WorkerPool:
        return WorkerPool(models)

    def test_do_not_delay_the_close_of_a_stream_that_begins(self, listening: Listening, models: SlowModels) -> None:
        models.during = lambda: listening.streams.runners[0].configure({"keyframes.cluster_count": 77})
        runner = listening.streams.add(TEST_PICTURE)
        assert models.loading.wait(30)
        before = time.monotonic()
        runner.close()
        assert time.monotonic() - before < 10.0

    def test_are_those_of_the_next_run_if_the_stream_ends_meanwhile(
        self, listening: Listening, models: SlowModels
    ) -> None:
        runner = live(listening.streams.add(f"{TEST_PICTURE}:duration=2"))
        runner.configure({"keyframes.cluster_count": 77})
        assert models.loading.is_set() and runner.status()["settings"]["keyframes.cluster_count"] == 77
