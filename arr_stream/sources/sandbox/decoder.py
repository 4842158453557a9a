"""The parent's end of a sandboxed decoder: starts it, hands it files and memory, and judges how it ends."""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace

from arr_stream.config import SandboxSettings
from arr_stream.errors import BackendUnavailable, SandboxViolated
from arr_stream.processes import POOLS, ChildProcess, module_command, module_path, signal_name
from arr_stream.sources.base import Job
from arr_stream.sources.sandbox.lockdown import Layers
from arr_stream.sources.sandbox.messages import (
    SLOTS,
    Alive,
    Garbled,
    Message,
    Ready,
    Told,
    Want,
    clean,
    close_all,
    receive,
    send,
)

CHILD = "arr_stream.sources.sandbox.child"
"""Module that is run as the decoding process."""

DISTRUST = "do not trust this file"
_START_SECONDS = 60.0
_JOIN_SECONDS = 5.0
_LAST_WORDS_BYTES = 1 << 16
_BYTES_A_PIXEL = 3
"""Room that is granted for a frame; memory that is never written to costs nothing."""
_MOST_PIXELS = 1 << 30


class DecodingProcess:
    """A child process that decodes one source, used from one thread except for `close`.

    Args:
        job: What it decodes; its files are opened here, as it asks for them.
        settings: Its limits.
        module: What is run.
        probe: Let it close itself in, and do nothing.

    Attributes:
        layers: What holds it.
        slots: Memory for frames, which it may write and this side may not.
        closed: It was ended from this side.
        frames_read: Frames taken so far, for errors; kept by whoever takes them.

    Raises:
        BackendUnavailable: It cannot be started, or a layer is missing and `sandbox.strict` is set.
    """

    def __init__(self, job: Job, settings: SandboxSettings, *, module: str = CHILD, probe: bool = False) -> None:
        if not hasattr(socket, "send_fds"):
            raise BackendUnavailable(
                f"{job.name}: the sandbox needs Linux or macOS, this is {sys.platform}", remedy="leave --sandbox out"
            )
        self._job, self._settings = job, settings
        self.slots: list[mmap.mmap] = []
        self.closed = False
        self.frames_read = 0
        self._end, theirs = socket.socketpair()
        self._words, words = os.pipe()
        try:
            os.set_blocking(words, False)
            # What it writes goes into a pipe, which is soon full, and not into a file, which would fill the disk.
            self._child = ChildProcess(
                module_command(module, theirs.fileno()),
                _environment(),
                stdin=subprocess.DEVNULL,
                stdout=words,
                stderr=words,
                pass_fds=[theirs.fileno()],
                # No terminal, into which a process that was taken over could type.
                new_session=True,
            )
        except OSError as exc:
            self._end.close()
            os.close(self._words)
            raise BackendUnavailable(
                f"{job.name}: the decoding process does not start: {exc.strerror}", remedy="check the system's limits"
            ) from exc
        finally:
            theirs.close()
            os.close(words)
        try:
            self.layers = self._begin(probe=probe)
        except BaseException:
            self.close()
            raise

    def opened(self) -> None:
        """The source is open: lift the limit on processor time, which was for that."""
        import resource

        if hasattr(resource, "prlimit"):
            with contextlib.suppress(ProcessLookupError):
                hard = resource.prlimit(self._child.process_id, resource.RLIMIT_CPU)[1]
                resource.prlimit(self._child.process_id, resource.RLIMIT_CPU, (hard, hard))

    def next(self) -> Told | None:
        """The next message about the source; None once closed. What the process asks for meanwhile is given to it.

        Raises:
            SandboxViolated: It has ended, says nothing for too long, or does not keep to the protocol.
        """
        while True:
            try:
                reply = receive(self._end, self._settings.stall_seconds)
                match reply:
                    case Want():
                        self._hand_over(reply.numbers)
                    case Ready():
                        raise Garbled("ready again")
                    case Alive():
                        pass
                    case _:
                        return reply
            except (EOFError, OSError, Garbled) as exc:
                if self.closed:
                    return None
                raise self._judged(exc) from exc

    def release(self, slot: int) -> None:
        """The frame was copied out of a slot. A process that has ended meanwhile is noticed when it is next read."""
        with contextlib.suppress(OSError):
            self._send({"kind": "free", "slot": slot})

    def violated(self, what: str, remedy: str) -> SandboxViolated:
        """The error for what this process did."""
        after = "on opening" if self.frames_read == 0 else f"after {self.frames_read} frames were read"
        kept = "" if self.frames_read == 0 else "; what came before is kept"
        return SandboxViolated(
            f"{self._job.name}: {what} {after}", frames_read=self.frames_read, remedy=f"{remedy}{kept}"
        )

    @contextlib.contextmanager
    def checked(self) -> Iterator[None]:
        """Turn what is found to be garbled into the error for it."""
        try:
            yield
        except Garbled as exc:
            raise self._judged(exc) from exc

    def close(self) -> None:
        """End the process and free what it used, at once; safe to call again."""
        if self.closed:
            return
        self.closed = True
        self._child.close(_JOIN_SECONDS)
        self._end.close()
        os.close(self._words)
        for memory in self.slots:
            # A frame may just be being copied by another thread; then its memory goes with the copy.
            with contextlib.suppress(BufferError):
                memory.close()

    def _begin(self, *, probe: bool) -> Layers:
        message = {
            "job": asdict(replace(self._job, paths=(), folder=None, hardware="off")),
            "files": [str(path) for path in self._job.paths],
            "probe": probe,
            # The kernel ends the child with the thread that started it, and only the first one lasts.
            "end_with_parent": threading.current_thread() is threading.main_thread(),
            **self._settings.model_dump(include={"memory_mb", "open_cpu_seconds", "max_streams"}),
        }
        size = _BYTES_A_PIXEL * min(self._job.max_pixels, _MOST_PIXELS) + 4096
        shared: list[int] = []
        try:
            for _ in range(SLOTS):
                shared.append(_shared_memory(size))
                self.slots.append(mmap.mmap(shared[-1], size, access=mmap.ACCESS_READ))
            self._end.settimeout(_START_SECONDS)
            send(self._end, message, shared)
            ready = receive(self._end, _START_SECONDS)
            if not isinstance(ready, Ready):
                raise Garbled("not ready")
        except (EOFError, OSError, Garbled) as exc:
            raise BackendUnavailable(
                f"{self._job.name}: the decoding process does not start: {self._last_word()}",
                remedy="see `arr-stream doctor`, or raise sandbox.memory_mb",
            ) from exc
        finally:
            close_all(shared)
        if self._settings.strict and ready.layers.missing:
            raise BackendUnavailable(
                f"sandbox.strict: this system gives no {', no '.join(ready.layers.missing)}",
                remedy="use a system that does, or leave sandbox.strict out",
            )
        return ready.layers

    def _hand_over(self, numbers: Sequence[int]) -> None:
        descriptors: list[int] = []
        answers: list[tuple[int, int]] = []
        try:
            for number in numbers:
                if number >= len(self._job.paths):
                    raise Garbled("files")
                try:
                    descriptors.append(os.open(self._job.paths[number], os.O_RDONLY | os.O_CLOEXEC))
                    answers.append((number, 0))
                except OSError as exc:
                    answers.append((number, exc.errno or 1))
            self._send({"kind": "files", "files": answers}, descriptors)
        finally:
            close_all(descriptors)

    def _send(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        self._end.settimeout(self._settings.stall_seconds)
        send(self._end, message, descriptors)

    def _judged(self, error: Exception) -> SandboxViolated:
        """What a broken exchange means."""
        if isinstance(error, TimeoutError):
            seconds = f"{self._settings.stall_seconds:g} s"
            return self.violated(f"no frame came within {seconds},", "raise sandbox.stall_seconds if it is only slow")
        if isinstance(error, EOFError | OSError):
            return self._ended()
        return self.violated("the decoder broke the protocol", DISTRUST)

    def _ended(self) -> SandboxViolated:
        code = self._child.exit_code(_JOIN_SECONDS)
        if code is None:
            return self.violated("the decoder fell silent", DISTRUST)
        if code >= 0:
            return self.violated(f"the decoder ended by itself, with {self._last_word()},", DISTRUST)
        if -code == signal.SIGXCPU:
            seconds = self._settings.open_cpu_seconds
            return self.violated(f"more than {seconds} s of processor time", "raise sandbox.open_cpu_seconds")
        if -code == signal.SIGSYS:
            return self.violated("the decoder tried a forbidden system call", DISTRUST)
        if -code == signal.SIGKILL:
            return self.violated("the decoder was killed, as when memory runs out,", "see the system's log")
        return self.violated(f"the decoder crashed ({signal_name(-code)})", DISTRUST)

    def _last_word(self) -> str:
        """The last line that the process wrote, for its reader: nothing in it can control a terminal."""
        os.set_blocking(self._words, False)
        try:
            lines = os.read(self._words, _LAST_WORDS_BYTES).decode("utf-8", "replace").split("\n")
        except BlockingIOError:
            lines = []
        return next((clean(line) for line in reversed(lines) if line.strip()), "no word")


def probe(settings: SandboxSettings | None = None) -> Layers:
    """Which layers a decoding process has on this system.

    Raises:
        BackendUnavailable: It cannot be started.
    """
    process = DecodingProcess(Job((), "sandbox", pictures=True), settings or SandboxSettings(), probe=True)
    process.close()
    return process.layers


def _environment() -> dict[str, str]:
    """Nothing of the parent's but what Python needs to start: the rest may hold secrets."""
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH") if name in os.environ}
    # Each arena of malloc reserves writable memory, which counts.
    ours = {"MALLOC_ARENA_MAX": "2", "PYTHONUTF8": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return {**kept, **dict.fromkeys(POOLS, "1"), **ours, **module_path()}


def _shared_memory(size: int) -> int:
    """A descriptor of memory for both processes; the child cannot make it smaller under the parent's hands."""
    if sys.platform != "linux":
        with tempfile.TemporaryFile() as file:
            file.truncate(size)
            return os.dup(file.fileno())
    import fcntl

    descriptor = os.memfd_create("arr-stream-frame", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return descriptor
