"""The Ray engine: actors on a cluster, each with its models, its cores and its share of a GPU.

The output folder is one that all nodes share. An actor that ends, with its process or its whole node, is replaced by
one that Ray places wherever there is room, and its file is told as lost, so that it is done again.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from arr_stream.batch.job import Attempt, Event, JobFailed, JobFinished, JobOptions, JobProgress, JobStarted
from arr_stream.batch.layout import Layout
from arr_stream.batch.local import usable_cores
from arr_stream.batch.local_worker import Refused
from arr_stream.batch.ray_cluster import Actor, Answer, Lost, Message, Need, Node, RayCluster, share
from arr_stream.batch.ray_worker import Loaded, Sign
from arr_stream.config import Settings
from arr_stream.errors import WorkerLost
from arr_stream.files import writing
from arr_stream.plain_text import redact_url

_MOST_LOST_STARTS = 3
_MOST_LOST = 20
"""Actors that may end in a row, none of them having done a file, before the batch is given up."""
_START_SECONDS = 600.0
_ASK_SECONDS = 1.0


class Cluster(Protocol):
    """What the engine asks of Ray; see `RayCluster`."""

    def nodes(self) -> tuple[Node, ...]: ...
    def spawn(self, need: Need) -> Actor: ...
    def give(self, actor: Actor, attempt: Attempt) -> None: ...
    def ask(self, actor: Actor) -> None: ...
    def wait(self, timeout_seconds: float) -> list[tuple[Actor, Message]]: ...
    def discard(self, actor: Actor) -> Answer | None: ...
    def close(self) -> None: ...


@dataclass(eq=False, slots=True)
class _Worker:
    """What is known of an actor.

    Args:
        actor: Which.
        loaded: Who it is, once its models are loaded.
        attempt: What it is doing.
        frames: How far it is with that.
        asked_seconds: When it was last asked.
        moved_seconds: When it was last seen to be further.
    """

    actor: Actor
    loaded: Loaded | None = None
    attempt: Attempt | None = None
    frames: int = 0
    asked_seconds: float = 0.0
    moved_seconds: float = 0.0


class RayEngine:
    """Actors of a Ray cluster, one a slot; started at once, and replaced when they end.

    Args:
        options: What is done with every file; the folder is shared by all nodes under the same path.
        jobs: How many actors; None for one a GPU, or without GPUs, one for two cores.
        files: How many there are to do: there are no more actors than that.
        address: Of a cluster, such as `10.0.0.1:6379`, or `auto`; None for one of its own on this machine.
        cpus_per_worker: Cores of an actor; None for an equal share.
        gpus_per_worker: GPUs of an actor, or the share of one; None for an equal share where the settings use any.
        stall_seconds: An actor that makes no frame for so long is ended, and its file counts as lost; 0: never.
        cluster: Instead of a real one.

    Raises:
        BackendUnavailable: Ray is not installed.
        ConnectionFailed: There is no such cluster, or none can be started.
        OutputError: The folder cannot be written to.

    Attributes:
        slots: How many files are done at once.
    """

    def __init__(
        self,
        options: JobOptions,
        *,
        jobs: int | None = None,
        files: int | None = None,
        address: str | None = None,
        cpus_per_worker: int | None = None,
        gpus_per_worker: float | None = None,
        stall_seconds: float = 0.0,
        cluster: Cluster | None = None,
    ) -> None:
        self._waiting: deque[Attempt] = deque()
        self._workers: list[_Worker] = []
        self._lost_starts = self._lost = 0
        self._error: Exception | None = None
        self._stall_seconds = stall_seconds
        self._began_seconds = time.monotonic()
        self._sign = _leave_sign(options)
        self._cluster = cluster
        try:
            cores = max(usable_cores(), (jobs or 1) * (cpus_per_worker or 1))
            self._cluster = cluster or RayCluster(options, self._sign, address=address, cpus=cores)
            nodes, gpu = self._cluster.nodes(), _uses_gpu(options)
            self.slots = min(jobs or _default_jobs(nodes, gpu), files or sys.maxsize)
            fair = share(nodes, self.slots, gpu=gpu)
            self._need = Need(
                fair.cpus if cpus_per_worker is None else cpus_per_worker,
                fair.gpus if gpus_per_worker is None else gpus_per_worker,
            )
            for _ in range(self.slots):
                self._start()
        except BaseException:
            self.close()
            raise

    def submit(self, attempt: Attempt) -> None:
        """Give a file to the next free actor; see `Engine.submit`."""
        self._waiting.append(attempt)

    def poll(self, timeout_seconds: float) -> list[Event]:
        """What happened since; see `Engine.poll`.

        Raises:
            ArrStreamError: Actors refuse to begin, end again and again, or find no room.
        """
        events: list[Event] = []
        if self._error is None:
            with self._keeping():
                self._look(timeout_seconds, events)
        # An error waits for the next call, so that what happened before it is heard.
        if self._error is not None and not events:
            raise self._error
        return events

    def _look(self, timeout_seconds: float, events: list[Event]) -> None:
        assert self._cluster is not None
        self._hand_out(events)
        self._ask()
        for actor, message in self._cluster.wait(0.0 if events else timeout_seconds):
            worker = next((worker for worker in self._workers if worker.actor is actor), None)
            if worker is not None:
                with self._keeping():
                    self._take(worker, message, events)
        if self._error is None:
            self._end_stalled(events)
            self._hand_out(events)
            self._check_begun()

    @contextlib.contextmanager
    def _keeping(self) -> Iterator[None]:
        """Keep the first error for later."""
        try:
            yield
        except Exception as exc:
            self._error = self._error or exc

    def close(self) -> None:
        """End every actor, and Ray if it was started for this; safe to call again."""
        self._workers.clear()
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None
        # The sign first: without it nothing is committed any more.
        with contextlib.suppress(OSError):
            self._sign.path.unlink(missing_ok=True)
        shutil.rmtree(self._sign.marks, ignore_errors=True)

    @property
    def process_ids(self) -> tuple[int, ...]:
        """Of the actors that have begun, on whatever node they are."""
        return tuple(worker.loaded.process_id for worker in self._workers if worker.loaded is not None)

    def _start(self) -> None:
        assert self._cluster is not None
        self._workers.append(_Worker(self._cluster.spawn(self._need)))

    def _hand_out(self, events: list[Event]) -> None:
        assert self._cluster is not None
        for worker in self._workers:
            if self._waiting and worker.loaded is not None and worker.attempt is None:
                worker.attempt, worker.frames = self._waiting.popleft(), 0
                worker.asked_seconds = worker.moved_seconds = time.monotonic()
                self._cluster.give(worker.actor, worker.attempt)
                events.append(JobStarted(worker.attempt, str(worker.loaded)))

    def _ask(self) -> None:
        """Ask how far files are, at most once a second each."""
        assert self._cluster is not None
        now = time.monotonic()
        for worker in self._workers:
            if worker.attempt is not None and now - worker.asked_seconds >= _ASK_SECONDS:
                worker.asked_seconds = now
                self._cluster.ask(worker.actor)

    def _end_stalled(self, events: list[Event]) -> None:
        assert self._cluster is not None
        now = time.monotonic()
        for worker in list(self._workers) if self._stall_seconds else ():
            if worker.attempt is not None and now - worker.moved_seconds > self._stall_seconds:
                self._sign.revoke(worker.attempt)
                told = self._cluster.discard(worker.actor)
                # It may have been done just then; a failure may be that of what was revoked.
                if isinstance(told, JobFinished):
                    self._take(worker, told, events)
                self._replace(worker, Lost(f"made no frame for {self._stall_seconds:g} s and was stopped"), events)

    def _take(self, worker: _Worker, message: Message, events: list[Event]) -> None:
        match message:
            case Refused():
                raise message.as_error()
            case Loaded():
                self._lost_starts = 0
                worker.loaded = message
            case Lost():
                self._replace(worker, message, events)
            case JobProgress():
                # An answer may be about the file before.
                if message.attempt == worker.attempt and message.frames > worker.frames:
                    worker.frames, worker.moved_seconds = message.frames, time.monotonic()
                    events.append(message)
            case JobFinished() | JobFailed() if message.attempt == worker.attempt:
                self._lost = 0
                worker.attempt = None
                events.append(message)

    def _replace(self, worker: _Worker, lost: Lost, events: list[Event]) -> None:
        """Tell what the end of an actor cost, and start another."""
        self._workers.remove(worker)
        if worker.attempt is not None:
            # Its node may only be out of reach, and go on.
            self._sign.revoke(worker.attempt)
        self._lost += 1
        self._lost_starts += worker.loaded is None
        if self._lost_starts >= _MOST_LOST_STARTS or self._lost >= _MOST_LOST:
            times = (
                f"{self._lost} workers" if self._lost >= _MOST_LOST else f"{self._lost_starts} before they could begin"
            )
            raise WorkerLost(
                f"workers of Ray end again and again ({times}): {lost.reason}",
                remedy="see Ray's logs; the nodes may lack memory, or arr-stream",
            )
        if worker.attempt is not None:
            message = redact_url(f"{worker.attempt.job.source}: {worker.loaded} was lost: {lost.reason}")
            events.append(
                JobFailed(
                    worker.attempt,
                    worker.frames,
                    WorkerLost.__name__,
                    message,
                    "try it alone with `arr-stream process`; it may need more memory than there is",
                    WorkerLost.exit_code,
                    retryable=True,
                )
            )
        self._start()

    def _check_begun(self) -> None:
        """Raises:
        WorkerLost: The cluster has no room for even one actor.
        """
        if any(worker.loaded is not None for worker in self._workers):
            self._began_seconds = time.monotonic()
        elif time.monotonic() - self._began_seconds > _START_SECONDS:
            raise WorkerLost(
                f"no worker could begin within {_START_SECONDS:g} s; each takes {self._need.cpus} cores and"
                f" {self._need.gpus:g} GPUs",
                remedy="let others finish on the cluster, or add nodes",
            )


def _leave_sign(options: JobOptions) -> Sign:
    """A file in the output folder by which actors know that it is the same one.

    Raises:
        DiskFull, OutputUnwritable: It cannot be written.
    """
    work = Layout(Path(options.folder)).work
    sign = Sign(work / f"ray-{secrets.token_hex(8)}", secrets.token_hex(16))
    with writing(sign.path):
        work.mkdir(parents=True, exist_ok=True)
        sign.path.write_text(sign.text)
    return sign


def _uses_gpu(options: JobOptions) -> bool:
    settings = Settings.checked(dict(options.settings))
    return settings.loop.device != "cpu" or settings.models.device != "cpu"


def _default_jobs(nodes: tuple[Node, ...], gpu: bool) -> int:
    gpus = sum(int(node.gpus) for node in nodes) if gpu else 0
    return gpus or max(1, sum(int(node.cpus) // 2 for node in nodes))
