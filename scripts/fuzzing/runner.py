"""The parent's end of a process that tries inputs: starts it, starts it again when it is gone, and says why it went."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from fuzzing.child import Answer
from fuzzing.guard import CANARIES
from fuzzing.target import Target

SCRIPTS = Path(__file__).resolve().parent.parent
_START_SECONDS = 300.0
_GRACE_SECONDS = 2.0


class Broken(RuntimeError):
    """The process that tries inputs cannot be started."""


class Runner:
    """Hands inputs to a process of its own and takes the answers; a context.

    Args:
        spec: The target, as `child.find_target` takes it.
        target: The same.
        canary: Content of the files that must never be opened.
    """

    def __init__(self, spec: str, target: Target, canary: bytes = b"canary") -> None:
        self.starts = 0
        self._spec, self._target, self._canary = spec, target, canary
        self._process: subprocess.Popen[bytes] | None = None
        self._scratch = Path(tempfile.mkdtemp(prefix="arr-stream-fuzz-"))
        self._errors = self._scratch.with_name(self._scratch.name + ".err")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._errors.unlink(missing_ok=True)

    def seeds(self) -> list[bytes]:
        """Those of the target, made where its packages are loaded."""
        self._ask(b"", _START_SECONDS)
        count = struct.unpack("<I", self._message(_START_SECONDS))[0]
        return [self._message(_START_SECONDS) for _ in range(count)]

    def attempt(self, data: bytes) -> Answer:
        """What comes of an input."""
        limit = self._target.hang_seconds
        began = time.perf_counter()
        try:
            self._ask(data, limit)
            answer = Answer(**json.loads(self._message(limit + _GRACE_SECONDS)))
        except TimeoutError:
            self._stop()
            return Answer("hang", _stuck_at(self._said()), self._said(), time.perf_counter() - began)
        except (EOFError, BrokenPipeError):
            code = self._stop()
            name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            return Answer("crash", f"{name} {_stuck_at(self._said())}", self._said(), time.perf_counter() - began)
        if answer.seconds > limit:
            answer.kind, answer.outcome = "hang", f"took {limit:g} s: {answer.outcome}"
        return answer

    def _ask(self, data: bytes, limit_seconds: float) -> None:
        if self._process is None:
            self._start()
        assert self._process is not None and self._process.stdin is not None
        # The process reads before it works, so that a pipe that is full only means a long input.
        self._process.stdin.write(struct.pack("<I", len(data)) + data)
        self._process.stdin.flush()

    def _start(self) -> None:
        self._lay_out()
        home = str(self._scratch / "elsewhere")
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(SCRIPTS), str(SCRIPTS.parent), os.environ.get("PYTHONPATH", "")]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
            "HOME": home,
            "TMPDIR": str(self._scratch),
            "XDG_CACHE_HOME": home,
            "HF_HUB_OFFLINE": "1",
        }
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "fuzzing.child", self._spec, str(self._scratch)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                start_new_session=True,
            )
        self.starts += 1
        try:
            self._message(_START_SECONDS)
        except (EOFError, TimeoutError) as exc:
            self._stop()
            raise Broken(f"{self._spec}: cannot be started: {self._said()[-2000:]}") from exc

    def _lay_out(self) -> None:
        """A folder for the input, canaries beside it, and a working folder with canaries too."""
        shutil.rmtree(self._scratch, ignore_errors=True)
        for folder in (self._scratch, self._scratch / "elsewhere"):
            folder.mkdir(parents=True)
            for name in CANARIES:
                (folder / name).write_bytes(self._canary)

    def _message(self, limit_seconds: float) -> bytes:
        length = struct.unpack("<I", self._exactly(4, time.monotonic() + limit_seconds))[0]
        return self._exactly(length, time.monotonic() + limit_seconds)

    def _exactly(self, size: int, due: float) -> bytes:
        assert self._process is not None and self._process.stdout is not None
        descriptor, found = self._process.stdout.fileno(), bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while len(found) < size:
                if not selector.select(max(0.0, due - time.monotonic())):
                    raise TimeoutError
                block = os.read(descriptor, size - len(found))
                if not block:
                    raise EOFError
                found += block
        return bytes(found)

    def _stop(self) -> int:
        """End the process, and all that it has started, at once; its exit code."""
        process, self._process = self._process, None
        if process is None:
            return 0
        assert process.stdin is not None and process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        try:
            # One that is ending by itself shall say how.
            code = process.wait(0.5)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()
        process.stdout.close()
        return code

    def _said(self) -> str:
        """The end of what it wrote to standard error."""
        return self._errors.read_bytes()[-6000:].decode("utf-8", "replace")


def _stuck_at(said: str) -> str:
    """The innermost function in the last stack that `faulthandler` wrote."""
    for line in said.rpartition("(most recent call first)")[2].splitlines():
        if line.startswith("  File ") and "fuzzing" not in line:
            path, _, rest = line[8:].partition('"')
            return f"at {Path(path).name}:{rest.rpartition(' ')[2]}"
    return "anywhere"
