"""The parent's end of a process that tries inputs: it starts the process, replaces it, and reports why it ended."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

from fuzzing.child import Answer
from fuzzing.guard import CANARIES
from fuzzing.targets import find_target

SCRIPTS = Path(__file__).resolve().parent.parent
_START_SECONDS = 300.0
_GRACE_SECONDS = 2.0


class Broken(RuntimeError):
    """The process that tries inputs cannot be started."""


class Runner:
    """Hands inputs to a process of its own and takes the answers; a context.

    Args:
        spec: The target, as `find_target` takes it.

    Attributes:
        starts: How many processes it took.
        scratch: The only folder that they may write to.
    """

    def __init__(self, spec: str) -> None:
        self.starts = 0
        self.scratch = Path(tempfile.mkdtemp(prefix="arr-stream-fuzz-"))
        self._spec, self._hang_seconds = spec, find_target(spec).hang_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None
        self._errors = self.scratch.with_name(self.scratch.name + ".err")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
        shutil.rmtree(self.scratch, ignore_errors=True)
        self._errors.unlink(missing_ok=True)

    def start(self) -> list[bytes]:
        """Start a process; the target's seeds, made where its packages are loaded.

        Raises:
            Broken: It cannot be started.
        """
        self._lay_out()
        self._pipe, theirs = Pipe()
        home = str(self.scratch / "elsewhere")
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(SCRIPTS), str(SCRIPTS.parent), os.environ.get("PYTHONPATH", "")]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
            "HOME": home,
            "TMPDIR": str(self.scratch),
            "XDG_CACHE_HOME": home,
            "HF_HUB_OFFLINE": "1",
        }
        with self._errors.open("wb") as errors, theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "fuzzing.child", self._spec, str(self.scratch), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env=environment,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self.starts += 1
        try:
            return [seed.encode("latin-1") for seed in self._message(_START_SECONDS)]
        except (EOFError, OSError) as exc:
            self._stop()
            raise Broken(f"{self._spec}: cannot be started: {self._said()[-2000:]}") from exc

    def attempt(self, data: bytes) -> Answer:
        """Return the outcome of an input."""
        if self._pipe is None:
            self.start()
        assert self._pipe is not None
        began = time.perf_counter()
        try:
            # The process reads before it works, so that a pipe that is full only means a long input.
            self._pipe.send_bytes(data)
            answer = Answer(**self._message(self._hang_seconds + _GRACE_SECONDS))
        except TimeoutError:
            self._stop()
            return Answer("hang", _stuck_at(self._said()), self._said(), time.perf_counter() - began)
        except (EOFError, OSError):
            code = self._stop()
            name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            return Answer("crash", f"{name} {_stuck_at(self._said())}", self._said(), time.perf_counter() - began)
        if answer.seconds > self._hang_seconds:
            answer.kind, answer.outcome = "hang", f"took {self._hang_seconds:g} s: {answer.outcome}"
        return answer

    def _message(self, limit_seconds: float) -> Any:
        assert self._pipe is not None
        if not self._pipe.poll(limit_seconds):
            raise TimeoutError
        return json.loads(self._pipe.recv_bytes())

    def _lay_out(self) -> None:
        """A folder for the input, canaries beside it, and a working folder with canaries too."""
        shutil.rmtree(self.scratch, ignore_errors=True)
        for folder in (self.scratch, self.scratch / "elsewhere"):
            folder.mkdir(parents=True)
            for name in CANARIES:
                (folder / name).write_bytes(b"canary")

    def _stop(self) -> int:
        """End the process, and all that it has started, at once; its exit code."""
        if self._pipe is not None:
            self._pipe.close()
        process, self._process, self._pipe = self._process, None, None
        if process is None:
            return 0
        try:
            # One that is ending by itself shall say how.
            return process.wait(0.5)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return process.wait()

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
