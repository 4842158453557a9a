"""The worker process, with real processes and generators that misbehave."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arr_stream.config import Settings
from arr_stream.errors import BackendUnavailable, KeyframeFailed
from arr_stream.keyframes.base import KeyframePart, PartName
from arr_stream.keyframes.generate import KeyframeFailure
from arr_stream.keyframes.worker import KeyframeWorker, KeyframeWorkers, WorkerPool
from arr_stream.types import Clusters, Embedding
from tests import keyframe_fakes as fakes

Outcome = KeyframePart | KeyframeFailure


@contextmanager
def worker(
    factory: str = "make_fake",
    timeout_seconds: float = 30.0,
    parts: tuple[PartName, ...] = ("embedding",),
    **settings: Any,
) -> Iterator[KeyframeWorkers]:
    factory = f"tests.keyframe_fakes:{factory}"
    one = KeyframeWorker(settings, parts=parts, factory=factory, timeout_seconds=timeout_seconds)
    with closing(KeyframeWorkers([one], one.close)) as made:
        yield made


def until(true: Callable[[], Any], seconds: float = 20.0) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := true():
            return value
        time.sleep(0.005)
    raise AssertionError(f"not so within {seconds} s")


def outcome(of: KeyframeWorkers, index: int) -> Outcome:
    """What comes of a frame; waits out a pause after failures."""
    until(lambda: of.submit(fakes.request(index)))
    (arrived,) = until(of.collect)
    assert arrived.index == index
    return arrived


def running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def pid_of(arrived: Outcome) -> int:
    assert isinstance(arrived, KeyframePart), arrived
    return int(arrived.backend)


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_result_is_what_the_generator_made_in_another_process() -> None:
    with worker() as made:
        assert made.wait_ready(20.0)
        arrived = outcome(made, 51)
    assert pid_of(arrived) != os.getpid()
    assert isinstance(arrived, KeyframePart)
    assert arrived.part == "embedding"
    assert isinstance(arrived.value, Embedding)
    np.testing.assert_allclose(arrived.value.values, 51 / 255, rtol=1e-6)
    assert arrived.value.values.flags.writeable


def test_submit_never_waits_even_for_large_pictures_and_a_slow_start() -> None:
    large = fakes.request(0, (3840, 2160))
    with worker("make_slowly", start_seconds=2.0) as made:
        assert made.submit(large)
        assert not made.submit(large)
        assert made.collect() == []
        assert not made.wait_ready(0.05), "none of these calls waited for the worker's start"
        (arrived,) = until(made.collect)
    assert isinstance(arrived, KeyframePart)


FAULTS = {
    1: ("raise", "ArithmeticError: raised by the fake"),
    3: ("nan", "embedding: values from nan"),
    5: ("exit", "the process ended with exit code 7"),
    7: ("segfault", "the process was ended by SIGSEGV"),
    9: ("hang", "longer than 1 s"),
}


def test_failure_is_reported_with_its_cause_and_the_next_one_works() -> None:
    with worker(timeout_seconds=1.0, do={index: fault[0] for index, fault in FAULTS.items()}) as made:
        before = pid_of(outcome(made, 0))
        for index, (do, words) in FAULTS.items():
            failed = outcome(made, index)
            assert isinstance(failed, KeyframeFailure)
            assert words in failed.message and "\n" not in failed.message
            after = pid_of(outcome(made, index + 1))
            lives = do in ("raise", "nan")
            assert (before == after) == running(before) == lives
            before = after


def test_process_that_died_while_idle_is_replaced_without_a_failure() -> None:
    with worker() as made:
        pid = pid_of(outcome(made, 0))
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert pid_of(outcome(made, 1)) != pid


def test_repeated_deaths_are_tried_again_ever_later() -> None:
    with worker("make_dying") as made:
        with pytest.raises(KeyframeFailed, match="exit code 9"):
            made.wait_ready(20.0)
        assert isinstance(outcome(made, 0), KeyframeFailure)
        assert isinstance(outcome(made, 1), KeyframeFailure)
        assert not made.submit(fakes.request(2))


@pytest.mark.parametrize(
    ("factory", "error", "words"),
    [
        ("make_unavailable", BackendUnavailable, "text nothing needs a package; install it"),
        ("make_broken", KeyframeFailed, "KeyError"),
    ],
)
def test_start_that_fails_says_why(factory: str, error: type[Exception], words: str) -> None:
    with worker(factory) as made:
        with pytest.raises(error, match=words):
            made.wait_ready(20.0)
        failed = outcome(made, 0)
    assert isinstance(failed, KeyframeFailure)
    assert words in failed.message


@pytest.mark.parametrize("state", ["starting", "busy", "failed"])
def test_close_ends_process_and_thread_at_once(state: str) -> None:
    threads = threading.active_count()
    settings: dict[str, Any] = {"start_seconds": 60 if state == "starting" else 0, "do": {1: "hang"}}
    with worker("make_broken" if state == "failed" else "make_slowly", **settings) as made:
        pid = 0
        if state == "busy":
            pid = pid_of(outcome(made, 0))
            until(lambda: made.submit(fakes.request(1)))
            time.sleep(0.1)
        elif state == "starting":
            time.sleep(0.2)
        else:
            with pytest.raises(KeyframeFailed):
                made.wait_ready(20.0)
        started = time.monotonic()
        made.close()
        assert time.monotonic() - started < 2.0
        made.close()
        assert not made.submit(fakes.request(2))
    assert not pid or not running(pid)
    until(lambda: threading.active_count() == threads)


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc")
def test_no_descriptor_and_no_zombie_is_left_behind() -> None:
    with worker() as made:
        outcome(made, 0)
    before = open_descriptors()
    with worker(do={1: "exit"}) as made:
        pids = [pid_of(outcome(made, 0))]
        outcome(made, 1)
        pids.append(pid_of(outcome(made, 2)))
    assert open_descriptors() == before
    # A process that has ended but was not waited for still answers.
    assert not [pid for pid in pids if running(pid)]


SCRIPT = """
    import signal, sys, time
    # A shell that starts the tests in the background has it ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    from tests import keyframe_fakes as fakes
    from arr_stream.keyframes.worker import KeyframeWorker
    worker = KeyframeWorker({"do": {1: "hang"}}, parts=["embedding"], factory="tests.keyframe_fakes:make_fake")
    arrived = []
    worker.submit(fakes.request(0), arrived.append)
    while not arrived:
        time.sleep(0.01)
    print(arrived[0].backend, flush=True)
    while not worker.submit(fakes.request(1), arrived.append):
        time.sleep(0.01)
    try:
        time.sleep(60)
    except KeyboardInterrupt:
        pass
    if "close" in sys.argv:
        worker.close()
        print("closed", flush=True)
"""


@pytest.mark.skipif(os.name != "posix", reason="POSIX signals")
@pytest.mark.parametrize("how", ["interrupt close", "kill"])
def test_process_ends_with_its_owner_and_is_silent_on_interrupt(tmp_path: Path, how: str) -> None:
    """A script without a `__main__` guard, in a process group of its own, gets Ctrl-C or dies in mid-generation."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    path = os.pathsep.join(entry for entry in sys.path if entry)
    owner = subprocess.Popen(
        [sys.executable, str(script), *how.split()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        process_group=0,
    )
    assert owner.stdout is not None
    pid = int(owner.stdout.readline())
    time.sleep(0.1)
    os.killpg(owner.pid, signal.SIGINT) if "interrupt" in how else owner.kill()
    said, complaints = owner.communicate(timeout=10)
    assert complaints == ""
    assert said == ("closed\n" if "close" in how else "")
    until(lambda: not running(pid) or Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z", seconds=5.0)


def test_parts_arrive_as_they_are_made_and_a_lost_process_loses_only_the_rest() -> None:
    parts: tuple[PartName, ...] = ("clusters", "embedding", "text")
    with worker(parts=parts, timeout_seconds=1.0, do={1: "hang"}, to=["text"]) as made:
        assert made.submit(fakes.request(0)) == parts
        arrived: list[Outcome] = []
        until(lambda: arrived.extend(made.collect()) or len(arrived) == 3)
        assert [one.part for one in arrived if isinstance(one, KeyframePart)] == list(parts)
        until(lambda: made.submit(fakes.request(1)))
        arrived.clear()
        until(lambda: arrived.extend(made.collect()) or len(arrived) == 2)
        assert made.submit(fakes.request(2)) == ()
        until(lambda: arrived.extend(made.collect()) or len(arrived) == 3)
    assert isinstance(arrived[2], KeyframeFailure)
    assert arrived[2].parts == ("text",)


def random_request(index: int) -> fakes.KeyframeRequest:
    asked = fakes.request(index, (320, 192))
    asked.frame.rgb[:] = np.random.default_rng(0).integers(0, 255, asked.frame.rgb.shape, np.uint8)
    return asked


def test_standard_generators_in_several_workers() -> None:
    settings = Settings().with_values(
        {"keyframes.clusters": "grid", "keyframes.cluster_count": 12, "keyframes.objects": "off"}
    )
    with closing(WorkerPool().lease(settings)) as made:
        assert [one.parts for one in made.workers] == [("clusters", "embedding"), ("text",)]
        assert made.wait_ready(60.0)
        assert made.submit(random_request(5)) == ("clusters", "embedding", "text")
        arrived: list[Outcome] = []
        until(lambda: arrived.extend(made.collect()) or len(arrived) == 3)
        pids = [one._process.process_id for one in made.workers if one._process is not None]
    parts = {one.part: one for one in arrived if isinstance(one, KeyframePart)}
    assert {name: part.backend for name, part in parts.items()} == {
        "clusters": "grid",
        "embedding": "appearance",
        "text": parts["text"].backend,
    }
    assert parts["text"].backend.startswith("auto: rapidocr")
    assert isinstance(parts["clusters"].value, Clusters)
    assert parts["clusters"].value.count == 12
    assert len(pids) == 2
    assert not any(map(running, pids))
