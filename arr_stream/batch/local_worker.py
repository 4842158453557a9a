"""A worker process of the local engine: does files for a batch that runs in another process.

    python -m arr_stream.batch.local_worker --threads N --parent PID

The first message on standard input is the `JobOptions`; then come `Attempt`s, one at a time. Replies go by standard
output (`processes`): first `Ready`, or `Refused` with the reason and the process ends; then, for each attempt,
`JobStarted`, any number of `JobProgress`, and `JobFinished` or `JobFailed`.

It ends when its standard input closes or its parent dies, whatever it is doing: what is under way is not finished, and
what is finished lies in its place. Ctrl-C is the parent's to answer.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO

from arr_stream.batch.job import Attempt, Event, JobOptions, JobStarted
from arr_stream.errors import ArrStreamError, WorkerLost, error_by_name
from arr_stream.processes import receive, send

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Ready:
    """Models are loaded."""


@dataclass(frozen=True, slots=True)
class Refused:
    """No file could be done.

    Args:
        error: Name of the error's class.
        message: What went wrong.
        remedy: What to do about it.
        details: Traceback.
    """

    error: str
    message: str
    remedy: str | None
    details: str

    def as_error(self) -> ArrStreamError:
        """Of its own class where that is one of ours."""
        lost = WorkerLost(f"a worker could not begin: {self.error}: {self.message}")
        return error_by_name(self.error, self.message, self.remedy) or lost


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _die_with(options.parent)
    requests, replies = _take_pipes()
    asked: JobOptions = receive(requests)
    inbox: queue.SimpleQueue[Attempt] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(requests, inbox), daemon=True).start()
    try:
        _limit_threads(options.threads)
        # Imported here, so that a package that is missing or broken is told like any other reason.
        from arr_stream.batch.runner import JobRunner

        runner = JobRunner(asked, threads=options.threads)
    except Exception as exc:
        message, remedy = (exc.message, exc.remedy) if isinstance(exc, ArrStreamError) else (str(exc), None)
        send(replies, Refused(type(exc).__name__, message, remedy, traceback.format_exc()))
        return 1
    send(replies, Ready())
    worker = f"process {os.getpid()}"
    while True:
        attempt = inbox.get()
        _reply(replies, JobStarted(attempt, worker))
        _reply(replies, runner.run(attempt, lambda progress: _reply(replies, progress)))


def _reply(replies: IO[bytes], event: Event) -> None:
    """Tell the parent; without one there is nothing left to do."""
    try:
        send(replies, event)
    except OSError:
        os._exit(0)


def _listen(requests: IO[bytes], inbox: queue.SimpleQueue[Attempt]) -> None:
    """Hand attempts on; end the process, whatever it is doing, once nobody is there to ask."""
    with contextlib.suppress(EOFError, OSError):
        while True:
            inbox.put(receive(requests))
    os._exit(0)


def _die_with(parent: int) -> None:
    """Let the system end this process when its parent dies, where it can; elsewhere `_listen` does."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(0)


def _take_pipes() -> tuple[IO[bytes], IO[bytes]]:
    """Standard input and output for ourselves; what a library prints goes to standard error instead."""
    requests = os.fdopen(os.dup(0), "rb")
    replies = os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    return requests, replies


def _limit_threads(threads: int) -> None:
    """Keep the pools of the libraries to this worker's share of the cores."""
    import cv2
    import torch

    cv2.setNumThreads(threads)
    torch.set_num_threads(threads)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="arr_stream.batch.local_worker")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--parent", type=int, required=True)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    # Imported under its real name, so that the messages' classes are the ones that the other end knows.
    from arr_stream.batch.local_worker import main as run

    sys.exit(run())
