"""The local engine: processes of this machine, each with its models and its share of the cores."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, cast

from arr_stream.batch.job import Attempt, Event, JobFailed, JobFinished, JobOptions, JobProgress
from arr_stream.errors import ArrStreamError, WorkerLost
from arr_stream.plain_text import redact_url
from arr_stream.processes import receive, send

_MOST_LOST_STARTS = 3
_JOIN_SECONDS = 5.0
_LONGEST_DYING_SECONDS = 30.0
_STDERR_TAIL_BYTES = 2000


class LocalEngine:
    """Worker processes, one a slot; started at once, and replaced when they die.

    They die with the thread that started them, so that is one that lasts, such as the main one.

    Args:
        options: What is done with every file.
        jobs: How many workers.
        inherited: Open files that every worker holds for as long as it lives, such as the lock of the output folder.
        stall_seconds: A worker that makes no frame for so long is killed, and its file counts as lost; 0: never.

    Raises:
        WorkerLost: A process cannot be started.

    Attributes:
        slots: How many files are done at once.
    """

    def __init__(
        self, options: JobOptions, *, jobs: int, inherited: Sequence[int] = (), stall_seconds: float = 0.0
    ) -> None:
        self.slots = jobs
        self._stall_seconds = stall_seconds
        self._options = options
        self._threads = max(1, usable_cores() // jobs)
        self._inherited = tuple(inherited)
        self._heard: queue.SimpleQueue[tuple[_Worker, Any]] = queue.SimpleQueue()
        self._waiting: deque[Attempt] = deque()
        self._workers: list[_Worker] = []
        self._lost_starts = 0
        self._error: ArrStreamError | None = None
        self._closed = False
        try:
            for _ in range(jobs):
                self._start()
        except BaseException:
            self.close()
            raise

    def submit(self, attempt: Attempt) -> None:
        """Give a file to the next free worker; see `Engine.submit`."""
        self._waiting.append(attempt)
        self._hand_out()

    def poll(self, timeout_seconds: float) -> list[Event]:
        """What happened since; see `Engine.poll`.

        Raises:
            ArrStreamError: Workers refuse to begin, die again and again before they do, or cannot be ended.
        """
        if self._error is not None:
            raise self._error
        events: list[Event] = []
        try:
            self._take_all(timeout_seconds, events)
            if self._stall_seconds:
                self._end_stalled()
        except ArrStreamError as exc:
            if not events:
                raise
            # What happened before is told first.
            self._error = exc
        return events

    def close(self) -> None:
        """End every worker, whatever it does; safe to call again."""
        self._closed = True
        for worker in self._workers:
            worker.kill()
        for worker in self._workers:
            worker.end()
        self._workers.clear()

    @property
    def process_ids(self) -> tuple[int, ...]:
        """Of the workers that have begun: their models are loaded."""
        return tuple(worker.process_id for worker in self._workers if worker.ready)

    def _start(self) -> None:
        self._workers.append(_Worker(self._options, self._threads, self._inherited, self._heard))

    def _hand_out(self) -> None:
        for worker in self._workers:
            if self._waiting and worker.free:
                worker.give(self._waiting.popleft())

    def _take_all(self, timeout_seconds: float, events: list[Event]) -> None:
        with contextlib.suppress(queue.Empty):
            self._take(*self._heard.get(timeout=timeout_seconds), events)
            while True:
                self._take(*self._heard.get_nowait(), events)

    def _take(self, worker: _Worker, message: Any, events: list[Event]) -> None:
        # Imported late: `python -m ...local_worker` warns when importing the package has imported it already.
        from arr_stream.batch.local_worker import Ready, Refused

        if worker not in self._workers:
            return
        if isinstance(message, Refused):
            raise message.as_error()
        if isinstance(message, Ready):
            self._lost_starts = 0
            worker.ready = True
            worker.heard_seconds = time.monotonic()
        elif message is None:
            self._replace(worker, events)
        else:
            worker.heard_seconds = time.monotonic()
            if isinstance(message, JobFinished | JobFailed):
                worker.attempt = None
            elif isinstance(message, JobProgress):
                worker.frames = message.frames
            events.append(message)
        self._hand_out()

    def _end_stalled(self) -> None:
        """Kill who makes no frames; the thread that hears it tells of its end, after whatever it had said before."""
        for worker in self._workers:
            if worker.attempt is None or worker.silent_seconds <= self._stall_seconds:
                continue
            if worker.stopped is None:
                worker.stopped = f"made no frame for {self._stall_seconds:g} s and was stopped"
                worker.kill()
            elif worker.silent_seconds > self._stall_seconds + _LONGEST_DYING_SECONDS:
                raise _immortal(worker)

    def _replace(self, worker: _Worker, events: list[Event]) -> None:
        """Tell what the end of a worker cost, and start another."""
        ended = worker.end()
        self._workers.remove(worker)
        ending = worker.stopped or ended
        if worker.alive:
            # It may yet bring its file to its place, and another attempt must not meet it there.
            raise _immortal(worker)
        if not worker.ready:
            self._lost_starts += 1
            if self._lost_starts >= _MOST_LOST_STARTS:
                raise WorkerLost(f"a worker {ending} before it could begin, {self._lost_starts} times in a row")
        if worker.attempt is not None:
            message = redact_url(f"{worker.attempt.job.source}: the worker {ending}")
            lost = JobFailed(
                worker.attempt,
                worker.frames,
                WorkerLost.__name__,
                message,
                "try it alone with `arr-stream process`; it may need more memory than there is",
                WorkerLost.exit_code,
                retryable=True,
            )
            events.append(lost)
        if not self._closed:
            self._start()


class _Worker:
    """One process, and a thread that hears it.

    Attributes:
        ready: Its models are loaded.
        attempt: What it is doing.
        frames: How far it is with that.
        heard_seconds: When it last said something, on the clock of `time.monotonic`.
        stopped: Why it was killed; None: it was not.
    """

    def __init__(
        self,
        options: JobOptions,
        threads: int,
        inherited: tuple[int, ...],
        heard: queue.SimpleQueue[tuple[_Worker, Any]],
    ) -> None:
        self.ready = False
        self.attempt: Attempt | None = None
        self.frames = 0
        self.heard_seconds = time.monotonic()
        self.stopped: str | None = None
        self._heard = heard
        # A file and not a pipe: nobody need read it for the process to go on, and it is there after a crash.
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            self._popen = subprocess.Popen(
                _command(threads),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                env=_environment(threads),
                pass_fds=inherited,
                # Ctrl-C on the terminal is for the parent alone.
                start_new_session=True,
            )
        except OSError as exc:
            self._stderr.close()
            raise WorkerLost(f"a worker cannot be started: {exc}", remedy="try fewer --jobs") from exc
        self._thread = threading.Thread(target=self._hear, name="batch-worker", daemon=True)
        self._thread.start()
        self._send(options)

    @property
    def free(self) -> bool:
        """It may be given a file, which waits in its pipe until models are loaded."""
        return self.attempt is None and self.stopped is None

    @property
    def alive(self) -> bool:
        """The process has not ended, or not been waited for."""
        return self._popen.poll() is None

    @property
    def silent_seconds(self) -> float:
        """For how long it has said nothing; not counted while it loads its models."""
        return time.monotonic() - self.heard_seconds if self.ready else 0.0

    @property
    def process_id(self) -> int:
        return self._popen.pid

    def give(self, attempt: Attempt) -> None:
        self.attempt, self.frames, self.heard_seconds = attempt, 0, time.monotonic()
        self._send(attempt)

    def kill(self) -> None:
        """Stop at once."""
        self._popen.kill()

    def end(self) -> str:
        """Stop, and free the process entry, the thread and the pipes; how it ended, in words."""
        how = "was stopped"
        if not self.ready or self._popen.poll() is None:
            # Its pipes are closed, so it is about to end by itself if it is not being stopped.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._popen.wait(0.5)
        code = self._popen.poll()
        if code is None:
            self._popen.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._popen.wait(_JOIN_SECONDS)
        else:
            how = f"was ended by {_signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
        self._thread.join(_JOIN_SECONDS)
        # What ended by a signal had no time for a last word; what stands there is about something else.
        if code and code > 0 and (words := self._last_words()):
            how += f" ({words})"
        for pipe in (self._popen.stdin, self._popen.stdout, self._stderr):
            with contextlib.suppress(OSError):
                cast("IO[bytes]", pipe).close()
        return how

    def _send(self, message: object) -> None:
        # A process that has ended is told by the thread that hears it.
        with contextlib.suppress(OSError):
            send(cast("IO[bytes]", self._popen.stdin), message)

    def _hear(self) -> None:
        """The thread: hands on what the process says, and at last that it says no more."""
        with contextlib.suppress(EOFError, OSError, ValueError):
            while True:
                self._heard.put((self, receive(cast("IO[bytes]", self._popen.stdout))))
        self._heard.put((self, None))

    def _last_words(self) -> str:
        """The last line on standard error, where a crash leaves its reason."""
        with contextlib.suppress(OSError, ValueError):
            size = self._stderr.seek(0, os.SEEK_END)
            self._stderr.seek(max(0, size - _STDERR_TAIL_BYTES))
            lines = self._stderr.read().decode("utf-8", "replace").strip().splitlines()
            return lines[-1][:200] if lines else ""
        return ""


def _immortal(worker: _Worker) -> WorkerLost:
    return WorkerLost(
        f"process {worker.process_id} cannot be ended", remedy="see what it waits for; the same command goes on then"
    )


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _command(threads: int) -> list[str]:
    # -P keeps the current folder from shadowing modules; PYTHONPATH says where this process finds them.
    program = [sys.executable, "-P", "-m", "arr_stream.batch.local_worker"]
    return [*program, "--threads", str(threads), "--parent", str(os.getpid())]


def _environment(threads: int) -> dict[str, str]:
    pools = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    return {**os.environ, **dict.fromkeys(pools, str(threads)), "PYTHONPATH": path}
