"""Batches of real processes that are killed, interrupted or out of room, and are resumed afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from arr_stream.batch.job import JobFinished
from arr_stream.batch.plan import make_plan
from arr_stream.batch.runner import JobRunner
from arr_stream.records.json_lines import read_records, records_digest
from tests.batch_fakes import QUICK, attempt, contents, quick_options, write_clips
from tests.conftest import Run

pytestmark = [pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"), pytest.mark.timeout(600)]

_DEADLINE_SECONDS = 90.0


def _arguments(inputs: Path, out: Path, jobs: int) -> list[object]:
    settings = [word for key, value in QUICK.items() for word in ("--set", f"{key}={value}")]
    return ["batch", inputs, "-o", out, "--jobs", jobs, "--query", "red", "--log=json", *settings]


class _Batch:
    """A batch command as a process; `more` are further options, `before` is called in it before the command."""

    def __init__(
        self, inputs: Path, out: Path, *more: object, jobs: int = 2, before: Callable[[], None] | None = None
    ) -> None:
        command = [sys.executable, "-m", "arr_stream", *_arguments(inputs, out, jobs), *more]
        self._log = out.with_name(f"{out.name}-{time.monotonic_ns()}.log")
        with self._log.open("wb") as error:
            self.process = subprocess.Popen(
                [str(word) for word in command],
                stdout=subprocess.DEVNULL,
                stderr=error,
                # Its workers inherit the variable.
                env={**os.environ, "OMP_NUM_THREADS": "1", "TEST_BATCH": str(self._log)},
                start_new_session=True,
                preexec_fn=before,  # noqa: PLW1509
            )

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    @property
    def said(self) -> str:
        return self._log.read_text()

    def events(self, kind: str) -> int:
        """Return how many events of a kind it has reported."""
        return self.said.count(f'"event": "{kind}"')

    def workers(self) -> list[int]:
        """Return the process ids of its workers."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal() and int(entry.name) != self.process.pid:
                with contextlib.suppress(OSError):
                    command = (entry / "cmdline").read_bytes().split(b"\0")
                    mine = f"TEST_BATCH={self._log}".encode() in (entry / "environ").read_bytes().split(b"\0")
                    if mine and b"arr_stream.batch.engine:load_runner" in command:
                        found.append(int(entry.name))
        return found

    def wait(self) -> int:
        return self.process.wait(_DEADLINE_SECONDS)

    def wait_until(self, reached: Callable[[], bool]) -> bool:
        """Wait for something; False when the process ended before."""
        deadline = time.monotonic() + _DEADLINE_SECONDS
        while not reached():
            if not self.running:
                return reached()
            assert time.monotonic() < deadline, self.said
            time.sleep(0.01)
        return True


@contextlib.contextmanager
def _batch(inputs: Path, out: Path, *more: object, **options: Any) -> Iterator[_Batch]:
    batch = _Batch(inputs, out, *more, **options)
    try:
        yield batch
    finally:
        if batch.running:
            batch.process.kill()
        batch.wait()
        deadline = time.monotonic() + _DEADLINE_SECONDS
        while left := batch.workers():
            assert time.monotonic() < deadline, f"workers {left} outlived the batch"
            time.sleep(0.02)


class _Finished:
    """The finished files of an output folder, which must stay unchanged."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._done: dict[str, dict[str, tuple[int, str]]] = {}

    def check(self) -> int:
        """Return how many files are done."""
        for name, files in self._done.items():
            assert contents(self._out / "videos" / name) == files, f"{name} was touched"
        for path in (self._out / "videos").glob("*/done.json"):
            self._done.setdefault(path.parent.name, contents(path.parent))
        return len(self._done)


def _digests(out: Path) -> dict[str, str]:
    return {
        path.parent.name: json.loads(path.read_text())["digest"]
        for path in sorted((out / "videos").glob("*/done.json"))
    }


def _kill(batch: _Batch, dice: random.Random, file_seconds: float) -> bool:
    """Kill the coordinator or a worker at a random moment; False when the batch ended before."""
    if dice.random() < 0.25:
        # Any moment of the start.
        moment = time.monotonic() + dice.random() * 4
        batch.wait_until(lambda: time.monotonic() > moment)
    else:
        begun = batch.events("started")
        batch.wait_until(lambda: batch.events("started") > begun)
        time.sleep(dice.random() * file_seconds)
    workers = batch.workers()
    victim = dice.choice(workers) if workers and dice.random() < 0.4 else batch.process.pid
    if not batch.running:
        return False
    try:
        os.kill(victim, signal.SIGKILL)
    except ProcessLookupError:
        return False
    if victim == batch.process.pid:
        batch.wait()
    return True


@pytest.mark.parametrize(
    ("files", "kills", "frames", "jobs", "seed"),
    [(3, 2, 20, 1, 1), pytest.param(20, 30, 90, 2, 7, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])],
)
def test_killed_at_random_moments_nothing_is_lost_and_nothing_done_twice(
    tmp_path: Path, files: int, kills: int, frames: int, jobs: int, seed: int
) -> None:
    inputs, dice = tmp_path / "in", random.Random(seed)
    clips = write_clips(inputs, files, frames=frames)
    runner = JobRunner(quick_options(tmp_path / "undisturbed"))
    began = time.monotonic()
    for path in clips:
        assert isinstance(runner.run(attempt(path, path.stem)), JobFinished)
    file_seconds = (time.monotonic() - began) / files
    expected = _digests(tmp_path / "undisturbed")
    assert sorted(expected) == [path.stem for path in clips] and len(set(expected.values())) == files

    rounds = 0
    while kills > 0:
        out, rounds, ended = tmp_path / f"round{rounds}", rounds + 1, False
        finished = _Finished(out)
        while not ended:
            with _batch(inputs, out, "--retries", 99, jobs=jobs) as batch:
                while kills > 0 and batch.running:
                    kills -= _kill(batch, dice, file_seconds)
                if kills <= 0:
                    batch.wait()
                ended = not batch.running and batch.process.returncode == 0
                assert batch.process.poll() in (None, 0, -signal.SIGKILL), batch.said
            finished.check()
        assert _digests(out) == expected
        plan = make_plan([str(path) for path in clips], quick_options(out))
        assert {file.state for file in plan.files} == {"done"}
        for name, digest in expected.items():
            records = out / "videos" / name / "records.jsonl"
            end = read_records(records)[2]
            assert end is not None and (end.frames, end.reason) == (frames, "finished")
            assert records_digest(records) == digest
        assert not (out / ".work").exists() and not list(out.glob("errors/*"))
        assert json.loads((out / "summary.json").read_text())["done"] == files


def test_ctrl_c_ends_the_batch_soon_and_the_same_command_resumes(run: Run, tmp_path: Path) -> None:
    inputs, out = tmp_path / "in", tmp_path / "out"
    write_clips(inputs, 3, frames=60)

    with _batch(inputs, out, jobs=1) as batch:
        assert batch.wait_until(lambda: batch.events("finished") >= 1 and batch.events("started") >= 2)
        batch.process.send_signal(signal.SIGINT)
        assert batch.wait() == 130, batch.said
        assert batch.said.splitlines()[-1] == "arr-stream: interrupted"
    assert not (out / ".work").exists()
    finished = _Finished(out)
    done = finished.check()
    assert 1 <= done < 3
    assert json.loads((out / "summary.json").read_text())["reason"] == "interrupted"
    code, _, err = run(*_arguments(inputs, out, 1))
    assert code == 0 and err.count('"event": "finished"') == 3 - done, err
    assert finished.check() == 3


@pytest.mark.slow
def test_a_full_disk_ends_the_batch_and_the_same_command_resumes(tmp_path: Path) -> None:
    inputs, out = tmp_path / "in", tmp_path / "out"
    write_clips(inputs, 4, frames=40)

    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (12_000, resource.RLIM_INFINITY))

    with _batch(inputs, out, before=small_files) as batch:
        assert batch.wait() == 22, batch.said
        assert batch.said.splitlines()[-1].endswith("then run the same command again")
    assert not (out / "videos").exists() and not (out / "errors").exists()
    assert batch.events("started") <= 2
    with _batch(inputs, out) as batch:
        assert batch.wait() == 0, batch.said
    assert len(_digests(out)) == 4


@pytest.mark.slow
def test_a_file_that_always_kills_its_worker_is_given_up_and_the_others_are_done(tmp_path: Path) -> None:
    inputs, out = tmp_path / "in", tmp_path / "out"
    write_clips(inputs, 2, frames=8)
    write_clips(tmp_path / "more", 1, frames=600, size_wh=(320, 240))[0].rename(inputs / "poison.mp4")

    with _batch(inputs, out, "--retries", 1, jobs=1) as batch:
        for number in (1, 2):
            mark = f'"event": "started", "name": "poison", "attempt": {number}'
            assert batch.wait_until(lambda mark=mark: mark in batch.said)
            (worker,) = batch.workers()
            os.kill(worker, signal.SIGKILL)
        assert batch.wait() == 100, batch.said
    told = json.loads((out / "errors" / "poison.json").read_text())
    assert told["kind"] == "WorkerLost" and "SIGKILL" in told["message"] and told["attempts"] == 2
    assert sorted(_digests(out)) == ["clip00", "clip01"]


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--set", "selection.per_second=40")], ids=["each frame", "over time"])
def test_results_do_not_depend_on_the_number_of_jobs_or_the_order(tmp_path: Path, options: tuple[object, ...]) -> None:
    given = write_clips(tmp_path / "in", 4, frames=20)
    found = []
    for jobs, order in ((1, 1), (3, -1)):
        out = tmp_path / f"out{jobs}"
        first, *others = given[::order]
        with _batch(first, out, *others, *options, jobs=jobs) as batch:
            assert batch.wait() == 0, batch.said
        found.append(_digests(out))
    assert found[0] == found[1] and len(found[0]) == 4
