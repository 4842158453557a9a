"""Keyframes made in processes of their own, so that a live frame loop never waits for one.

Processes and not threads: generation in a thread would share the interpreter's lock and the thread pools of OpenCV
and onnxruntime with the frame loop, and each keyframe would be seen as a jump in latency. Heavy parts have a process
each: the slowest holds up no other, and one that dies takes none with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, TypeVar, cast

from arr_stream.config import Settings
from arr_stream.errors import ArrStreamError, KeyframeFailed, error_by_name
from arr_stream.keyframes.base import PARTS, KeyframePart, PartName
from arr_stream.keyframes.generate import KeyframeFailure, KeyframeRequest
from arr_stream.processes import receive, send

if TYPE_CHECKING:
    from arr_stream.keyframes.worker_main import Refused

Reply = TypeVar("Reply")

_STANDARD_FACTORY = "arr_stream.keyframes.worker_main:standard_generator"
_START_TIMEOUT_SECONDS = 120.0
_BACKOFF_SECONDS = 0.5
_LONGEST_BACKOFF_SECONDS = 30.0
_JOIN_SECONDS = 2.0
_STDERR_TAIL_BYTES = 4000


Outcome = KeyframePart | KeyframeFailure


class KeyframeWorker:
    """A `KeyframeProvider` that generates in a child process, one request at a time, its parts one after the other.

    Neither `submit` nor `collect` waits: a thread starts the process, moves pictures and results, and replaces a
    process that died or was stopped because it took too long. The first replacement follows at the next `submit`; when
    processes go on failing, later ones wait longer and longer (`submit` says False meanwhile).

    Args:
        settings: What the factory is given; values that JSON can say.
        parts: What this worker makes; of other parts it knows nothing.
        factory: `module:function`; called in the process with the settings, `threads` and the parts, gives a
            `KeyframeGenerator`.
        timeout_seconds: A generation that takes longer is stopped and reported.
        threads: Threads of the process's pools (OpenCV, OpenMP, onnxruntime).
        nice: How far the process's priority is lowered, where the system has such a thing.

    Attributes:
        ready: Set once the first start is over: models are loaded, or it failed (`wait_ready` raises then).
    """

    def __init__(
        self,
        settings: Settings | Mapping[str, Any],
        *,
        parts: Sequence[PartName] = PARTS,
        factory: str = _STANDARD_FACTORY,
        timeout_seconds: float = 30.0,
        threads: int = 1,
        nice: int = 15,
    ) -> None:
        values = settings.model_dump(mode="json") if isinstance(settings, Settings) else dict(settings)
        self.parts = tuple(parts)
        self._command = _command(values, factory, self.parts, threads, nice)
        self._environment = _environment(threads)
        self._timeout_seconds = timeout_seconds
        self._inbox: queue.SimpleQueue[KeyframeRequest | None] = queue.SimpleQueue()
        self._arrived: deque[Outcome] = deque()
        self._lock = threading.Lock()
        self._busy = False
        self._closed = False
        self._process: _Process | None = None
        self._losses = 0
        self._not_before_seconds = 0.0
        self.ready = threading.Event()
        self._start_error: ArrStreamError | None = None
        self._thread = threading.Thread(target=self._serve, name="keyframe-worker", daemon=True)
        self._thread.start()

    def wait_ready(self, timeout_seconds: float | None = None) -> bool:
        """Wait until the first start is over; False when it is still going on after `timeout_seconds`.

        Raises:
            BackendUnavailable: A package or weights are missing.
            KeyframeFailed: The process could not start.
        """
        if not self.ready.wait(timeout_seconds):
            return False
        if self._start_error is not None:
            raise self._start_error
        return True

    def submit(self, request: KeyframeRequest) -> tuple[PartName, ...]:
        """Ask for a keyframe; its picture must not be written to afterwards.

        Returns:
            The parts that will be made: none when another request is under way, after repeated failures for a while,
            and once closed.
        """
        parts = tuple(part for part in request.parts if part in self.parts)
        with self._lock:
            if not parts or self._closed or self._busy or time.monotonic() < self._not_before_seconds:
                return ()
            self._busy = True
        self._inbox.put(replace(request, parts=parts))
        return parts

    def collect(self) -> list[Outcome]:
        arrived: list[Outcome] = []
        while self._arrived:
            arrived.append(self._arrived.popleft())
        return arrived

    def stop(self) -> None:
        """Begin to end, without waiting: what is under way is given up."""
        with self._lock:
            self._closed = True
            process = self._process
        if process is not None:
            process.kill()
        self._inbox.put(None)

    def close(self) -> None:
        """End process and thread, in the middle of a generation too; at most about two seconds."""
        self.stop()
        self._thread.join(_JOIN_SECONDS)

    def __enter__(self) -> KeyframeWorker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def _serve(self) -> None:
        """The thread: first start, then one request after the other until closed."""
        if hasattr(signal, "pthread_sigmask"):
            # Inherited by the process: Ctrl-C cannot reach it before it has arranged to ignore it.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._first_start()
            while (request := self._inbox.get()) is not None:
                failure = self._answer(request)
                with self._lock:
                    if failure is not None:
                        self._arrived.append(failure)
                    self._busy = False
        finally:
            self._discard()

    def _first_start(self) -> None:
        try:
            self._running()
        except ArrStreamError as exc:
            self._start_error = exc
            self._discard()
        finally:
            self.ready.set()

    def _answer(self, request: KeyframeRequest) -> KeyframeFailure | None:
        """Let the process work on a request; what it makes arrives as it is made. A failure if it did not last."""
        index = request.frame.index
        left = set(request.parts)

        def arrive(outcome: Outcome) -> None:
            left.difference_update(outcome.parts if isinstance(outcome, KeyframeFailure) else {outcome.part})
            self._arrived.append(outcome)

        try:
            self._running().ask(_without_vectors(request), self._timeout_seconds, arrive)
        except Exception as exc:
            # Whatever went wrong, the thread lives on: its end would leave the provider busy for ever.
            self._discard()
            self._back_off()
            parts = tuple(part for part in request.parts if part in left)
            if isinstance(exc, _Lost):
                return KeyframeFailure(index, str(exc), exc.details, parts)
            if isinstance(exc, ArrStreamError):
                return KeyframeFailure(index, str(exc), "", parts)
            message = f"keyframe worker: {type(exc).__name__}: {exc}"
            return KeyframeFailure(index, message, traceback.format_exc(), parts)
        self._losses = 0
        self._start_error = None
        return None

    def _running(self) -> _Process:
        """The process, started when there is none or it has ended since."""
        if self._process is not None and self._process.alive:
            return self._process
        self._discard()
        process = _Process(self._command, self._environment)
        with self._lock:
            self._process = process
            if self._closed:
                process.kill()
        process.wait_ready(_START_TIMEOUT_SECONDS)
        return process

    def _back_off(self) -> None:
        self._losses += 1
        if self._losses > 1:
            pause = min(_LONGEST_BACKOFF_SECONDS, _BACKOFF_SECONDS * 2.0 ** (self._losses - 2))
            with self._lock:
                self._not_before_seconds = time.monotonic() + pause

    def _discard(self) -> None:
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.end()


class KeyframeWorkers:
    """Several workers as one `KeyframeProvider`: parts are made side by side, and each arrives when it is ready.

    Args:
        settings: What the workers are given.
    """

    def __init__(self, settings: Settings) -> None:
        self.workers = tuple(
            KeyframeWorker(settings, parts=parts, timeout_seconds=settings.keyframes.timeout_seconds)
            for parts in worker_groups(settings)
        )

    def wait_ready(self, timeout_seconds: float | None = None) -> bool:
        """Wait until all are ready; False when one is still starting after `timeout_seconds`.

        Raises:
            ArrStreamError: What the first that could not start says.
        """
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        return all(
            worker.wait_ready(None if deadline is None else max(0.0, deadline - time.monotonic()))
            for worker in self.workers
        )

    def submit(self, request: KeyframeRequest) -> tuple[PartName, ...]:
        return tuple(part for worker in self.workers for part in worker.submit(request))

    def collect(self) -> list[Outcome]:
        return [outcome for worker in self.workers for outcome in worker.collect()]

    def close(self) -> None:
        for worker in self.workers:
            worker.stop()
        for worker in self.workers:
            worker.close()

    def __enter__(self) -> KeyframeWorkers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()


def worker_groups(settings: Settings) -> tuple[tuple[PartName, ...], ...]:
    """Which parts share a process: light ones do, heavy ones have their own.

    `features` clusters by what the embedder gives, so the two stay together, and the model is loaded once.
    """
    keyframes = settings.keyframes
    together: tuple[tuple[PartName, ...], ...]
    heavy_clusters, heavy_embedding = keyframes.clusters == "sam", keyframes.embeddings == "clip"
    if keyframes.clusters != "features" and (heavy_clusters or heavy_embedding):
        together = (("clusters",), ("embedding",))
    else:
        together = (("clusters", "embedding"),)
    if keyframes.text == "none":
        return (*together[:-1], (*together[-1], "text"))
    return (*together, ("text",))


class _Lost(KeyframeFailed):
    """The process ended or was stopped; `details` is what it last wrote to standard error."""

    def __init__(self, message: str, details: str) -> None:
        super().__init__(message)
        self.details = details


class _Process:
    """One child process and its pipes, used from one thread except for `kill`."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        # A file and not a pipe: nobody need read it for the process to go on, and it is there after a crash.
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            self._popen = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr, env=environment
            )
        except OSError as exc:
            self._stderr.close()
            raise KeyframeFailed(f"keyframe worker: {command[0]} does not start: {exc}") from exc

    @property
    def alive(self) -> bool:
        return self._popen.poll() is None

    def wait_ready(self, timeout_seconds: float) -> None:
        """Wait for the models.

        Raises:
            ArrStreamError: The error that the factory raised, or that the process ended.
        """
        # Imported late: `python -m ...worker_main` warns when importing the package has imported it already.
        from arr_stream.keyframes.worker_main import Refused

        reply = self._within(timeout_seconds, "starting", lambda: receive(self._replies))
        if isinstance(reply, Refused):
            raise _as_error(reply)

    def ask(self, request: KeyframeRequest, timeout_seconds: float, arrive: Callable[[Outcome], None]) -> None:
        """One request; `arrive` is called with each part as it comes.

        Raises:
            KeyframeFailed: The process ended, or took longer and was killed.
        """
        from arr_stream.keyframes.worker_main import Done

        def exchange() -> None:
            send(self._requests, request)
            while not isinstance(reply := receive(self._replies), Done):
                arrive(reply)

        self._within(timeout_seconds, "generating", exchange)

    def kill(self) -> None:
        """Stop at once; whoever waits for a reply is told that there will be none."""
        self._popen.kill()

    def end(self) -> None:
        """Stop, and free the process entry and the pipes."""
        self._popen.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(_JOIN_SECONDS)
        for pipe in (self._requests, self._replies, self._stderr):
            with contextlib.suppress(OSError):
                pipe.close()

    @property
    def _requests(self) -> IO[bytes]:
        return cast("IO[bytes]", self._popen.stdin)

    @property
    def _replies(self) -> IO[bytes]:
        return cast("IO[bytes]", self._popen.stdout)

    def _within(self, timeout_seconds: float, doing: str, work: Callable[[], Reply]) -> Reply:
        """Do something that waits for the process; kill it when that takes too long."""
        deadline = _Deadline(timeout_seconds, self.kill)
        try:
            return work()
        except (EOFError, OSError) as exc:
            expired = f"took longer than {timeout_seconds:g} s and was stopped" if deadline.expired else self._ending()
            raise _Lost(f"keyframe worker: {doing}: {expired}", self._last_words()) from exc
        finally:
            deadline.cancel()

    def _ending(self) -> str:
        try:
            code = self._popen.wait(_JOIN_SECONDS)
        except subprocess.TimeoutExpired:
            return "the process closed its pipes"
        if code == -signal.SIGKILL:
            return "the process was ended by SIGKILL, as the system does when memory runs out"
        if code < 0:
            return f"the process was ended by {signal.Signals(-code).name}"
        return f"the process ended with exit code {code}"

    def _last_words(self) -> str:
        size = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, size - _STDERR_TAIL_BYTES))
        return self._stderr.read().decode("utf-8", "replace").strip()


class _Deadline:
    """Calls `expire` after a time, unless cancelled before; afterwards `expired` tells which it was."""

    def __init__(self, seconds: float, expire: Callable[[], None]) -> None:
        self.expired = False
        self._over = False
        self._lock = threading.Lock()
        self._expire = expire
        self._timer = threading.Timer(seconds, self._fire)
        self._timer.daemon = True
        self._timer.start()

    def cancel(self) -> None:
        with self._lock:
            self._over = True
        self._timer.cancel()

    def _fire(self) -> None:
        with self._lock:
            if not self._over:
                self.expired = True
                self._expire()


def _command(
    settings: Mapping[str, Any], factory: str, parts: Sequence[PartName], threads: int, nice: int
) -> list[str]:
    # -P keeps the current folder from shadowing modules; PYTHONPATH says where this process finds them.
    program = [sys.executable, "-P", "-m", "arr_stream.keyframes.worker_main"]
    options = ["--factory", factory, "--settings", json.dumps(settings), "--parts", ",".join(parts)]
    return [*program, *options, "--threads", str(threads), "--nice", str(nice)]


def _environment(threads: int) -> dict[str, str]:
    pools = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    return {**os.environ, **dict.fromkeys(pools, str(threads)), "PYTHONPATH": path}


def _without_vectors(request: KeyframeRequest) -> KeyframeRequest:
    """Motion vectors are no use to generation and cost as much to send as a small picture."""
    return replace(request, frame=replace(request.frame, motion_vectors=None))


def _as_error(refused: Refused) -> ArrStreamError:
    """The factory's error, of its own class where that is one of ours."""
    lost = _Lost(f"keyframe worker: starting: {refused.error}: {refused.message}", refused.details)
    return error_by_name(refused.error, refused.message, refused.remedy) or lost
