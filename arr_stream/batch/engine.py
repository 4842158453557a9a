"""Engines start the workers of a batch; `LocalEngine` starts processes of this machine.

An engine only starts workers, passes messages and ends workers. `arr_stream.batch.batch` decides everything else.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from arr_stream.batch.job import Attempt, JobFailed, JobFinished, JobOptions
from arr_stream.errors import WorkerLost
from arr_stream.processes import ChildProcess, Ready, Refused, Reply, ending, environment, serving_command, usable_cores

_CLOSE_SECONDS = 5.0
_GRACE_SECONDS = 0.5
_LONGEST_LAST_LINE = 200


@dataclass(frozen=True, slots=True)
class Loaded:
    """Message that a worker's models are loaded; `name` is its process, such as `process 12`."""

    name: str


@dataclass(frozen=True, slots=True)
class Lost:
    """Message that a worker ended; `how` in one line: `was ended by SIGKILL`."""

    how: str


Message = Loaded | Refused | JobFinished | JobFailed | Lost


@dataclass(eq=False)
class Worker:
    """Worker, its process's name ("" until its models are loaded), and its current file."""

    name: str = ""
    attempt: Attempt | None = None


class WorkerEngine(Protocol):
    """Backend of a batch that starts `slots` workers, receives their messages and ends them."""

    slots: int

    def start(self) -> Worker:
        """Start a worker; it loads its models, then sends `Loaded` or `Refused`.

        Raises:
            ArrStreamError: It cannot be started.
        """

    def give(self, worker: Worker, attempt: Attempt) -> None:
        """Assign a file; the worker sends `JobFinished` or `JobFailed`."""

    def receive(self, timeout_seconds: float) -> Iterable[tuple[Worker, Message]]:
        """Return new messages; wait up to `timeout_seconds` for the first.

        `Lost` is the last message of an ended worker; after it, the worker can no longer touch the output folder.

        Raises:
            ArrStreamError: These workers can do no further file.
        """

    def close(self) -> None:
        """End every worker within seconds; safe to call again."""


class LocalEngine:
    """Engine with one worker process a slot.

    Args:
        options: Options for every file.
        jobs: Number of workers.
        inherited: Open files that every worker holds as long as it lives, such as the lock of the output folder.
    """

    def __init__(self, options: JobOptions, *, jobs: int, inherited: Sequence[int] = ()) -> None:
        self.slots = jobs
        self._options, self._inherited = options, inherited
        self._messages: queue.SimpleQueue[tuple[_ProcessWorker, object]] = queue.SimpleQueue()
        self._workers: list[_ProcessWorker] = []

    def start(self) -> Worker:
        worker = _ProcessWorker(self._options, max(1, usable_cores() // self.slots), self._inherited, self._messages)
        self._workers.append(worker)
        return worker

    def give(self, worker: Worker, attempt: Attempt) -> None:
        cast("_ProcessWorker", worker).send(attempt)

    def receive(self, timeout_seconds: float) -> Iterator[tuple[Worker, Message]]:
        with contextlib.suppress(queue.Empty):
            worker, message = self._messages.get(timeout=timeout_seconds)
            while True:
                if isinstance(message, Ready):
                    yield worker, Loaded(f"process {worker.process.process_id}")
                elif message is None:
                    self._workers.remove(worker)
                    yield worker, Lost(worker.end())
                else:
                    yield worker, cast("Message", message)
                worker, message = self._messages.get_nowait()

    def close(self) -> None:
        deadline = time.monotonic() + _CLOSE_SECONDS
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            # Leave the pipes of a process open that does not end: its reader thread would block anyway.
            if worker.process.exit_code(max(0.0, deadline - time.monotonic())) is not None:
                worker.end()
        self._workers.clear()


class _ProcessWorker(Worker):
    """Worker process, and a thread that receives its messages."""

    def __init__(
        self,
        options: JobOptions,
        threads: int,
        inherited: Sequence[int],
        messages: queue.SimpleQueue[tuple[_ProcessWorker, object]],
    ) -> None:
        super().__init__()
        command = serving_command(f"{__name__}:load_runner")
        try:
            self.process = ChildProcess(command, environment(threads), pass_fds=inherited, new_session=True)
        except OSError as exc:
            raise WorkerLost(f"a worker cannot be started: {exc}", remedy="try fewer --jobs") from exc
        self._messages = messages
        self._thread = threading.Thread(target=self._forward, name="batch-worker", daemon=True)
        self._thread.start()
        self.send((options, threads))

    def send(self, message: object) -> None:
        # The reader thread reports a process that has ended.
        with contextlib.suppress(OSError):
            self.process.send(message)

    def end(self) -> str:
        """Clean up a process that has closed its pipes and is about to end; return how it ended, in words.

        Raises:
            WorkerLost: It does not end: it may still commit its file, and must not meet another attempt there.
        """
        code = self.process.exit_code(_GRACE_SECONDS)
        self.process.kill()
        if self.process.exit_code(_CLOSE_SECONDS) is None:
            raise WorkerLost(
                f"{self.name or 'a worker'} cannot be ended",
                remedy="check what the process is blocked on; rerun the command to resume",
            )
        self._thread.join(_CLOSE_SECONDS)
        how = "was stopped" if code is None else ending(code)
        # A process killed by a signal wrote no last line; its output is about something else.
        if code and code > 0 and (lines := self.process.last_words().splitlines()):
            how += f" ({lines[-1][:_LONGEST_LAST_LINE]})"
        self.process.close()
        return how

    def _forward(self) -> None:
        """Forward the process's messages, then None at their end; runs in the reader thread."""
        with contextlib.suppress(EOFError, OSError, ValueError):
            while True:
                self._messages.put((self, self.process.receive()))
        self._messages.put((self, None))


def load_runner(given: tuple[JobOptions, int]) -> Callable[[Attempt, Reply], None]:
    """Load the models in the worker process; return the function that processes a file (see `arr_stream.processes`)."""
    # Imported here, so that a missing or broken package is reported like any other error.
    from arr_stream.batch.runner import JobRunner
    from arr_stream.threads import limit_threads

    options, threads = given
    limit_threads(threads)
    runner = JobRunner(options, threads=threads)
    return lambda attempt, reply: reply(runner.run(attempt))
