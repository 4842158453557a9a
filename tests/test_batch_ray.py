"""The Ray engine: what it tells of actors that come and go, and the same results as by processes."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from arr_stream import __version__
from arr_stream.batch.engine import Loaded, Lost
from arr_stream.batch.job import JobFailed, JobFinished, JobProgress
from arr_stream.batch.ray_engine import Need, Node, RayCluster, RayEngine, share
from arr_stream.batch.ray_worker import RayWorker, Sign
from arr_stream.errors import InvalidSetting, OutputUnwritable
from arr_stream.processes import Refused
from arr_stream.records.json_lines import read_records
from tests.batch_fakes import FakeCrew, attempt, finished, quick_options
from tests.media import moving_frames, write_video


class FakeCluster(FakeCrew):
    """A crew on machines."""

    def __init__(self, *nodes: Node) -> None:
        super().__init__()
        self.need = Need(1)
        self._nodes = nodes or (Node(4),)

    def nodes(self) -> tuple[Node, ...]:
        return self._nodes


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
        engine = RayEngine(quick_options(tmp_path), cluster=cluster)
        assert engine.slots == 3
        assert cluster.need.gpus == 1.0
        assert RayEngine(quick_options(tmp_path), files=2, cluster=cluster).slots == 2
        cluster = FakeCluster(Node(8, 2))
        on_cpu = quick_options(tmp_path, settings={"models.device": "cpu"})
        assert RayEngine(on_cpu, cluster=cluster).slots == 4
        assert cluster.need.gpus == 0.0
        cluster = FakeCluster(Node(8, 2))
        RayEngine(quick_options(tmp_path), jobs=1, gpus_per_worker=0.25, cluster=cluster)
        assert cluster.need == Need(4, 0.25)

    @pytest.mark.parametrize("gpus", [-1.0, 1.5])
    def test_what_no_actor_can_have(self, tmp_path: Path, gpus: float) -> None:
        cluster = FakeCluster()
        with pytest.raises(InvalidSetting):
            RayEngine(quick_options(tmp_path), jobs=1, gpus_per_worker=gpus, cluster=cluster)
        assert cluster.closed == 1


class TestWorker:
    def test_another_folder_of_the_same_name_is_noticed(self, tmp_path: Path) -> None:
        sign = Sign(tmp_path / "sign", "abc")
        worker = RayWorker(quick_options(tmp_path), 1, sign, __version__)
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
        refused = RayWorker(quick_options(tmp_path), 1, sign, "0.0.1").load()
        assert isinstance(refused, Refused)
        assert "0.0.1" in refused.message

    def test_who_was_given_up_commits_nothing(self, tmp_path: Path) -> None:
        clip = write_video(tmp_path / "clip.mp4", moving_frames(6, (160, 96)))
        folder = tmp_path / "out"
        sign = Sign(folder / ".work" / "ray-1", "abc")
        sign.path.parent.mkdir(parents=True)
        sign.path.write_text("abc")
        worker = RayWorker(quick_options(folder), 1, sign, __version__)
        assert isinstance(worker.load(), Loaded)
        first, second, third = (attempt(clip, number=number) for number in (1, 2, 3))
        sign.revoke(first)
        told = worker.run(first)
        assert isinstance(told, JobFailed) and told.kind == "WorkerLost" and told.frames == 6
        assert not (folder / "videos").exists()
        assert isinstance(worker.run(second), JobFinished)
        before = (folder / "videos/clip/done.json").read_bytes()
        sign.path.unlink()
        told = worker.run(third)
        assert isinstance(told, JobFailed) and told.kind == "OutputUnwritable", "the batch is over"
        assert (folder / "videos/clip/done.json").read_bytes() == before


class FakeRay(types.ModuleType):
    """Ray with one actor at a time; what it is asked is `load`, `run` or `progress`, and answered as the test says."""

    class exceptions:
        class RayError(Exception): ...

    def __init__(self, initialized: str) -> None:
        super().__init__("ray")
        self.gcs_address = initialized
        self.answers: dict[str, Any] = {}
        self.asked: list[str] = []
        self.killed: list[Any] = []

    def is_initialized(self) -> bool:
        return True

    def get_runtime_context(self) -> FakeRay:
        return self

    def remote(self, kind: type) -> FakeRay:
        """The actor's class, the actor itself, and each of its methods."""
        return types.SimpleNamespace(  # type: ignore[return-value]
            options=lambda **_: types.SimpleNamespace(
                remote=lambda *_: types.SimpleNamespace(
                    **{name: types.SimpleNamespace(remote=functools.partial(self._ask, name)) for name in QUESTIONS}
                )
            )
        )

    def _ask(self, name: str, *_: object) -> str:
        self.asked.append(name)
        return name

    def wait(self, references: list[str], *, num_returns: int, **_: Any) -> tuple[list[str], list[str]]:
        ready = [reference for reference in self.answers if reference in references]
        return ready[:num_returns], []

    def get(self, reference: str, timeout: float | None = None) -> Any:
        answer = self.answers[reference]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def kill(self, handle: Any, *, no_restart: bool) -> None:
        self.killed.append(handle)


QUESTIONS = ("load", "run", "progress")
FIRST, SECOND = (attempt("/videos/0.mp4", "0", number=number) for number in (1, 2))


class TestCluster:
    @pytest.fixture
    def ray(self, monkeypatch: pytest.MonkeyPatch) -> FakeRay:
        ray = FakeRay("127.0.0.1:6379")
        monkeypatch.setitem(sys.modules, "ray", ray)
        return ray

    @pytest.fixture
    def now(self, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        now = [1000.0]
        monkeypatch.setattr(time, "monotonic", lambda: now[0])
        return now

    def _cluster(self, folder: Path, address: str | None) -> RayCluster:
        return RayCluster(quick_options(folder), address=address, cpus=1)

    def _at_work(self, ray: FakeRay, folder: Path) -> tuple[RayCluster, Any]:
        """With an actor that does a file."""
        cluster = self._cluster(folder, None)
        actor = cluster.spawn()
        ray.answers = {"load": Loaded(7, "node")}
        assert list(cluster.wait(0)) == [(actor, Loaded(7, "node"))]
        cluster.give(actor, FIRST)
        ray.answers = {}
        return cluster, actor

    def _asked_how_far(self, ray: FakeRay, folder: Path, now: list[float]) -> tuple[RayCluster, Any]:
        cluster, actor = self._at_work(ray, folder)
        now[0] += 2
        assert list(cluster.wait(0)) == [] and ray.asked[-2:] == ["run", "progress"]
        return cluster, actor

    @pytest.mark.parametrize("progress_first", [True, False])
    def test_an_answer_outlives_its_actor(
        self, ray: FakeRay, tmp_path: Path, now: list[float], progress_first: bool
    ) -> None:
        cluster, _ = self._asked_how_far(ray, tmp_path, now)
        answers = {"progress": ray.exceptions.RayError("The actor died"), "run": finished(FIRST)}
        ray.answers = answers if progress_first else dict(reversed(answers.items()))
        told = [message for _, message in cluster.wait(0)]
        assert told == [finished(FIRST), Lost("was lost: The actor died")]
        assert len(ray.killed) == 1 and list(cluster.wait(0)) == []

    def test_both_lost_is_lost_once_and_its_file_is_marked(
        self, ray: FakeRay, tmp_path: Path, now: list[float]
    ) -> None:
        cluster, _ = self._asked_how_far(ray, tmp_path, now)
        (sign,) = (tmp_path / ".work").iterdir()
        marks = Sign(sign, sign.read_text())
        assert not marks.revoked(FIRST).exists()
        ray.answers = dict.fromkeys(("progress", "run"), ray.exceptions.RayError("its node went away"))
        assert [message for _, message in cluster.wait(0)] == [Lost("was lost: its node went away")]
        assert marks.revoked(FIRST).exists() and not marks.revoked(SECOND).exists()
        cluster.close()
        assert list((tmp_path / ".work").iterdir()) == [], "for as long as the batch goes on"

    @pytest.mark.parametrize("answers", [True, False])
    def test_one_that_is_killed_is_marked_and_waited_for_ten_seconds(
        self, ray: FakeRay, tmp_path: Path, now: list[float], answers: bool
    ) -> None:
        cluster, actor = self._at_work(ray, tmp_path)
        (sign,) = (tmp_path / ".work").iterdir()
        cluster.kill(actor)
        assert Sign(sign, sign.read_text()).revoked(FIRST).exists() and len(ray.killed) == 1
        now[0] += 8
        assert list(cluster.wait(0)) == [] and ray.asked[-1] == "run", "and it is asked nothing more"
        if answers:
            ray.answers = {"run": finished(FIRST)}
        else:
            now[0] += 8
        told = [message for _, message in cluster.wait(0)]
        assert told == [*([finished(FIRST)] if answers else []), Lost("was stopped")]
        assert list(cluster.wait(0)) == []

    def test_how_far_files_are_is_asked_now_and_then(self, ray: FakeRay, tmp_path: Path, now: list[float]) -> None:
        cluster, actor = self._at_work(ray, tmp_path)
        told = []
        for frames in range(100):
            now[0] += 0.05
            ray.answers = {"progress": JobProgress(FIRST, frames, None) if frames > 50 else None}
            told += [message for _, message in cluster.wait(0)]
        assert 4 <= ray.asked.count("progress") <= 5
        assert told and all(isinstance(message, JobProgress) for message in told)
        ray.answers = {"run": finished(FIRST)}
        assert list(cluster.wait(0)) == [(actor, finished(FIRST))]
        ray.asked.clear()
        now[0] += 10
        list(cluster.wait(0))
        assert ray.asked == [], "who has no file is not asked"

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


ROOT = Path(__file__).parent.parent

_DRIVER = """
import json, os, signal, sys, time
from collections import deque
from pathlib import Path
import psutil
from arr_stream.batch.job import Attempt, Job, JobFailed, JobFinished, JobStarted
from arr_stream.batch.local import LocalEngine
from arr_stream.batch.ray_engine import RayEngine
from tests.batch_fakes import quick_options

def main(folder, clips):
    asked = quick_options(folder / "ray")
    by_ray = told(RayEngine(asked, jobs=2), clips, folder / "ray", kill="clip1")
    (folder / "left").write_text(str(len(psutil.Process().children(recursive=True))))
    by_processes = told(LocalEngine(quick_options(folder / "local"), jobs=2), clips, folder / "local")
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
                    result["digests"][name] = event.done.digest
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
        _, frames, end = read_records(tmp_path / "ray" / "videos" / clip.stem / "records.jsonl")
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
