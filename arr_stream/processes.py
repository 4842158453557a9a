"""Child processes: their start, the messages between child and parent, and their end.

A child runs `python -m arr_stream.processes MODULE:FUNCTION`. The first message on its standard input is the
argument of the function; the first reply on its standard output is `Ready`, or `Refused` with the reason. The return
value of the function is then called with each further message, one after the other. The child ends when its standard
input closes or its parent dies, even in the middle of work, and ignores Ctrl-C, which the parent handles. Output of
libraries goes to standard error, whose end is kept as last words.

A message is a pickle. Both ends are the same program, and nothing else can write to these pipes.

The module uses neither `multiprocessing` nor its pools: their children import the main module again, which breaks
scripts without a guard, and one worker that hangs makes the whole pool unusable.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from arr_stream.errors import ArrStreamError, error_by_name

POOLS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Variables by which libraries size their thread pools; read at import."""

_LAST_WORDS_BYTES = 4000
_CHUNK_BYTES = 1 << 16
_JOIN_SECONDS = 2.0

Reply = Callable[[Any], None]
"""Function that sends a message to the parent."""


@dataclass(frozen=True, slots=True)
class Ready:
    """Message that the child is ready for work: its models are loaded."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Message that the child cannot start.

    Args:
        error: Name of the error's class.
        message: The error's message.
        remedy: Advice for the user.
    """

    error: str
    message: str
    remedy: str | None

    @classmethod
    def of(cls, error: Exception) -> Refused:
        """Create the message of an error."""
        message, remedy = (error.message, error.remedy) if isinstance(error, ArrStreamError) else (str(error), None)
        return cls(type(error).__name__, message, remedy)

    def as_error(self) -> ArrStreamError | None:
        """Return the error in its own class if that is one of `arr_stream.errors`."""
        return error_by_name(self.error, self.message, self.remedy)


class ChildProcess:
    """Child process as its parent sees it; used by one thread, except for `kill`.

    Args:
        command: Program and arguments; see `module_command` and `serving_command`.
        environment: All of its variables; see `environment`.
        pass_fds: Open files that it holds as long as it lives.
        new_session: Give it no controlling terminal. The terminal's Ctrl-C never reaches it; but in a session of its
            own, Linux may ignore its priority relative to other sessions.

    Raises:
        OSError: It cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        pass_fds: Sequence[int] = (),
        new_session: bool = False,
    ) -> None:
        self._popen = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            pass_fds=pass_fds,
            start_new_session=new_session,
            process_group=None if new_session else 0,
        )
        self._last_bytes = b""
        # Libraries may print without end: a thread reads all of it and keeps the end.
        self._reading = threading.Thread(target=self._keep_end, args=(self._popen.stderr,), daemon=True)
        self._reading.start()

    @property
    def process_id(self) -> int:
        return self._popen.pid

    @property
    def alive(self) -> bool:
        """True until the process has ended."""
        return self._popen.poll() is None

    def send(self, message: Any) -> None:
        """Write one message to its standard input.

        Raises:
            OSError: It has ended.
        """
        send(cast("IO[bytes]", self._popen.stdin), message)

    def receive(self) -> Any:
        """Wait for one message from its standard output.

        Raises:
            EOFError: It has ended.
        """
        return receive(cast("IO[bytes]", self._popen.stdout))

    @contextlib.contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Kill the process if the block takes longer.

        Raises:
            TimeoutError: It took longer.
        """
        expired = threading.Event()

        def expire() -> None:
            expired.set()
            self.kill()

        timer = threading.Timer(seconds, expire)
        timer.daemon = True
        timer.start()
        try:
            yield
        except (EOFError, OSError) as exc:
            if expired.is_set():
                raise TimeoutError(f"took longer than {seconds:g} s and was stopped") from exc
            raise
        finally:
            timer.cancel()

    def exit_code(self, timeout_seconds: float = 0.0) -> int | None:
        """Return its exit code, negative for a signal; None if it still runs after the timeout."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(timeout_seconds)
        return self._popen.poll()

    def last_words(self) -> str:
        """Return the end of its standard error, complete once the process has ended; "" without output."""
        if not self.alive:
            self._reading.join(_JOIN_SECONDS)
        return self._last_bytes.decode("utf-8", "replace").strip()

    def kill(self) -> None:
        """Kill it at once; a pending `receive` fails. Callable from any thread."""
        self._popen.kill()

    def close(self, timeout_seconds: float = _JOIN_SECONDS) -> None:
        """Kill it, and free its entry and pipes; safe to call again."""
        self._popen.kill()
        self.exit_code(timeout_seconds)
        # A process that it started may hold the pipe open; the thread closes it at its end.
        self._reading.join(timeout_seconds)
        for pipe in (self._popen.stdin, self._popen.stdout):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()

    def _keep_end(self, stderr: IO[bytes]) -> None:
        with stderr:
            while read := os.read(stderr.fileno(), _CHUNK_BYTES):
                self._last_bytes = (self._last_bytes + read)[-_LAST_WORDS_BYTES:]


def ending(code: int) -> str:
    """Describe an exit code in words: `ended with exit code 3`, `was ended by SIGKILL`."""
    return f"ended with exit code {code}" if code >= 0 else f"was ended by {_signal_name(-code)}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def module_command(module: str, *arguments: object) -> list[str]:
    """Return the command that runs a module; it needs `module_path` in its environment."""
    # -P keeps the current directory from shadowing modules.
    return [sys.executable, "-P", "-m", module, *map(str, arguments)]


def serving_command(make: str) -> list[str]:
    """Return the command of a child that answers messages.

    Args:
        make: `module:function`; called with the first message, returns the handler of each further one, which also gets
            a `Reply`.
    """
    return module_command("arr_stream.processes", make)


def module_path() -> dict[str, str]:
    """Return the variable with this process's module path, for another one."""
    return {"PYTHONPATH": os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)}


def usable_cores() -> int:
    """Return the number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def environment(threads: int) -> dict[str, str]:
    """Return this process's environment, with thread pools of size `threads`."""
    return {**os.environ, **dict.fromkeys(POOLS, str(threads)), **module_path()}


def send(pipe: IO[bytes], message: Any) -> None:
    """Write one message and flush.

    Raises:
        OSError: The other end is gone.
    """
    pickle.dump(message, pipe, protocol=5)
    pipe.flush()


def receive(pipe: IO[bytes]) -> Any:
    """Wait for one message.

    Raises:
        EOFError: The other end closed, between messages or in the middle of one.
    """
    try:
        return pickle.load(pipe)
    except pickle.UnpicklingError as exc:
        raise EOFError(str(exc)) from exc


def serve(make: str) -> None:
    """Run the child: create the handler, then answer messages until the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests, replies = _take_pipes()
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def reply(message: Any) -> None:
        try:
            send(replies, message)
        except OSError:
            os._exit(0)

    try:
        # Reading a message imports its classes, so that a missing package is reported like any other error.
        first = receive(requests)
        threading.Thread(target=_listen, args=(requests, inbox), daemon=True).start()
        module, _, function = make.partition(":")
        respond: Callable[[Any, Reply], None] = getattr(importlib.import_module(module), function)(first)
    except Exception as exc:
        reply(Refused.of(exc))
        # The listening thread cannot be stopped.
        os._exit(1)
    reply(Ready())
    while True:
        respond(inbox.get(), reply)


def _take_pipes() -> tuple[IO[bytes], IO[bytes]]:
    """Take over standard input and output; output of libraries goes to standard error instead."""
    requests = os.fdopen(os.dup(0), "rb")
    replies = os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    return requests, replies


def _listen(requests: IO[bytes], inbox: queue.SimpleQueue[Any]) -> None:
    """Forward messages; end the process once the parent is gone."""
    try:
        while True:
            inbox.put(receive(requests))
    except (EOFError, OSError):
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


if __name__ == "__main__":
    # Imported under its real name, so that the classes of messages are the same at both ends.
    from arr_stream.processes import serve as run

    run(sys.argv[1])
