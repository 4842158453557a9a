"""The Ray engine: actors on a cluster, each with its models, its cores and its share of a GPU.

All nodes share the output folder. If an actor ends, with its process or its whole node, the batch starts a new one,
which Ray places on any node with free resources.

A private cluster listens on loopback only and requires a token that only this process and its workers know, so that no
other user of the machine can run code on it. It has no dashboard, sends no usage statistics, and leaves no files.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from arr_stream import __version__
from arr_stream.batch.engine import Loaded, Lost, Message, Worker
from arr_stream.batch.folder import Layout
from arr_stream.batch.job import Attempt, JobFailed, JobFinished, JobOptions
from arr_stream.config import Settings
from arr_stream.errors import BackendUnavailable, ConnectionFailed, OutputUnwritable, WorkerLost
from arr_stream.extras import needed_by
from arr_stream.files import writing
from arr_stream.plain_text import one_line, redact_url
from arr_stream.processes import POOLS, Refused, usable_cores

_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray prints messages about ended actors to standard output unless a regex filters them.
    "RAY_DEDUP_LOGS": "1",
    "RAY_DEDUP_LOGS_SKIP_REGEX": "(?s).*",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_TQDM_PATCH_PRINT": "0",
}
_PRIVATE = {
    # Makes Ray listen on 127.0.0.1 only; the default on Windows and macOS.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_AUTH_MODE": "token",
    # Nobody reads the metrics of a private cluster, and they cost cores.
    "RAY_enable_metrics_collection": "0",
    "RAY_task_events_report_interval_ms": "0",
    "RAY_event_stats": "0",
    "RAY_memory_monitor_refresh_ms": "0",
}
_OBJECT_STORE_BYTES = 80 << 20
_END_SECONDS = 10.0
_LONGEST_FOLDER = 20


class RayEngine:
    """Engine with one actor of a Ray cluster a slot; see `arr_stream.batch.engine.WorkerEngine`.

    Args:
        options: Options for every file; all nodes share the folder under the same path.
        jobs: Number of actors; None for one a GPU, or without GPUs, one for two cores.
        files: Number of files to do, which limits the actors.
        address: Address of a cluster, such as `10.0.0.1:6379`, or `auto`; None for a private one on this machine.

    Raises:
        BackendUnavailable: Ray is not installed.
        ConnectionFailed: There is no such cluster, or none can be started.
        OutputError: The folder cannot be written to.
    """

    def __init__(
        self,
        options: JobOptions,
        *,
        jobs: int | None = None,
        files: int | None = None,
        address: str | None = None,
    ) -> None:
        self._options = options
        self._actors: list[_Actor] = []
        self._temporary: Path | None = None
        self._ray: Any = None
        # Exists as long as this batch may commit; its name proves that all nodes see the same folder.
        self._mark = Layout(Path(options.folder)).work / f"ray-{secrets.token_hex(8)}"
        with writing(self._mark):
            self._mark.mkdir(parents=True)
        try:
            self._ray = self._connect(address, max(usable_cores(), jobs or 1))
            nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
            sizes = [(node.get("CPU", 0.0), node.get("GPU", 0.0)) for node in nodes]
            settings = Settings.checked(dict(options.settings))
            gpu = settings.loop.device != "cpu" or settings.models.device != "cpu"
            self.slots, self.cpus, self.gpus = share(sizes, jobs, files, gpu=gpu)
        except BaseException:
            self.close()
            raise

    def start(self) -> Worker:
        kind = self._ray.remote(RayWorker).options(
            num_cpus=self.cpus, num_gpus=self.gpus, max_restarts=0, max_task_retries=0, scheduling_strategy="SPREAD"
        )
        actor = _Actor(kind.remote(self._options, self.cpus, self._mark, __version__))
        actor.reply = actor.handle.load.remote()
        self._actors.append(actor)
        return actor

    def give(self, worker: Worker, attempt: Attempt) -> None:
        actor = cast("_Actor", worker)
        actor.reply = actor.handle.run.remote(attempt)

    def receive(self, timeout_seconds: float) -> Iterator[tuple[Worker, Message]]:
        replies = {actor.reply: actor for actor in self._actors if actor.reply is not None}
        ready: list[Any] = []
        if replies:
            ready, _ = self._ray.wait(list(replies), timeout=timeout_seconds, fetch_local=False)
        else:
            time.sleep(timeout_seconds)
        for reply in ready:
            yield replies[reply], self._next_message(replies[reply])

    def _next_message(self, actor: _Actor) -> Message:
        try:
            message: Message = self._ray.get(actor.reply)
        except self._ray.exceptions.RayError as exc:
            # The actor may still run if only its node is unreachable.
            self._kill(actor)
            self._actors.remove(actor)
            reason = one_line(str(exc))
            # Ray explains at length, and adds advice.
            reason = (reason.partition("Worker exit detail: ")[2] or reason).partition(" Some common causes")[0]
            return Lost(f"was lost: {reason[:200].rstrip('.')}")
        actor.reply = None
        return message

    def close(self) -> None:
        """End every actor, and the cluster if it is private; safe to call again."""
        for actor in self._actors:
            self._kill(actor)
        replies = [actor.reply for actor in self._actors if actor.reply is not None]
        with contextlib.suppress(Exception):
            if replies:
                self._ray.wait(replies, num_returns=len(replies), timeout=_END_SECONDS, fetch_local=False)
        self._actors.clear()
        if self._ray is not None:
            with _own_signals():
                self._ray.shutdown()
            self._ray = None
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary = None
        shutil.rmtree(self._mark, ignore_errors=True)

    def _kill(self, actor: _Actor) -> None:
        with contextlib.suppress(Exception):
            self._ray.kill(actor.handle, no_restart=True)

    def _connect(self, address: str | None, cpus: int) -> Any:
        """Return Ray, connected with a cluster."""
        # Ray reads these variables when it is imported.
        private = _PRIVATE | {"RAY_AUTH_TOKEN": secrets.token_hex(32)} if address is None else {}
        os.environ.update(_QUIET | private)
        with needed_by("--engine ray", "ray"):
            ray = importlib.import_module("ray")
        where: dict[str, Any] = {"address": address}
        if address is None:
            # Ray opens its own folder, with sockets and logs, to every user, so it gets one inside a private folder,
            # whose path must be short enough for the names of sockets.
            place = tempfile.gettempdir()
            place = place if len(place) <= _LONGEST_FOLDER else "/tmp"
            self._temporary = Path(tempfile.mkdtemp(prefix="arr-ray-", dir=place))
            where = {"address": "local", "num_cpus": cpus, "object_store_memory": _OBJECT_STORE_BYTES}
            where |= {"include_dashboard": False, "_temp_dir": str(self._temporary / "r")}
        try:
            with _own_signals():
                ray.init(log_to_driver=False, logging_level="ERROR", **where)
        except Exception as exc:
            what, remedy = "a Ray cluster on this machine", "try --engine local"
            if address is not None:
                what = f"the Ray cluster {redact_url(address)}"
                remedy = "check the address and that Python and Ray are of the same version there"
            reason = f"{type(exc).__name__}: {one_line(str(exc))[:300]}"
            raise ConnectionFailed(f"{what} cannot be used: {reason}", remedy=remedy) from exc
        return ray


class _Actor(Worker):
    """Actor, with Ray's handle and the reference of its next reply; None while it has nothing to do."""

    def __init__(self, handle: Any) -> None:
        super().__init__()
        self.handle = handle
        self.reply: Any = None


class RayWorker:
    """Worker that processes files; the class of the Ray actor.

    All results are values, never exceptions, since Ray would wrap those and lose their class.

    Args:
        options: Options for every file.
        threads: Threads for the pools of the libraries.
        mark: Folder that exists as long as the batch may commit.
        version: Version of arr-stream that started the batch.
    """

    def __init__(self, options: JobOptions, threads: int, mark: Path, version: str) -> None:
        self._options, self._threads, self._mark, self._version = options, threads, mark, version

    def load(self) -> Loaded | Refused:
        """Load the models; return the reason if this node can do no file."""
        host = socket.gethostname()
        try:
            if self._version != __version__:
                remedy = "install the same version on all nodes"
                where = f"{__version__} on {host}, and {self._version} where the batch was started"
                raise BackendUnavailable(f"arr-stream {where}", remedy=remedy)
            if not (self._mark.is_dir() and os.access(self._options.folder, os.W_OK | os.X_OK)):
                raise OutputUnwritable(
                    f"{self._options.folder}: on {host} this is not the folder of the batch, or cannot be written to",
                    remedy="write into a folder that all nodes share under the same path",
                )
            # The libraries read these variables when they are imported.
            os.environ.update(dict.fromkeys(POOLS, str(self._threads)))
            from arr_stream.batch.runner import JobRunner
            from arr_stream.threads import limit_threads

            limit_threads(self._threads)
            self._runner = JobRunner(self._options, threads=self._threads, before_commit=self._check_batch)
        except Exception as exc:
            return Refused.of(exc)
        return Loaded(f"process {os.getpid()} on {host}")

    def run(self, attempt: Attempt) -> JobFinished | JobFailed:
        """Process a file."""
        return self._runner.run(attempt)

    def _check_batch(self, attempt: Attempt) -> None:
        """Check that the batch has not ended.

        Raises:
            WorkerLost: It has, and another may work in its folder.
        """
        if not self._mark.is_dir():
            raise WorkerLost(f"{redact_url(attempt.job.source)}: the batch has ended meanwhile")


def share(
    nodes: Sequence[tuple[float, float]], jobs: int | None, files: int | None, *, gpu: bool
) -> tuple[int, int, float]:
    """Divide a cluster equally.

    Args:
        nodes: Cores and GPUs of each machine.
        jobs: Number of actors; None for one a GPU, or without GPUs, one for two cores.
        files: Most actors.
        gpu: The settings use GPUs.

    Returns:
        The number of actors, and the cores and GPUs of each, so that all fit at once.
    """
    gpus = int(sum(count for _, count in nodes)) if gpu else 0
    slots = min(jobs or gpus or max(1, sum(int(cpus) // 2 for cpus, _ in nodes)), files or sys.maxsize)
    # Several actors share a GPU, but no actor is spread over two machines.
    sharing = -(-slots // gpus) if gpus else 0
    cores = max(1, int(max(cpus for cpus, _ in nodes)))
    while cores > 1 and slots > sum(
        min(cpus // cores, count * sharing) if gpus else cpus // cores for cpus, count in nodes
    ):
        cores -= 1
    return slots, cores, 1 / sharing if gpus else 0.0


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Keep the SIGTERM handler: Ray's would end the process silently."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before if before is not None else signal.SIG_DFL)
