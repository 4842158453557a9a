"""What every engine tells of workers that come and go, with a crew that says what the test wants."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

import pytest

from arr_stream.batch.engine import Answer, Loaded, Lost, Message, Patience, WorkerEngine
from arr_stream.batch.job import Attempt, JobFailed, JobFinished, JobProgress, JobStarted
from arr_stream.errors import WeightsInvalid, WorkerLost
from arr_stream.processes import Refused
from tests.batch_fakes import attempt as attempt_at


def attempt(index: int, number: int = 1) -> Attempt:
    return attempt_at(f"/videos/{index}.mp4", str(index), index=index, number=number)


def finished(what: Attempt) -> JobFinished:
    return JobFinished(what, 10, 1.0, "digest", ())


REFUSED = Refused("WeightsInvalid", "clip.pt: damaged", "fetch it again", "Traceback ...")


class FakeCrew:
    """Workers by their numbers."""

    def __init__(self) -> None:
        self.given: list[list[Attempt]] = []
        self.discarded: list[int] = []
        self.said: deque[tuple[int, Message]] = deque()
        self.last_words: dict[int, Answer] = {}
        self.closed = 0

    def spawn(self) -> int:
        self.given.append([])
        return len(self.given) - 1

    def give(self, worker: int, attempt: Attempt) -> None:
        self.given[worker].append(attempt)

    def wait(self, timeout_seconds: float) -> list[tuple[int, Message]]:
        said, self.said = list(self.said), deque()
        return said

    def discard(self, worker: int) -> Answer | None:
        self.discarded.append(worker)
        return self.last_words.pop(worker, None)

    def close(self) -> None:
        self.closed += 1

    def load(self, *numbers: int) -> None:
        self.said += [(number, Loaded(100 + number, "node")) for number in numbers]

    def say(self, number: int, *messages: Message) -> None:
        self.said += [(number, message) for message in messages]


@pytest.fixture
def crew() -> FakeCrew:
    return FakeCrew()


@pytest.fixture
def engine(crew: FakeCrew) -> WorkerEngine:
    return WorkerEngine(crew, 2, Patience(lost=20))


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


def test_an_idle_worker_may_be_lost_for_nothing(engine: WorkerEngine, crew: FakeCrew) -> None:
    crew.load(0, 1)
    engine.poll(0)
    crew.say(0, Lost("gone"))
    assert engine.poll(0) == []
    assert len(crew.given) == 3


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


def test_one_that_hangs_is_stopped(crew: FakeCrew, later: Callable[[float], None]) -> None:
    engine = WorkerEngine(crew, 1, Patience(stall_seconds=60))
    crew.load(0)
    engine.submit(attempt(0))
    engine.poll(0)
    for frames in range(1, 5):
        later(40)
        crew.say(0, JobProgress(attempt(0), frames, None))
        assert [type(event) for event in engine.poll(0)] == [JobProgress]
    later(40)
    crew.say(0, JobProgress(attempt(0), 4, None))
    assert engine.poll(0) == []
    later(40)
    (lost,) = engine.poll(0)
    assert isinstance(lost, JobFailed)
    assert (lost.kind, lost.frames, lost.retryable) == ("WorkerLost", 4, True)
    assert "no frame for 60 s" in lost.message
    assert crew.discarded == [0] and len(crew.given) == 2


@pytest.mark.parametrize("done", [True, False])
def test_one_that_finished_as_it_was_stopped_is_believed(
    crew: FakeCrew, later: Callable[[float], None], done: bool
) -> None:
    engine = WorkerEngine(crew, 1, Patience(stall_seconds=60))
    crew.load(0)
    engine.submit(attempt(0))
    engine.poll(0)
    refused = JobFailed(attempt(0), 10, "WorkerLost", "given up meanwhile", "", 103, retryable=False)
    crew.last_words[0] = finished(attempt(0)) if done else refused
    later(100)
    (event,) = engine.poll(0)
    assert event == finished(attempt(0)) if done else isinstance(event, JobFailed) and event.retryable
    engine.submit(attempt(1))
    crew.load(1)
    # The next file goes to the one that took its place.
    assert engine.poll(0) == [JobStarted(attempt(1), "process 101 on node")]


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


def test_a_worker_that_cannot_be_ended_ends_it(
    crew: FakeCrew, later: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def immortal(worker: int) -> Answer | None:
        raise WorkerLost("process 100 cannot be ended")

    monkeypatch.setattr(crew, "discard", immortal)
    engine = WorkerEngine(crew, 1, Patience(stall_seconds=60))
    crew.load(0)
    engine.submit(attempt(0))
    engine.poll(0)
    later(100)
    with pytest.raises(WorkerLost, match="cannot be ended"):
        engine.poll(0)


def test_no_room_is_told(crew: FakeCrew, later: Callable[[float], None]) -> None:
    engine = WorkerEngine(crew, 1, Patience(start_seconds=600, room="2 cores"))
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
        WorkerEngine(crew, 1, Patience())
    assert crew.closed == 1
