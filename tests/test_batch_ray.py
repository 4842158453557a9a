"""The Ray engine: what it tells of actors that come and go, and the same results as by processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import types
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from arr_stream.batch.job import Attempt, Job, JobFailed, JobFinished, JobOptions, JobProgress, JobStarted
from arr_stream.batch.local_worker import Refused
from arr_stream.batch.ray_cluster import Actor, Answer, Lost, Message, Need, Node, RayCluster, share
from arr_stream.batch.ray_engine import RayEngine
from arr_stream.batch.ray_worker import Loaded, RayWorker, Sign
from arr_stream.config import Settings
from arr_stream.errors import InvalidSetting, OutputUnwritable, WeightsInvalid, WorkerLost
from arr_stream.records.parquet import read_parquet_records
from tests.media import moving_frames, write_video

FAST = {"keyframes.text": "none", "selection.budget": "12"}


def options(folder: Path, **changes: Any) -> JobOptions:
    settings = Settings().with_values(FAST | changes.pop("settings", {}))
    return JobOptions(folder=str(folder), settings=settings.model_dump(mode="json"), **changes)


def attempt(index: int, number: int = 1) -> Attempt:
    return Attempt(Job(index, f"/videos/{index}.mp4", str(index)), number)


def finished(what: Attempt) -> JobFinished:
    return JobFinished(what, 10, 1.0, "digest", ())


class FakeCluster:
    """A cluster whose actors say what the test wants."""

    def __init__(self, *nodes: Node) -> None:
        self._nodes = nodes or (Node(4),)
        self.actors: list[Actor] = []
        self.needs: list[Need] = []
        self.given: dict[Actor, list[Attempt]] = {}
        self.asked: list[Actor] = []
        self.discarded: list[Actor] = []
        self.replies: deque[tuple[Actor, Message]] = deque()
        self.last_words: dict[Actor, Answer] = {}
        self.closed = 0

    def nodes(self) -> tuple[Node, ...]:
        return self._nodes

    def spawn(self, need: Need) -> Actor:
        actor = Actor(handle=len(self.actors))
        self.actors.append(actor)
        self.needs.append(need)
        self.given[actor] = []
        return actor

    def give(self, actor: Actor, attempt: Attempt) -> None:
        self.given[actor].append(attempt)

    def ask(self, actor: Actor) -> None:
        self.asked.append(actor)

    def wait(self, timeout_seconds: float) -> list[tuple[Actor, Message]]:
        replies, self.replies = list(self.replies), deque()
        return replies

    def discard(self, actor: Actor) -> Answer | None:
        self.discarded.append(actor)
        return self.last_words.pop(actor, None)

    def close(self) -> None:
        self.closed += 1

    def load(self, *numbers: int) -> None:
        self.replies += [(self.actors[number], Loaded("node", 100 + number)) for number in numbers]

    def say(self, number: int, message: Message) -> None:
        self.replies.append((self.actors[number], message))


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
def engine(cluster: FakeCluster, tmp_path: Path) -> RayEngine:
    return RayEngine(options(tmp_path), jobs=2, cluster=cluster)


class TestEvents:
    def test_a_file_is_given_to_who_has_begun(self, engine: RayEngine, cluster: FakeCluster) -> None:
        engine.submit(attempt(0))
        assert engine.poll(0) == []
        cluster.load(1)
        assert engine.poll(0) == [JobStarted(attempt(0), "process 101 on node")]
        assert cluster.given[cluster.actors[1]] == [attempt(0)]

    def test_no_actor_has_two_files(self, engine: RayEngine, cluster: FakeCluster) -> None:
        cluster.load(0, 1)
        for index in range(5):
            engine.submit(attempt(index))
        engine.poll(0)
        assert [len(given) for given in cluster.given.values()] == [1, 1]
        cluster.say(0, finished(attempt(0)))
        assert engine.poll(0) == [finished(attempt(0)), JobStarted(attempt(2), "process 100 on node")]

    def test_progress_is_that_of_the_file(self, engine: RayEngine, cluster: FakeCluster) -> None:
        cluster.load(0)
        engine.submit(attempt(0))
        engine.poll(0)
        told = [
            JobProgress(attempt(9), 99, None),
            None,
            JobProgress(attempt(0), 5, 10),
            JobProgress(attempt(0), 5, 10),
            JobProgress(attempt(0), 8, 10),
        ]
        for message in told:
            cluster.say(0, message)
        assert engine.poll(0) == [told[2], told[4]]

    def test_how_far_files_are_is_asked_now_and_then(
        self, engine: RayEngine, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now = [1000.0]
        monkeypatch.setattr(time, "monotonic", lambda: now[0])
        cluster.load(0)
        engine.submit(attempt(0))
        engine.poll(0)
        for _ in range(100):
            now[0] += 0.05
            engine.poll(0)
        assert 4 <= len(cluster.asked) <= 5
        assert set(cluster.asked) == {cluster.actors[0]}, "who has no file is not asked"

    def test_a_lost_actor_is_replaced_and_its_file_told(self, engine: RayEngine, cluster: FakeCluster) -> None:
        cluster.load(0, 1)
        engine.submit(attempt(0))
        engine.poll(0)
        cluster.say(0, JobProgress(attempt(0), 7, 10))
        cluster.say(0, Lost("its node went away, see https://me:hush@host/"))
        progress, lost = engine.poll(0)
        assert isinstance(progress, JobProgress)
        assert isinstance(lost, JobFailed)
        assert (lost.attempt, lost.frames, lost.kind, lost.retryable) == (attempt(0), 7, "WorkerLost", True)
        assert lost.exit_code == WorkerLost.exit_code
        assert "its node went away" in lost.message
        assert "hush" not in lost.message
        assert len(cluster.actors) == 3
        engine.submit(attempt(0, 2))
        assert engine.poll(0) == [JobStarted(attempt(0, 2), "process 101 on node")]

    def test_what_a_lost_actor_still_says_is_not_heard(self, engine: RayEngine, cluster: FakeCluster) -> None:
        cluster.load(0)
        engine.submit(attempt(0))
        engine.poll(0)
        cluster.say(0, Lost("gone"))
        cluster.say(0, finished(attempt(0)))
        assert [type(event) for event in engine.poll(0)] == [JobFailed]

    def test_an_idle_actor_may_be_lost_for_nothing(self, engine: RayEngine, cluster: FakeCluster) -> None:
        cluster.load(0, 1)
        engine.poll(0)
        cluster.say(0, Lost("gone"))
        assert engine.poll(0) == []
        assert len(cluster.actors) == 3

    def test_losses_in_a_row_end_it(self, engine: RayEngine, cluster: FakeCluster) -> None:
        with pytest.raises(WorkerLost, match=r"again and again.*no memory"):
            for _ in range(1000):
                cluster.load(len(cluster.actors) - 1)
                engine.poll(0)
                cluster.say(len(cluster.actors) - 1, Lost("no memory"))
                engine.poll(0)
        assert 5 < len(cluster.actors) < 50

    def test_losses_now_and_then_do_not(self, engine: RayEngine, cluster: FakeCluster) -> None:
        cluster.load(0)
        engine.poll(0)
        for number in range(60):
            engine.submit(attempt(number))
            engine.poll(0)
            cluster.say(0, finished(attempt(number)))
            cluster.say(len(cluster.actors) - 1, Loaded("node", 1))
            engine.poll(0)
            cluster.say(len(cluster.actors) - 1, Lost("gone"))
            engine.poll(0)
        assert len(cluster.actors) == 62

    def test_actors_that_never_begin_end_it(self, engine: RayEngine, cluster: FakeCluster) -> None:
        with pytest.raises(WorkerLost, match="before they could begin"):
            for _ in range(10):
                cluster.say(len(cluster.actors) - 1, Lost("ModuleNotFoundError: No module named 'arr_stream'"))
                engine.poll(0)
        assert len(cluster.actors) < 6

    def test_one_that_hangs_is_stopped(
        self, cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now = [1000.0]
        monkeypatch.setattr(time, "monotonic", lambda: now[0])
        engine = RayEngine(options(tmp_path), jobs=1, stall_seconds=60, cluster=cluster)
        cluster.load(0)
        engine.submit(attempt(0))
        engine.poll(0)
        for frames in range(1, 5):
            now[0] += 40
            cluster.say(0, JobProgress(attempt(0), frames, None))
            assert [type(event) for event in engine.poll(0)] == [JobProgress]
        now[0] += 40
        cluster.say(0, JobProgress(attempt(0), 4, None))
        assert engine.poll(0) == []
        now[0] += 40
        (lost,) = engine.poll(0)
        assert isinstance(lost, JobFailed)
        assert (lost.kind, lost.frames, lost.retryable) == ("WorkerLost", 4, True)
        assert "no frame for 60 s" in lost.message
        assert cluster.discarded == [cluster.actors[0]]
        assert len(cluster.actors) == 2

    @pytest.mark.parametrize("done", [True, False])
    def test_one_that_finished_as_it_was_stopped_is_believed(
        self, cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: bool
    ) -> None:
        now = [1000.0]
        monkeypatch.setattr(time, "monotonic", lambda: now[0])
        engine = RayEngine(options(tmp_path), jobs=1, stall_seconds=60, cluster=cluster)
        cluster.load(0)
        engine.submit(attempt(0))
        engine.poll(0)
        refused = JobFailed(attempt(0), 10, "WorkerLost", "given up meanwhile", "", 103, retryable=False)
        cluster.last_words[cluster.actors[0]] = finished(attempt(0)) if done else refused
        now[0] += 100
        (event,) = engine.poll(0)
        if done:
            assert event == finished(attempt(0))
        else:
            assert isinstance(event, JobFailed) and event.retryable
        assert len(cluster.actors) == 2

    def test_what_was_told_before_an_error_is_heard(self, engine: RayEngine, cluster: FakeCluster) -> None:
        cluster.load(0)
        engine.submit(attempt(0))
        engine.poll(0)
        cluster.say(1, Refused("WeightsInvalid", "clip.pt: damaged", "fetch it again", "Traceback ..."))
        cluster.say(0, finished(attempt(0)))
        engine.submit(attempt(1))
        assert engine.poll(0) == [finished(attempt(0))], "and nothing more is begun"
        for _ in range(2):
            with pytest.raises(WeightsInvalid):
                engine.poll(0)

    def test_who_is_lost_is_marked_for_as_long_as_the_batch_goes_on(
        self, engine: RayEngine, cluster: FakeCluster, tmp_path: Path
    ) -> None:
        (sign,) = (tmp_path / ".work").iterdir()
        marks = Sign(sign, sign.read_text())
        cluster.load(0)
        engine.submit(attempt(0))
        engine.poll(0)
        assert not marks.revoked(attempt(0)).exists()
        cluster.say(0, Lost("gone"))
        engine.poll(0)
        assert marks.revoked(attempt(0)).exists() and not marks.revoked(attempt(0, 2)).exists()
        engine.close()
        assert list((tmp_path / ".work").iterdir()) == []

    def test_no_room_is_told(self, engine: RayEngine, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
        now = time.monotonic()
        assert engine.poll(0) == []
        monkeypatch.setattr(time, "monotonic", lambda: now + 3600)
        with pytest.raises(WorkerLost, match="each takes 2 cores"):
            engine.poll(0)

    def test_a_refusal_is_the_error_that_it_was(self, engine: RayEngine, cluster: FakeCluster) -> None:
        cluster.say(0, Refused("WeightsInvalid", "clip.pt: damaged", "fetch it again", "Traceback ..."))
        with pytest.raises(WeightsInvalid, match=r"clip\.pt: damaged; fetch it again"):
            engine.poll(0)

    def test_closing_twice(self, engine: RayEngine, cluster: FakeCluster, tmp_path: Path) -> None:
        assert len(list((tmp_path / ".work").iterdir())) == 1
        engine.close()
        engine.close()
        assert cluster.closed == 1
        assert list((tmp_path / ".work").iterdir()) == []


class TestShares:
    @pytest.mark.parametrize(
        ("nodes", "jobs", "gpu", "need"),
        [
            ([Node(8)], 2, False, Need(4)),
            ([Node(8)], 3, False, Need(2)),
            ([Node(2)], 4, False, Need(1)),
            ([Node(2), Node(2), Node(2)], 2, False, Need(2)),
            ([Node(16), Node(2)], 3, False, Need(5)),
            ([Node(16, 2), Node(16, 2)], 4, True, Need(8, 1.0)),
            ([Node(16, 2), Node(16, 2)], 2, True, Need(8, 1.0)),
            ([Node(16, 1)], 2, True, Need(8, 0.5)),
            ([Node(16, 1)], 3, True, Need(5, 1 / 3)),
            ([Node(16, 1)], 2, False, Need(8)),
            ([Node(16)], 2, True, Need(8)),
        ],
    )
    def test_all_find_room(self, nodes: list[Node], jobs: int, gpu: bool, need: Need) -> None:
        assert share(nodes, jobs, gpu=gpu) == need

    def test_one_a_gpu_unless_said_otherwise(self, tmp_path: Path) -> None:
        cluster = FakeCluster(Node(8, 2), Node(8, 1), Node(64))
        engine = RayEngine(options(tmp_path), cluster=cluster)
        assert engine.slots == 3
        assert {need.gpus for need in cluster.needs} == {1.0}
        assert RayEngine(options(tmp_path), files=2, cluster=cluster).slots == 2
        cluster = FakeCluster(Node(8, 2))
        on_cpu = options(tmp_path, settings={"models.device": "cpu"})
        assert RayEngine(on_cpu, cluster=cluster).slots == 4
        assert {need.gpus for need in cluster.needs} == {0.0}
        cluster = FakeCluster(Node(8, 2))
        RayEngine(options(tmp_path), jobs=1, cpus_per_worker=3, gpus_per_worker=0.25, cluster=cluster)
        assert cluster.needs == [Need(3, 0.25)]

    @pytest.mark.parametrize(("cpus", "gpus"), [(0, 0.0), (1, -1.0), (1, 1.5)])
    def test_what_no_actor_can_have(self, tmp_path: Path, cpus: int, gpus: float) -> None:
        cluster = FakeCluster()
        with pytest.raises(InvalidSetting):
            RayEngine(options(tmp_path), jobs=1, cpus_per_worker=cpus, gpus_per_worker=gpus, cluster=cluster)
        assert cluster.closed == 1


class TestWorker:
    def test_another_folder_of_the_same_name_is_noticed(self, tmp_path: Path) -> None:
        sign = Sign(tmp_path / "sign", "abc")
        worker = RayWorker(options(tmp_path), 1, sign, _version())
        for text in (None, "another"):
            if text is not None:
                sign.path.write_text(text)
            refused = worker.load()
            assert isinstance(refused, Refused)
            assert refused.error == OutputUnwritable.__name__
            assert "share" in str(refused.remedy)

    def test_another_version_is_noticed(self, tmp_path: Path) -> None:
        sign = Sign(tmp_path / "sign", "abc")
        sign.path.write_text("abc")
        refused = RayWorker(options(tmp_path), 1, sign, "0.0.1").load()
        assert isinstance(refused, Refused)
        assert "0.0.1" in refused.message

    def test_who_was_given_up_commits_nothing(self, tmp_path: Path) -> None:
        clip = write_video(tmp_path / "clip.mp4", moving_frames(6, (160, 96)))
        folder = tmp_path / "out"
        sign = Sign(folder / ".work" / "ray-1", "abc")
        sign.path.parent.mkdir(parents=True)
        sign.path.write_text("abc")
        worker = RayWorker(options(folder), 1, sign, _version())
        assert isinstance(worker.load(), Loaded)
        first, second = (Attempt(Job(0, str(clip), "clip"), number) for number in (1, 2))
        sign.revoke(first)
        told = worker.run(first)
        assert isinstance(told, JobFailed) and told.kind == "WorkerLost" and told.frames == 6
        assert not (folder / "videos").exists()
        assert isinstance(worker.run(second), JobFinished)
        before = (folder / "videos/clip/done.json").read_bytes()
        sign.path.unlink()
        told = worker.run(Attempt(second.job, 3))
        assert isinstance(told, JobFailed) and told.kind == "OutputUnwritable", "the batch is over"
        assert (folder / "videos/clip/done.json").read_bytes() == before


class FakeRay(types.ModuleType):
    """Ray, with answers that the test gives; a reference is their key."""

    class exceptions:
        class RayError(Exception): ...

    def __init__(self, initialized: str) -> None:
        super().__init__("ray")
        self.gcs_address = initialized
        self.answers: dict[str, Any] = {}
        self.killed: list[Any] = []

    def is_initialized(self) -> bool:
        return True

    def get_runtime_context(self) -> FakeRay:
        return self

    def wait(self, references: list[str], *, num_returns: int, **_: Any) -> tuple[list[str], list[str]]:
        ready = [reference for reference in references if reference in self.answers]
        return ready[:num_returns], []

    def get(self, reference: str, timeout: float | None = None) -> Any:
        answer = self.answers[reference]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def kill(self, handle: Any, *, no_restart: bool) -> None:
        self.killed.append(handle)


class TestCluster:
    @pytest.fixture
    def ray(self, monkeypatch: pytest.MonkeyPatch) -> FakeRay:
        ray = FakeRay("127.0.0.1:6379")
        monkeypatch.setitem(sys.modules, "ray", ray)
        return ray

    def _cluster(self, folder: Path, address: str | None) -> RayCluster:
        return RayCluster(options(folder), Sign(folder / "sign", "abc"), address=address, cpus=1)

    @pytest.mark.parametrize("progress_first", [True, False])
    def test_an_answer_outlives_its_actor(self, ray: FakeRay, tmp_path: Path, progress_first: bool) -> None:
        cluster = self._cluster(tmp_path, None)
        actor = Actor("handle")
        actor.asked = {"p": "progress", "r": "run"} if progress_first else {"r": "run", "p": "progress"}
        cluster._actors.append(actor)
        ray.answers = {"p": ray.exceptions.RayError("The actor died"), "r": finished(attempt(0))}
        told = cluster.wait(0)
        assert [message for _, message in told] == [finished(attempt(0)), Lost("The actor died")]
        assert ray.killed == ["handle"] and cluster.wait(0) == []

    def test_both_lost_is_lost_once(self, ray: FakeRay, tmp_path: Path) -> None:
        cluster = self._cluster(tmp_path, None)
        cluster._actors.append(Actor("handle", {"p": "progress", "r": "run"}))
        ray.answers = dict.fromkeys("pr", ray.exceptions.RayError("its node went away"))
        assert [message for _, message in cluster.wait(0)] == [Lost("its node went away")]

    def test_a_cluster_that_is_connected_is_the_one_or_refused(self, ray: FakeRay, tmp_path: Path) -> None:
        for address in (None, "auto", "127.0.0.1:6379", "localhost:6379"):
            self._cluster(tmp_path, address).close()
        for address in ("127.0.0.1:6380", "10.0.0.1:6379"):
            with pytest.raises(InvalidSetting, match=r"127\.0\.0\.1:6379.*" + address):
                self._cluster(tmp_path, address)

    def test_the_environment_is_as_it_was(self, ray: FakeRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RAY_DEDUP_LOGS", "0")
        before = dict(os.environ)
        monkeypatch.setattr(RayCluster, "_connect", lambda self, address, cpus: None)
        monkeypatch.setattr(FakeRay, "is_initialized", lambda self: False)
        monkeypatch.setattr(FakeRay, "shutdown", lambda self: None, raising=False)
        cluster = self._cluster(tmp_path, None)
        assert len(os.environ["RAY_AUTH_TOKEN"]) == 64 and os.environ["RAY_DEDUP_LOGS"] == "0"
        cluster.close()
        assert dict(os.environ) == before


def _version() -> str:
    from arr_stream import __version__

    return __version__


ROOT = Path(__file__).parent.parent

_DRIVER = """
import json, os, signal, sys, time
from collections import deque
from pathlib import Path
import psutil
from arr_stream.batch.job import Attempt, Job, JobFailed, JobFinished, JobStarted
from arr_stream.batch.local import LocalEngine
from arr_stream.batch.ray_engine import RayEngine
from tests.test_batch_ray import options

def main(folder, clips):
    asked = options(folder / "ray", queries=("red",), formats=("jsonl", "parquet"))
    by_ray = told(RayEngine(asked, jobs=2), clips, folder / "ray", kill="clip1")
    (folder / "left").write_text(str(len(psutil.Process().children(recursive=True))))
    by_processes = told(LocalEngine(options(folder / "local", queries=("red",)), jobs=2), clips, folder / "local")
    print(json.dumps({"ray": by_ray, "local": by_processes}))

def told(engine, clips, folder, kill=None):
    left = deque(Attempt(Job(index, str(clip), clip.stem)) for index, clip in enumerate(clips))
    under_way, workers, result = 0, {}, {"digests": {}, "lost": [], "workers": []}
    try:
        while left or under_way:
            while left and under_way < engine.slots:
                engine.submit(left.popleft())
                under_way += 1
            for event in engine.poll(0.02):
                name = event.attempt.job.name
                under_way -= isinstance(event, (JobFinished, JobFailed))
                if isinstance(event, JobStarted):
                    workers[name] = event.worker
                    result["workers"].append([name, event.attempt.number, event.worker])
                elif isinstance(event, JobFinished):
                    result["digests"][name] = event.digest
                elif isinstance(event, JobFailed):
                    result["lost"].append([name, event.kind, event.retryable, event.message])
                    left.append(Attempt(event.attempt.job, event.attempt.number + 1))
            if kill in workers and "killed_after" not in result:
                kill_in_mid_file(workers[kill], folder, kill, result)
    finally:
        engine.close()
    return result

def kill_in_mid_file(worker, folder, name, result):
    process = int(worker.split()[1])
    records = folder / ".work" / f"{name}-1-{process}" / "video" / "records.jsonl"
    if records.exists() and (lines := records.read_bytes().count(b"\\n")) > 3:
        result["listening"] = sorted({
            connection.laddr.ip
            for child in psutil.Process().children(recursive=True)
            for connection in child.net_connections()
            if connection.status == psutil.CONN_LISTEN
        })
        result["folders"] = [oct(path.stat().st_mode) for path in Path(os.environ["TMPDIR"]).glob("arr-ray-*")]
        os.kill(process, signal.SIGKILL)
        result["killed_after"] = lines - 1

if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
"""


@pytest.fixture
def clips(tmp_path: Path) -> list[Path]:
    """Four clips; the second is long enough to be killed in its middle."""
    (tmp_path / "clips").mkdir()
    return [
        write_video(
            tmp_path / "clips" / f"clip{number}.mp4", moving_frames(250 if number == 1 else 12, (160, 96), seed=number)
        )
        for number in range(4)
    ]


@pytest.fixture
def short_tmp() -> Iterator[Path]:
    """A folder for temporary files whose name leaves room for those of sockets."""
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as name:
        yield Path(name)


def _driver(folder: Path, clips: list[Path], tmp: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp)}
    return subprocess.Popen(
        [sys.executable, "-c", _DRIVER, str(folder), *map(str, clips)],
        cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_a_killed_actor_costs_nothing_but_time(tmp_path: Path, clips: list[Path], short_tmp: Path) -> None:
    pytest.importorskip("ray")
    process = _driver(tmp_path, clips, short_tmp)
    out, err = process.communicate(timeout=450)
    assert process.returncode == 0, err
    assert err == "", "Ray's noise is kept away"
    told = json.loads(out)
    by_ray, by_processes = told["ray"], told["local"]
    assert set(by_ray["digests"]) == {f"clip{number}" for number in range(4)}
    assert by_ray["digests"] == by_processes["digests"]
    assert 3 <= by_ray["killed_after"] < 250
    ((name, kind, retryable, message),) = by_ray["lost"]
    assert (name, kind, retryable) == ("clip1", "WorkerLost", True)
    assert "\n" not in message
    assert len(message) < 250
    workers = {(name, number): worker for name, number, worker in by_ray["workers"]}
    assert workers["clip1", 2] != workers["clip1", 1]
    assert {ip.removeprefix("::ffff:") for ip in by_ray["listening"]} == {"127.0.0.1"}
    assert (tmp_path / "left").read_text() == "0", "no process outlives the engine"
    assert by_ray["folders"] == ["0o40700"], "Ray's sockets are for nobody else"
    assert not list(short_tmp.glob("arr-ray-*"))
    for number, clip in enumerate(clips):
        _, frames, end = read_parquet_records(tmp_path / "ray", clip.stem)
        assert len(frames) == (250 if number == 1 else 12)
        assert end is not None and end.digest == by_ray["digests"][clip.stem]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_killed_driver_leaves_no_process(tmp_path: Path, clips: list[Path], short_tmp: Path) -> None:
    pytest.importorskip("ray")
    process = _driver(tmp_path, clips, short_tmp)
    try:
        deadline = time.monotonic() + 240
        while not list(tmp_path.glob("ray/.work/clip*")) and time.monotonic() < deadline:
            assert process.poll() is None, process.communicate()
            time.sleep(0.1)
        started = psutil.Process(process.pid).children(recursive=True)
        assert started
        process.kill()
        _, alive = psutil.wait_procs(started, timeout=150)
        assert not alive
    finally:
        process.kill()
        process.communicate()
