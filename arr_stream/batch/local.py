"""The local engine: processes of this machine, each with its models and its share of the cores."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from arr_stream.batch.engine import Loaded, Lost, Message, WorkerEngine
from arr_stream.batch.job import Attempt, JobOptions
from arr_stream.errors import WorkerLost
from arr_stream.processes import ChildProcess, Ready, Reply, ending, environment, serving_command, usable_cores

_CLOSE_SECONDS = 5.0
_GRACE_SECONDS = 0.5
_LONGEST_LAST_LINE = 200


class LocalEngine(WorkerEngine):
    """Engine with one worker process a slot.

    The workers die with the thread that started them, so start them from a lasting one, such as the main thread.

    Args:
        options: Options for every file.
        jobs: Number of workers.
        inherited: Open files that every worker holds as long as it lives, such as the lock of the output folder.
        stall_seconds: As for `WorkerEngine`.

    Raises:
        WorkerLost: A process cannot be started.
    """

    def __init__(
        self, options: JobOptions, *, jobs: int, inherited: Sequence[int] = (), stall_seconds: float = 0.0
    ) -> None:
        work = Work(options, max(1, usable_cores() // jobs))
        super().__init__(_Processes(work, inherited), jobs, stall_seconds=stall_seconds)


@dataclass(frozen=True, slots=True)
class Work:
    """Task of a worker process, and the number of threads for its libraries."""

    options: JobOptions
    threads: int


class _Processes:
    """Crew of processes."""

    def __init__(self, work: Work, inherited: Sequence[int]) -> None:
        self._work = work
        self._inherited = tuple(inherited)
        self._heard: queue.SimpleQueue[tuple[_Process, object]] = queue.SimpleQueue()
        self._processes: list[_Process] = []

    def spawn(self) -> _Process:
        process = _Process(self._work, self._inherited, self._heard)
        self._processes.append(process)
        return process

    def give(self, worker: _Process, attempt: Attempt) -> None:
        worker.tell(attempt)

    def wait(self, timeout_seconds: float) -> Iterator[tuple[_Process, Message]]:
        heard = []
        with contextlib.suppress(queue.Empty):
            heard.append(self._heard.get(timeout=timeout_seconds))
            while True:
                heard.append(self._heard.get_nowait())
        for process, word in heard:
            if isinstance(word, Ready):
                yield process, Loaded(process.process_id)
            elif word is None:
                self._processes.remove(process)
                yield process, Lost(process.end())
            else:
                yield process, cast("Message", word)

    def kill(self, worker: _Process) -> None:
        worker.kill()

    def close(self) -> None:
        deadline = time.monotonic() + _CLOSE_SECONDS
        for process in self._processes:
            process.kill()
        for process in self._processes:
            # Leave the pipes of a process open that does not end: its reader thread would block anyway.
            if process.exit_code(max(0.0, deadline - time.monotonic())) is not None:
                process.end()
        self._processes.clear()


class _Process(ChildProcess):
    """Worker process, and a thread that receives its messages."""

    def __init__(self, work: Work, inherited: Sequence[int], heard: queue.SimpleQueue[tuple[_Process, object]]) -> None:
        command = serving_command(f"{__name__}:do_files")
        try:
            super().__init__(command, environment(work.threads), pass_fds=inherited, new_session=True)
        except OSError as exc:
            raise WorkerLost(f"a worker cannot be started: {exc}", remedy="try fewer --jobs") from exc
        self._heard = heard
        self._thread = threading.Thread(target=self._hear, name="batch-worker", daemon=True)
        self._thread.start()
        self.tell(work)

    def tell(self, message: object) -> None:
        # The reader thread reports a process that has ended.
        with contextlib.suppress(OSError):
            self.send(message)

    def end(self) -> str:
        """Clean up a process that has closed its pipes and is about to end; return how it ended, in words.

        Raises:
            WorkerLost: It does not end: it may still commit its file, and must not meet another attempt there.
        """
        code = self.exit_code(_GRACE_SECONDS)
        self.kill()
        if self.exit_code(_CLOSE_SECONDS) is None:
            raise WorkerLost(
                f"process {self.process_id} cannot be ended",
                remedy="check what the process is blocked on; rerun the command to resume",
            )
        self._thread.join(_CLOSE_SECONDS)
        how = "was stopped" if code is None else ending(code)
        # A process killed by a signal wrote no last line; its output is about something else.
        if code and code > 0 and (lines := self.last_words().splitlines()):
            how += f" ({lines[-1][:_LONGEST_LAST_LINE]})"
        self.close()
        return how

    def _hear(self) -> None:
        """Forward the process's messages, then None at their end; runs in the reader thread."""
        with contextlib.suppress(EOFError, OSError, ValueError):
            while True:
                self._heard.put((self, self.receive()))
        self._heard.put((self, None))


def do_files(work: Work) -> Callable[[Attempt, Reply], None]:
    """Load the models in the worker process and return the function that does a file; see `arr_stream.processes`."""
    # Imported here, so that a missing or broken package is reported like any other error.
    from arr_stream.batch.runner import JobRunner
    from arr_stream.threads import limit_threads

    limit_threads(work.threads)
    runner = JobRunner(work.options, threads=work.threads)

    def answer(attempt: Attempt, reply: Reply) -> None:
        reply(runner.run(attempt, reply))

    return answer
