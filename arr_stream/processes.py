"""Child processes: how they are started, what they say to their parent, and how they end.

A child of ours runs `python -m arr_stream.processes MODULE:FUNCTION PARENT`. The first message on its standard input is
what the function is called with; the first reply on its standard output is `Ready`, or `Refused` with the reason. What
the function returned is then called with each further message, one after the other. The child ends when its standard
input closes or its parent dies, in the middle of anything, and pays no heed to Ctrl-C, which is the parent's to answer.
What libraries print goes to standard error, whose end is kept as last words.

A message is a pickle whose arrays follow it as raw bytes (pickle protocol 5, out of band), so that a picture is written
straight from its own memory:

    uint32 n | n x uint64 length | pickle | buffer 1 | ... | buffer n-1

Both ends are the same program, and nothing else can write to these pipes.

Not `multiprocessing`, nor a pool made of it: a child of those imports the main module again, which scripts without a
guard do not bear, and a pool is lost with the one worker that hangs.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import pickle
import queue
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from arr_stream.errors import ArrStreamError, error_by_name

POOLS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Variables by which libraries size their pools of threads; read when they are loaded."""

_LAST_WORDS_BYTES = 4000
_JOIN_SECONDS = 2.0
_PR_SET_PDEATHSIG = 1

Reply = Callable[[Any], None]
"""Sends a message to the parent."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The child can be given work: models are loaded."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The child cannot do what it is there for.

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

    @classmethod
    def of(cls, error: Exception) -> Refused:
        """To be made while the error is handled."""
        message, remedy = (error.message, error.remedy) if isinstance(error, ArrStreamError) else (str(error), None)
        return cls(type(error).__name__, message, remedy, traceback.format_exc())

    def as_error(self) -> ArrStreamError | None:
        """Of its own class where that is one of ours."""
        return error_by_name(self.error, self.message, self.remedy)


class ChildProcess:
    """A process as its parent sees it; used by one thread, but for `kill`.

    Args:
        command: Program and arguments; see `module_command` and `serving_command`.
        environment: All of its variables; see `environment`.
        pass_fds: Open files that it holds for as long as it lives.
        new_session: Give it no controlling terminal. It is out of reach of the terminal's Ctrl-C in any case; but in a
            session of its own, Linux may weigh its priority against nobody else's.

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
        # A file, and not a pipe: nobody need read it for the process to go on, and it is there after a crash.
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            self._popen = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                env=environment,
                pass_fds=pass_fds,
                start_new_session=new_session,
                process_group=None if new_session else 0,
            )
        except OSError:
            self._stderr.close()
            raise

    @property
    def process_id(self) -> int:
        return self._popen.pid

    @property
    def alive(self) -> bool:
        """It has not ended, or not been waited for."""
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
        """Kill the process should what is done with it take longer.

        Raises:
            TimeoutError: It took longer.
        """
        lock, over, expired = threading.Lock(), threading.Event(), threading.Event()

        def expire() -> None:
            with lock:
                if not over.is_set():
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
            with lock:
                over.set()
            timer.cancel()

    def exit_code(self, timeout_seconds: float = 0.0) -> int | None:
        """How it ended, negative by a signal; None where it still goes on after so long."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(timeout_seconds)
        return self._popen.poll()

    def last_words(self) -> str:
        """The end of what it wrote to standard error; "" where nothing stands there."""
        with contextlib.suppress(OSError, ValueError):
            size = self._stderr.seek(0, os.SEEK_END)
            self._stderr.seek(max(0, size - _LAST_WORDS_BYTES))
            return self._stderr.read().decode("utf-8", "replace").strip()
        return ""

    def kill(self) -> None:
        """End it at once; whoever waits for a message is told that there will be none. From any thread."""
        self._popen.kill()

    def close(self, timeout_seconds: float = _JOIN_SECONDS) -> None:
        """End it, and free its entry, pipes and file; safe to call again."""
        self._popen.kill()
        self.exit_code(timeout_seconds)
        for pipe in (self._popen.stdin, self._popen.stdout, self._stderr):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()


def ending(code: int) -> str:
    """An exit code in words: `ended with exit code 3`, `was ended by SIGKILL`."""
    return f"ended with exit code {code}" if code >= 0 else f"was ended by {_signal_name(-code)}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def module_command(module: str, *arguments: object) -> list[str]:
    """A module as a program; `module_path` has to be in its environment."""
    # -P keeps the current folder from shadowing modules.
    return [sys.executable, "-P", "-m", module, *map(str, arguments)]


def serving_command(make: str) -> list[str]:
    """A child that answers messages.

    Args:
        make: `module:function`; called with the first message, gives what is called with each further one and a
            `Reply`.
    """
    return module_command("arr_stream.processes", make, os.getpid())


def module_path() -> dict[str, str]:
    """Where this process finds its modules, for another one."""
    return {"PYTHONPATH": os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)}


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def environment(threads: int) -> dict[str, str]:
    """This process's, with pools of so many threads."""
    return {**os.environ, **dict.fromkeys(POOLS, str(threads)), **module_path()}


def send(pipe: IO[bytes], message: Any) -> None:
    """Write one message and flush.

    Raises:
        OSError: The other end is gone.
    """
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
    parts = [memoryview(head), *(buffer.raw() for buffer in buffers)]
    pipe.write(struct.pack(f"<I{len(parts)}Q", len(parts), *(part.nbytes for part in parts)))
    for part in parts:
        pipe.write(part)
    pipe.flush()


def receive(pipe: IO[bytes]) -> Any:
    """Wait for one message.

    Raises:
        EOFError: The other end closed, between messages or in the middle of one.
    """
    (count,) = struct.unpack("<I", _exactly(pipe, 4))
    lengths = struct.unpack(f"<{count}Q", _exactly(pipe, 8 * count))
    head, *buffers = [_exactly(pipe, length) for length in lengths]
    return pickle.loads(head, buffers=buffers)


def _exactly(pipe: IO[bytes], length: int) -> bytearray:
    """A writable buffer, because arrays are made over it without a copy."""
    data = bytearray(length)
    view = memoryview(data)
    filled = 0
    while filled < length:
        read = pipe.readinto(view[filled:])  # type: ignore[attr-defined]
        if not read:
            raise EOFError
        filled += read
    return data


def serve(make: str, parent: int) -> None:
    """Be the child: make what answers, and let it answer for as long as there is somebody to ask."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _die_with(parent)
    requests, replies = _take_pipes()
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def reply(message: Any) -> None:
        try:
            send(replies, message)
        except OSError:
            os._exit(0)

    try:
        # Reading a message imports what it is made of, so that a package that is missing is told like any other reason.
        first = receive(requests)
        threading.Thread(target=_listen, args=(requests, inbox), daemon=True).start()
        module, _, function = make.partition(":")
        respond: Callable[[Any, Reply], None] = getattr(importlib.import_module(module), function)(first)
    except Exception as exc:
        reply(Refused.of(exc))
        # The thread that listens cannot be told to end.
        os._exit(1)
    reply(Ready())
    while True:
        respond(inbox.get(), reply)


def _die_with(parent: int) -> None:
    """Let the system end this process with the thread that started it, where it can; elsewhere `_listen` does."""
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


def _listen(requests: IO[bytes], inbox: queue.SimpleQueue[Any]) -> None:
    """Hand messages on; end the process, whatever it is doing, once nobody is there to ask."""
    try:
        while True:
            inbox.put(receive(requests))
    except (EOFError, OSError):
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


if __name__ == "__main__":
    # Imported under its real name, so that the messages' classes are the ones that the other end knows.
    from arr_stream.processes import serve as run

    run(sys.argv[1], int(sys.argv[2]))
