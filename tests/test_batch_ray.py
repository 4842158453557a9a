"""The Ray engine: its shares of a cluster, lost actors, and the same results as by processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from arr_stream import __version__
from arr_stream.batch.engine import Loaded
from arr_stream.batch.job import JobFailed, JobFinished
from arr_stream.batch.ray_engine import RayWorker, share
from arr_stream.processes import Refused
from tests.batch_fakes import QUICK, attempt, quick_options, write_clips


@pytest.mark.parametrize(
    ("nodes", "jobs", "gpu", "shares"),
    [
        ([(8, 0)], 2, False, (2, 4, 0)),
        ([(8, 0)], 3, False, (3, 2, 0)),
        ([(2, 0)], 4, False, (4, 1, 0)),
        ([(2, 0), (2, 0), (2, 0)], 2, False, (2, 2, 0)),
        ([(16, 0), (2, 0)], 3, False, (3, 5, 0)),
        ([(16, 2), (16, 2)], 4, True, (4, 8, 1)),
        ([(16, 2), (16, 2)], None, True, (4, 8, 1)),
        ([(16, 1)], 4, True, (4, 4, 0.25)),
        ([(64, 0), (8, 1)], 2, True, (2, 4, 0.5)),
        ([(8, 1)], None, False, (4, 2, 0)),
        ([(1, 0)], None, True, (1, 1, 0)),
    ],
)
def test_all_actors_fit_into_the_cluster_at_once(
    nodes: list[tuple[float, float]], jobs: int | None, gpu: bool, shares: tuple[int, int, float]
) -> None:
    assert share(nodes, jobs, None, gpu=gpu) == shares
    assert share(nodes, jobs, 1, gpu=gpu)[0] == 1


def test_a_node_that_does_not_see_the_folder_or_has_another_version_refuses(tmp_path: Path) -> None:
    for mark, version, words in ((tmp_path / "none", __version__, "not the folder"), (tmp_path, "0.0.1", "0.0.1")):
        refused = RayWorker(quick_options(tmp_path), 1, mark, version).load()
        assert isinstance(refused, Refused) and words in refused.message and refused.remedy


def test_an_actor_that_outlives_its_batch_commits_nothing(tmp_path: Path) -> None:
    (clip,) = write_clips(tmp_path, 1, frames=6)
    folder = tmp_path / "out"
    mark = folder / ".work" / "ray-1"
    mark.mkdir(parents=True)
    worker = RayWorker(quick_options(folder), 1, mark, __version__)
    assert isinstance(worker.load(), Loaded)
    assert isinstance(worker.run(attempt(clip)), JobFinished)
    (folder / "videos" / "clip").rename(folder / "before")
    mark.rmdir()
    failed = worker.run(attempt(clip, number=2))
    assert isinstance(failed, JobFailed) and failed.kind == "WorkerLost"
    assert not list((folder / "videos").iterdir())


ROOT = Path(__file__).parent.parent


@pytest.fixture
def short_tmp() -> Iterator[Path]:
    """Folder for temporary files whose path leaves room for those of sockets."""
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as name:
        yield Path(name)


def _command(inputs: Path, out: Path, tmp: Path, *more: object) -> subprocess.Popen[str]:
    settings = [word for key, value in QUICK.items() for word in ("--set", f"{key}={value}")]
    command = ["batch", inputs, "-o", out, "--jobs", 2, "--query", "red", "--log=json", *settings, *more]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp)}
    return subprocess.Popen(
        [sys.executable, "-m", "arr_stream", *map(str, command)],
        cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def _digests(out: Path) -> dict[str, str]:
    return {path.parent.name: json.loads(path.read_text())["digest"] for path in out.glob("videos/*/done.json")}


def _clips(folder: Path) -> Path:
    """Write four clips; the second is long enough to be killed in its middle."""
    write_clips(folder, 4, frames=12, size_wh=(160, 96))
    write_clips(folder / "long", 1, frames=250, size_wh=(160, 96))[0].rename(folder / "clip01.mp4")
    return folder


def _kill_in_mid_file(out: Path, process: subprocess.Popen[str], name: str) -> list[psutil.Process]:
    """Kill the actor that processes a file; return all processes of the batch."""
    deadline = time.monotonic() + 240
    while True:
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        for records in out.glob(f".work/{name}-1-*/video/records.jsonl"):
            if records.read_bytes().count(b"\n") > 3:
                children = psutil.Process(process.pid).children(recursive=True)
                psutil.Process(int(records.parent.parent.name.rpartition("-")[2])).kill()
                return children
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_a_killed_actor_costs_only_time_and_the_cluster_is_private(tmp_path: Path, short_tmp: Path) -> None:
    pytest.importorskip("ray")
    inputs, out = _clips(tmp_path / "in"), tmp_path / "ray"
    process = _command(inputs, out, short_tmp, "--engine", "ray")
    started = _kill_in_mid_file(out, process, "clip01")
    listening = {
        connection.laddr.ip.removeprefix("::ffff:")
        for child in started
        if child.is_running()
        for connection in child.net_connections()
        if connection.status == psutil.CONN_LISTEN
    }
    assert listening == {"127.0.0.1"}
    assert [oct(path.stat().st_mode) for path in short_tmp.glob("arr-ray-*")] == ["0o40700"]
    _, err = process.communicate(timeout=450)
    assert process.returncode == 0, err
    events = [json.loads(line) for line in err.splitlines()]
    (lost,) = [event for event in events if event["event"] == "failed"]
    assert (lost["name"], lost["kind"], lost["again"]) == ("clip01", "WorkerLost", True) and len(lost["text"]) < 300
    assert not psutil.wait_procs(started, timeout=5)[1], "no process outlives the batch"
    assert not list(short_tmp.glob("arr-ray-*"))
    assert not (out / ".work").exists(), "no attempt can commit after the batch"
    local = _command(inputs, tmp_path / "local", short_tmp)
    assert local.wait(240) == 0, local.communicate()
    assert _digests(out) == _digests(tmp_path / "local") and len(_digests(out)) == 4


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_killed_batch_leaves_no_process(tmp_path: Path, short_tmp: Path) -> None:
    pytest.importorskip("ray")
    out = tmp_path / "out"
    process = _command(_clips(tmp_path / "in"), out, short_tmp, "--engine", "ray")
    started = _kill_in_mid_file(out, process, "clip01")
    process.kill()
    process.communicate()
    assert not psutil.wait_procs(started, timeout=150)[1]
