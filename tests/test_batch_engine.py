"""What every engine tells of workers that come and go, with a crew that says what the test wants."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from arr_stream.batch.engine import Lost, WorkerEngine
from arr_stream.batch.job import Attempt, JobFailed, JobProgress, JobStarted
from arr_stream.batch.local import LocalEngine
from arr_stream.errors import WeightsInvalid, WorkerLost
from arr_stream.processes import ChildProcess, Refused, serving_command
from tests.batch_fakes import FakeCrew, finished, quick_options
from tests.batch_fakes import attempt as attempt_at


def attempt(index: int, number: int = 1) -> Attempt:
    return attempt_at(f"/videos/{index}.mp4", str(index), index=index, number=number)


REFUSED = Refused("WeightsInvalid", "clip.pt: damaged", "fetch it again", "Traceback ...")


@pytest.fixture
def crew() -> FakeCrew:
    return FakeCrew()


@pytest.fixture
def engine(crew: FakeCrew) -> WorkerEngine:
    return WorkerEngine(crew, 2, most_lost=20)


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Lets time go by."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def passed(seconds: float) -> None:
        now[0] += seconds

    return passed


def test_a_file_is_given_to_who_has_begun(engine: WorkerEngine, crew: FakeCrew) -> None:
    engine.submit(attempt(0))
    assert engine.poll(0) == [] and not engine.begun
    crew.load(1)
    assert engine.poll(0) == [JobStarted(attempt(0), "process 101 on node")]
    assert crew.given == [[], [attempt(0)]] and engine.begun


def test_no_worker_has_two_files(engine: WorkerEngine, crew: FakeCrew) -> None:
    crew.load(0, 1)
    for index in range(5):
        engine.submit(attempt(index))
    engine.poll(0)
    assert [len(given) for given in crew.given] == [1, 1]
    crew.say(0, finished(attempt(0)))
    assert engine.poll(0) == [finished(attempt(0)), JobStarted(attempt(2), "process 100 on node")]


def test_progress_is_that_of_the_file(engine: WorkerEngine, crew: FakeCrew) -> None:
    crew.load(0)
    engine.submit(attempt(0))
    engine.poll(0)
    five, eight = JobProgress(attempt(0), 5, 10), JobProgress(attempt(0), 8, 10)
    crew.say(0, JobProgress(attempt(9), 99, None), five, five, eight)
    assert engine.poll(0) == [five, eight]


def test_a_lost_worker_is_replaced_and_its_file_told(engine: WorkerEngine, crew: FakeCrew) -> None:
    crew.load(0, 1)
    engine.submit(attempt(0))
    engine.poll(0)
    # What it still says is not heard.
    crew.say(0, JobProgress(attempt(0), 7, 10), Lost("was lost, see https://me:hush@host/"), finished(attempt(0)))
    progress, lost = engine.poll(0)
    assert isinstance(progress, JobProgress) and isinstance(lost, JobFailed)
    assert (lost.attempt, lost.frames, lost.kind, lost.retryable) == (attempt(0), 7, "WorkerLost", True)
    assert lost.exit_code == WorkerLost.exit_code
    assert lost.message.startswith("/videos/0.mp4: process 100 on node was lost") and "hush" not in lost.message
    assert len(crew.given) == 3
    engine.submit(attempt(0, 2))
    assert engine.poll(0) == [JobStarted(attempt(0, 2), "process 101 on node")]


@pytest.mark.parametrize(
    ("load", "words", "least", "most"),
    [(True, "20 in a row.*no memory", 5, 50), (False, "3 before they could begin.*no memory", 2, 6)],
)
def test_losses_in_a_row_end_it(
    engine: WorkerEngine, crew: FakeCrew, load: bool, words: str, least: int, most: int
) -> None:
    with pytest.raises(WorkerLost, match=f"again and again.*{words}"):
        for _ in range(1000):
            if load:
                crew.load(len(crew.given) - 1)
            crew.say(len(crew.given) - 1, Lost("no memory"))
            engine.poll(0)
    assert least < len(crew.given) < most


def test_losses_now_and_then_do_not(engine: WorkerEngine, crew: FakeCrew) -> None:
    crew.load(0)
    engine.poll(0)
    for number in range(60):
        engine.submit(attempt(number))
        engine.poll(0)
        crew.say(0, finished(attempt(number)))
        crew.load(len(crew.given) - 1)
        crew.say(len(crew.given) - 1, Lost("gone"))
        engine.poll(0)
    assert len(crew.given) == 62


@pytest.fixture
def stalling(crew: FakeCrew, later: Callable[[float], None]) -> WorkerEngine:
    """With one worker that has begun on a file, and may take a minute for each frame."""
    engine = WorkerEngine(crew, 1, stall_seconds=60)
    crew.load(0)
    engine.submit(attempt(0))
    engine.poll(0)
    return engine


def test_one_that_hangs_is_stopped(stalling: WorkerEngine, crew: FakeCrew, later: Callable[[float], None]) -> None:
    for frames in range(1, 5):
        later(40)
        crew.say(0, JobProgress(attempt(0), frames, None))
        assert [type(event) for event in stalling.poll(0)] == [JobProgress]
    later(40)
    crew.say(0, JobProgress(attempt(0), 4, None))
    assert stalling.poll(0) == [] == crew.killed
    later(40)
    assert stalling.poll(0) == [] and crew.killed == [0] and len(crew.given) == 1, "and waited for"
    crew.say(0, Lost("was ended by SIGKILL"))
    (lost,) = stalling.poll(0)
    assert isinstance(lost, JobFailed)
    assert (lost.kind, lost.frames, lost.retryable) == ("WorkerLost", 4, True)
    assert "no frame for 60 s" in lost.message
    assert crew.killed == [0] and len(crew.given) == 2


@pytest.mark.parametrize("done", [True, False])
def test_one_that_finished_as_it_was_stopped_is_believed(
    stalling: WorkerEngine, crew: FakeCrew, later: Callable[[float], None], done: bool
) -> None:
    later(100)
    stalling.submit(attempt(1))
    assert stalling.poll(0) == [] and crew.killed == [0]
    refused = JobFailed(attempt(0), 10, "WorkerLost", "given up meanwhile", "", 103, retryable=False)
    crew.say(0, finished(attempt(0)) if done else refused, Lost("was ended by SIGKILL"))
    (event,) = stalling.poll(0)
    assert event == finished(attempt(0)) if done else isinstance(event, JobFailed) and event.retryable
    crew.load(1)
    # The next file goes to the one that took its place.
    assert stalling.poll(0) == [JobStarted(attempt(1), "process 101 on node")]


def test_a_worker_that_cannot_be_ended_ends_it(
    stalling: WorkerEngine, crew: FakeCrew, later: Callable[[float], None]
) -> None:
    for seconds in (100, 20):
        later(seconds)
        assert stalling.poll(0) == [] and crew.killed == [0]
    later(20)
    with pytest.raises(WorkerLost, match="process 100 on node cannot be ended"):
        stalling.poll(0)


def test_nobody_waits_for_a_process_that_does_not_die(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So Ctrl-C is heard at once, and the batch ends within seconds."""
    command = serving_command("tests.batch_fakes:silent_worker")
    monkeypatch.setattr("arr_stream.batch.local.serving_command", lambda _: command)
    monkeypatch.setattr("arr_stream.batch.local._CLOSE_SECONDS", 0.2)
    kill, condemned = ChildProcess.kill, list[ChildProcess]()
    monkeypatch.setattr(ChildProcess, "kill", lambda process, *_: condemned.append(process))
    engine = LocalEngine(quick_options(tmp_path), jobs=1, stall_seconds=0.2)
    engine.submit(attempt(0))
    heard = []
    try:
        while not condemned:
            heard += engine.poll(0.2)
        assert [type(event) for event in heard] == [JobStarted, JobProgress]
        assert engine.poll(0.2) == []
        engine.close()
        assert condemned[0].alive
    finally:
        kill(condemned[0])
        condemned[0].exit_code(20)


def test_what_was_told_before_an_error_is_heard(engine: WorkerEngine, crew: FakeCrew) -> None:
    crew.load(0)
    engine.submit(attempt(0))
    engine.poll(0)
    crew.say(1, REFUSED)
    crew.say(0, finished(attempt(0)))
    engine.submit(attempt(1))
    assert engine.poll(0) == [finished(attempt(0))], "and nothing more is begun"
    for _ in range(2):
        with pytest.raises(WeightsInvalid, match=r"clip\.pt: damaged; fetch it again"):
            engine.poll(0)


def test_no_room_is_told(crew: FakeCrew, later: Callable[[float], None]) -> None:
    engine = WorkerEngine(crew, 1, start_seconds=600, room="2 cores")
    assert engine.poll(0) == []
    later(3600)
    with pytest.raises(WorkerLost, match="each takes 2 cores"):
        engine.poll(0)


def test_closing_twice(engine: WorkerEngine, crew: FakeCrew) -> None:
    engine.close()
    engine.close()
    assert crew.closed == 1


def test_a_crew_that_cannot_start_is_closed(crew: FakeCrew, monkeypatch: pytest.MonkeyPatch) -> None:
    def spawn() -> int:
        raise WorkerLost("a worker cannot be started")

    monkeypatch.setattr(crew, "spawn", spawn)
    with pytest.raises(WorkerLost):
        WorkerEngine(crew, 1)
    assert crew.closed == 1
