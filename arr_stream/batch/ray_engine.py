"""The Ray engine: actors on a cluster, each with its models, its cores and its share of a GPU.

All nodes share the output folder. If an actor ends, with its process or its whole node, Ray places a new one on any
node with free resources, and its file is reported as lost, so that it is retried.

A private cluster listens on loopback only and requires a token that only this process and its workers know, so that no
other user of the machine can run code on it. It has no dashboard, sends no usage statistics, and leaves no files.
"""

from __future__ import annotations

import contextlib
import functools
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from arr_stream import __version__
from arr_stream.batch.engine import Lost, Message, WorkerEngine
from arr_stream.batch.job import Attempt, JobOptions
from arr_stream.batch.layout import Layout
from arr_stream.batch.ray_worker import RayWorker, Sign
from arr_stream.config import Settings
from arr_stream.errors import ConnectionFailed, InvalidSetting
from arr_stream.extras import needed_by
from arr_stream.plain_text import one_line, redact_url
from arr_stream.processes import usable_cores

_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray prints messages about ended actors to standard output unless a regex filters them.
    "RAY_DEDUP_LOGS": "1",
    "RAY_DEDUP_LOGS_SKIP_REGEX": "(?s).*",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_TQDM_PATCH_PRINT": "0",
}
_IDLE = {
    "RAY_enable_metrics_collection": "0",
    "RAY_task_events_report_interval_ms": "0",
    "RAY_event_stats": "0",
    "RAY_memory_monitor_refresh_ms": "0",
}
"""Features that a private cluster does not need: nobody reads its metrics, and they cost cores."""

_LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Variable that, set to 0, makes Ray listen on 127.0.0.1 only; the default on Windows and macOS."""
_MOST_LOST = 20
_START_SECONDS = 600.0
_ASK_SECONDS = 1.0
_OBJECT_STORE_BYTES = 80 << 20
_END_SECONDS = 10.0
_LONGEST_FOLDER = 20
_MOST_SHARING_GPU = 16
_NAMING = ("class_name:", "actor_id:", "pid:", "name:", "namespace:", "ip:", "The actor died unexpectedly")

Question = Literal["load", "run", "progress"]


@dataclass(frozen=True, slots=True)
class Node:
    """Machine of the cluster: its cores, as far as Ray may use them, and its GPUs."""

    cpus: float
    gpus: float = 0.0


@dataclass(frozen=True, slots=True)
class Need:
    """Resources of one actor: cores, and GPUs or the share of one."""

    cpus: int
    gpus: float = 0.0

    def __post_init__(self) -> None:
        if self.cpus < 1:
            raise InvalidSetting(f"{self.cpus} cores for a worker", remedy="give it at least 1")
        if self.gpus < 0 or (self.gpus > 1 and self.gpus != int(self.gpus)):
            raise InvalidSetting(f"{self.gpus:g} GPUs for a worker", remedy="give a share of one, or whole GPUs")


@dataclass(eq=False, slots=True)
class Actor:
    """Actor and its unanswered requests; times are those of `time.monotonic`.

    Args:
        handle: Ray's own.
        asked: The requests by Ray's reference to the answer.
        attempt: Its current file.
        asked_seconds: Time of the last request for its progress.
        ended: How it ended, or is being ended; "" while it runs.
        ended_seconds: Time at which the end was noticed.
    """

    handle: Any
    asked: dict[Any, Question] = field(default_factory=dict)
    attempt: Attempt | None = None
    asked_seconds: float = 0.0
    ended: str = ""
    ended_seconds: float = 0.0


class RayEngine(WorkerEngine):
    """Engine with one actor of a Ray cluster a slot.

    Args:
        options: Options for every file; all nodes share the folder under the same path.
        jobs: Number of actors; None for one a GPU, or without GPUs, one for two cores.
        files: Number of files to do, which limits the actors.
        address: Address of a cluster, such as `10.0.0.1:6379`, or `auto`; None for a private one on this machine.
        gpus_per_worker: GPUs of an actor, or the share of one; None for an equal share if the settings use any.
        stall_seconds: As for `WorkerEngine`.
        cluster: Replaces the real one.

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
        gpus_per_worker: float | None = None,
        stall_seconds: float = 0.0,
        cluster: RayCluster | None = None,
    ) -> None:
        cores = max(usable_cores(), jobs or 1)
        cluster = cluster or RayCluster(options, address=address, cpus=cores)
        try:
            nodes, gpu = cluster.nodes(), _uses_gpu(options)
            slots = min(jobs or _default_jobs(nodes, gpu), files or sys.maxsize)
            fair = share(nodes, slots, gpu=gpu)
            cluster.need = need = Need(
                fair.cpus,
                fair.gpus if gpus_per_worker is None else gpus_per_worker,
            )
        except BaseException:
            cluster.close()
            raise
        super().__init__(
            cluster,
            slots,
            stall_seconds=stall_seconds,
            start_seconds=_START_SECONDS,
            most_lost=_MOST_LOST,
            remedy="see Ray's logs; the nodes may lack memory, or arr-stream",
            room=f"{need.cpus} cores and {need.gpus:g} GPUs",
        )


class RayCluster:
    """Crew of actors, on a private cluster or an existing one.

    If the program has initialised Ray already, the crew uses that and leaves it open.

    Args:
        options, address: As for `RayEngine`.
        cpus: Cores of a private cluster.

    Raises:
        BackendUnavailable: Ray is not installed.
        ConnectionFailed: There is no such cluster, it runs another version, or none can be started.
        InvalidSetting: Ray is initialised already, with another cluster than `address`.
        OutputError: The folder cannot be written to.

    Attributes:
        need: Resources of each actor.
    """

    def __init__(self, options: JobOptions, *, address: str | None, cpus: int) -> None:
        self.need = Need(1)
        self._options = options
        self._actors: list[Actor] = []
        self._folder: Path | None = None
        self._ours = False
        self._environment: dict[str, str] = {}
        self._sign = Sign.left_in(Layout(Path(options.folder)).work)
        try:
            loaded = sys.modules.get("ray")
            own = address is None and not (loaded is not None and loaded.is_initialized())
            self._environment = _told_ray(own=own)
            self._ray = _load_ray()
            self._ours = not self._ray.is_initialized()
            if self._ours:
                self._connect(address, cpus)
            elif address is not None:
                _check_same(address, self._ray.get_runtime_context().gcs_address)
        except BaseException:
            self.close()
            raise

    def nodes(self) -> tuple[Node, ...]:
        """Return the machines that are alive."""
        alive = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        return tuple(Node(node.get("CPU", 0.0), node.get("GPU", 0.0)) for node in alive)

    def spawn(self) -> Actor:
        """Start an actor on any node with free resources; see `Crew.spawn`."""
        kind = self._ray.remote(RayWorker).options(
            num_cpus=self.need.cpus,
            num_gpus=self.need.gpus,
            # Loading and files one after the other, and in parallel the requests for progress.
            max_concurrency=2,
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy="SPREAD",
        )
        actor = Actor(kind.remote(self._options, self.need.cpus, self._sign, __version__))
        self._actors.append(actor)
        actor.asked[actor.handle.load.remote()] = "load"
        return actor

    def give(self, worker: Actor, attempt: Attempt) -> None:
        """Assign a file; see `Crew.give`."""
        worker.attempt, worker.asked_seconds = attempt, time.monotonic()
        worker.asked[worker.handle.run.remote(attempt)] = "run"

    def wait(self, timeout_seconds: float) -> Iterator[tuple[Actor, Message]]:
        """Yield new replies; see `Crew.wait`.

        The last reply of an ended actor about its file comes before `Lost`, within about ten seconds.
        """
        self._ask()
        whose = {reference: actor for actor in self._actors for reference in actor.asked}
        if not whose:
            time.sleep(timeout_seconds)
            return
        ready, _ = self._ray.wait(list(whose), num_returns=1, timeout=timeout_seconds, fetch_local=False)
        if ready:
            ready, _ = self._ray.wait(list(whose), num_returns=len(whose), timeout=0, fetch_local=False)
        for reference in ready:
            actor = whose[reference]
            if (message := self._reply(actor, reference)) is not None:
                yield actor, message
        now = time.monotonic()
        for actor in [actor for actor in self._actors if actor.ended]:
            if "run" not in actor.asked.values() or now - actor.ended_seconds > _END_SECONDS:
                self._actors.remove(actor)
                yield actor, Lost(actor.ended)

    def kill(self, worker: Actor) -> None:
        """Kill an actor; see `Crew.kill`.

        If only its node is unreachable, the actor may continue, so its attempt is revoked and can commit nothing.
        """
        self._end(worker, "was stopped")

    def close(self) -> None:
        """End every actor, and the cluster if it is private; safe to call again."""
        asked = [reference for actor in self._actors for reference in actor.asked]
        for actor in self._actors:
            self._kill(actor)
        with contextlib.suppress(Exception):
            if asked:
                self._ray.wait(asked, num_returns=len(asked), timeout=_END_SECONDS, fetch_local=False)
        self._actors.clear()
        if self._ours:
            self._ours = False
            with _own_signals():
                self._ray.shutdown()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
        for name, value in self._environment.items():
            # Keep values that other code has set meanwhile.
            if os.environ.get(name) == value:
                del os.environ[name]
        self._environment = {}
        self._sign.take_away()

    def _ask(self) -> None:
        """Request the progress of files, at most once a second each, and only after the last request was answered."""
        now = time.monotonic()
        for actor in self._actors:
            due = actor.attempt is not None and not actor.ended and now - actor.asked_seconds >= _ASK_SECONDS
            if due and "progress" not in actor.asked.values():
                actor.asked_seconds = now
                actor.asked[actor.handle.progress.remote()] = "progress"

    def _reply(self, actor: Actor, reference: Any) -> Message | None:
        question = actor.asked.pop(reference)
        try:
            message: Message | None = self._ray.get(reference)
        except self._ray.exceptions.RayError as exc:
            # The request for progress may fail before the answer about the file is read.
            self._end(actor, f"was lost: {_reason(exc)}")
            return None
        if question == "run":
            actor.attempt = None
        return message

    def _end(self, actor: Actor, how: str) -> None:
        if actor.ended:
            return
        actor.ended, actor.ended_seconds = how, time.monotonic()
        if actor.attempt is not None:
            self._sign.revoke(actor.attempt)
        self._kill(actor)

    def _kill(self, actor: Actor) -> None:
        with contextlib.suppress(Exception):
            self._ray.kill(actor.handle, no_restart=True)

    def _connect(self, address: str | None, cpus: int) -> None:
        common: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        try:
            with _own_signals():
                if address is not None:
                    self._ray.init(address=address, **common)
                    return
                self._folder = _private_folder()
                self._ray.init(
                    address="local",
                    num_cpus=cpus,
                    include_dashboard=False,
                    object_store_memory=_OBJECT_STORE_BYTES,
                    _temp_dir=str(self._folder / "r"),
                    **common,
                )
        except Exception as exc:
            what, remedy = "a Ray cluster on this machine", "try --engine local"
            if address is not None:
                what = f"the Ray cluster {address}"
                remedy = "check the address and that Python and Ray are of the same version there"
            reason = one_line(str(exc))[:300]
            raise ConnectionFailed(f"{what} cannot be had: {type(exc).__name__}: {reason}", remedy=remedy) from exc
        # Ray may have been imported before it could be told to listen on loopback only.
        where = self._ray.util.get_node_ip_address()
        if where not in ("127.0.0.1", "::1"):
            raise InvalidSetting(
                f"Ray was loaded before the batch, and listens on {where}", remedy=f"set {_LOOPBACK}=0 before that"
            )


def share(nodes: Sequence[Node], jobs: int, *, gpu: bool) -> Need:
    """Return the resources that each of `jobs` actors, with GPUs or without, can have so that all fit at once."""
    gpus = [node.gpus for node in nodes if node.gpus >= 1] if gpu else []
    if not gpus:
        return Need(_most_cpus([node.cpus for node in nodes], jobs))
    sharing = next((n for n in range(1, _MOST_SHARING_GPU) if sum(map(int, gpus)) * n >= jobs), _MOST_SHARING_GPU)
    fitting = [node for node in nodes if node.gpus >= 1]
    cpus = min(max(1, int(node.cpus // (int(node.gpus) * sharing))) for node in fitting)
    return Need(cpus, 1 / sharing)


def _most_cpus(cpus: Sequence[float], jobs: int) -> int:
    for each in range(int(max(cpus, default=1.0)), 1, -1):
        if sum(int(have // each) for have in cpus) >= jobs:
            return each
    return 1


def _uses_gpu(options: JobOptions) -> bool:
    settings = Settings.checked(dict(options.settings))
    return settings.loop.device != "cpu" or settings.models.device != "cpu"


def _default_jobs(nodes: tuple[Node, ...], gpu: bool) -> int:
    gpus = sum(int(node.gpus) for node in nodes) if gpu else 0
    return gpus or max(1, sum(int(node.cpus) // 2 for node in nodes))


def _told_ray(*, own: bool) -> dict[str, str]:
    """Configure Ray, before its import, to be quiet and private; return the variables that were set."""
    wanted = dict(_QUIET)
    if own:
        wanted |= {_LOOPBACK: "0", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": _token(), **_IDLE}
    told = {name: value for name, value in wanted.items() if name not in os.environ}
    os.environ.update(told)
    return told


@functools.cache
def _token() -> str:
    """Return the token; one a process, since Ray remembers the first."""
    return secrets.token_hex(32)


def _load_ray() -> Any:
    with needed_by("--engine ray", "ray"):
        return importlib.import_module("ray")


def _check_same(asked: str, connected: str) -> None:
    if asked != "auto" and _resolved(asked) != _resolved(connected):
        raise InvalidSetting(
            f"Ray is connected with {connected} already, and {redact_url(asked)} was asked for",
            remedy="name that one, or `ray.shutdown()` before",
        )


def _resolved(address: str) -> str:
    """Return the address with its host as a number if it resolves."""
    host, colon, port = address.rpartition(":")
    try:
        return f"{socket.gethostbyname(host)}{colon}{port}"
    except (OSError, UnicodeError):
        return address


def _private_folder() -> Path:
    """Create a folder that no other user can enter, with a path short enough for socket names.

    Ray opens its own folder, with sockets and logs, to everybody, so it gets one inside this.
    """
    place = tempfile.gettempdir()
    return Path(tempfile.mkdtemp(prefix="arr-ray-", dir=place if len(place) <= _LONGEST_FOLDER else "/tmp"))


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Keep the SIGTERM handler: Ray's would end the process silently."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before if before is not None else signal.SIG_DFL)


def _reason(exc: Exception) -> str:
    """Return Ray's reason for the end of an actor, in one line, without names and advice."""
    lines = [line.strip() for line in str(exc).splitlines() if line.strip()]
    if any("Traceback" in line for line in lines):
        return redact_url(lines[-1])[:200]
    told = " ".join(line for line in lines if not line.startswith(_NAMING)) or type(exc).__name__
    told = told.partition("Worker exit detail: ")[2] or told
    return redact_url(told.partition(" Some common causes")[0])[:200].rstrip(".")
