"""Faults for the tests: real processes, small filesystems of their own, and keyframe models that misbehave.

`python -m tests.fault_helpers process ...` is the command line with the faults that `ARR_STREAM_FAULT` names.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import av
import av.error
import numpy as np
import pytest

from arr_stream.cli import console
from arr_stream.config import Settings
from arr_stream.keyframes.base import PartName, PartValue, TextFinding
from arr_stream.keyframes.generate import Job, KeyframeGenerator, KeyframeRequest, make_generator
from arr_stream.types import ByteArray, Clusters, Embedding
from benchmarks.live.process import children
from tests.media import write_video
from tests.scenes import moving_square

QUICK = ("--set", "keyframes.text=none", "--set", "keyframes.clusters=grid", "--budget", "6")
"""Little work for each frame."""

PATIENCE_SECONDS = 90.0
"""Longest wait for something that takes a second on an idle machine."""

_FAULT = "ARR_STREAM_FAULT"
_PR_SET_PDEATHSIG = 1


def clip(path: Path, frames: int = 30, hw: tuple[int, int] = (96, 128)) -> Path:
    """A square that moves back and forth, at 30 frames a second."""
    there = [frame.rgb for frame in moving_square(min(frames, 20), hw, start_xy=(10, 20), step_xy=(3, 1), side=32)]
    loop = [*there, *there[::-1]]
    return write_video(path, [loop[index % len(loop)] for index in range(frames)])


@contextlib.contextmanager
def running(
    arguments: Sequence[object],
    *,
    fault: Mapping[str, Any] | None = None,
    within: Sequence[str] = (),
) -> Iterator[subprocess.Popen[str]]:
    """The command line in a process of its own, which Ctrl-C reaches; killed in the end, whatever happens.

    Args:
        arguments: What comes after `arr-stream`.
        fault: What a keyframe model does; see `Faulty`.
        within: A command that runs it, such as `SmallDisk.within`.
    """
    process = subprocess.Popen(
        [*within, sys.executable, "-m", "tests.fault_helpers", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", _FAULT: json.dumps(fault)},
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended."""

    code: int
    out: str
    err: str

    @property
    def last_line(self) -> str:
        return self.err.splitlines()[-1] if self.err.strip() else ""


def ended(process: subprocess.Popen[str], within_seconds: float = PATIENCE_SECONDS) -> Ended:
    """Wait for a process; it is killed and the test fails when it does not end."""
    try:
        out, err = process.communicate(timeout=within_seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"still running after {within_seconds:g} s; it said: {err}") from None
    return Ended(process.returncode, out, err)


def finished(arguments: Sequence[object], **options: Any) -> Ended:
    """Run the command line to its end."""
    with running(arguments, **options) as process:
        return ended(process)


def until(
    condition: Callable[[], bool], process: subprocess.Popen[str] | None = None, seconds: float = PATIENCE_SECONDS
) -> None:
    """Wait until something is so; fails when the process ends before, or after a generous time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


@contextlib.contextmanager
def no_room_to_speak() -> Iterator[None]:
    """Standard output is on a disk that is full, for a command line that runs in this process."""
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    with Path("/dev/full").open("w") as file, contextlib.redirect_stdout(file):
        yield
    # What could not be written waits for the next line; a process that ends never comes to that.
    with console.out.capture():
        pass


@contextlib.contextmanager
def ctrl_c(when: Callable[[], bool]) -> Iterator[None]:
    """Ctrl-C for a command line that runs in this process, once something is so."""
    over, pressed = threading.Event(), threading.Event()

    def press() -> None:
        while not over.wait(0.02):
            if when():
                pressed.set()
                os.kill(os.getpid(), signal.SIGINT)
                return

    hand = threading.Thread(target=press)
    hand.start()
    try:
        yield
    finally:
        over.set()
        hand.join()
    assert pressed.is_set(), "it did not happen"


def lines(path: Path) -> int:
    """Whole lines of a file that may not be there yet."""
    return path.read_bytes().count(b"\n") if path.exists() else 0


def decoded(path: Path) -> list[tuple[float, ByteArray]]:
    """Every picture of a video with its time, as far as a player gets that stops at the first error."""
    pictures: list[tuple[float, ByteArray]] = []
    with av.open(str(path)) as container, contextlib.suppress(av.error.EOFError):
        for picture in container.decode(video=0):
            rgb = np.asarray(picture.to_ndarray(format="rgb24"), dtype=np.uint8)
            pictures.append((float(picture.time or 0.0), rgb))
    return pictures


@dataclass(frozen=True, slots=True)
class SmallDisk:
    """A filesystem in memory that only processes started `within` it see.

    Args:
        path: Where they find it.
        seen: Where the tests find it.
        within: What to start them with.
    """

    path: Path
    seen: Path
    within: tuple[str, ...]

    def remount(self, options: str) -> None:
        """Such as `ro`."""
        subprocess.run([*self.within, "mount", "-o", f"remount,{options}", str(self.path)], check=True)


@contextlib.contextmanager
def small_disk(path: Path, kilobytes: int) -> Iterator[SmallDisk]:
    """A disk of that size; the test is skipped where the system does not let one be made.

    It lives in a mount namespace, and is gone with the process that holds it, however the tests end.
    """
    path.mkdir()
    unshare = ["unshare", "--mount", "--propagation", "private", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    script = f'mount -t tmpfs -o size={kilobytes}k tmpfs "$0" && echo ready && exec cat'
    try:
        holder = subprocess.Popen(
            [*unshare, "sh", "-c", script, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    except FileNotFoundError:
        pytest.skip("no `unshare` here, so no small disk can be made")
    with holder:
        try:
            assert holder.stdout is not None
            if holder.stdout.readline() != "ready\n":
                _, why = holder.communicate()
                pytest.skip(f"this system mounts no small disk: {why.strip()}")
            enter = ["nsenter", "--target", str(holder.pid), "--mount"]
            enter += [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]
            yield SmallDisk(path, Path(f"/proc/{holder.pid}/root{path}"), (*enter, f"--wd={Path.cwd()}"))
        finally:
            holder.kill()


class Faulty:
    """A generator that does what it is told, and otherwise works.

    Args:
        generator: Does the work.
        fault: `do`: see `_do`; `parts`: to which parts (`embedding` where not given); `on`: on which keyframes,
            counted from 0 (all where not given).
    """

    def __init__(self, generator: KeyframeGenerator, fault: Mapping[str, Any]) -> None:
        self._generator = generator
        self._fault = fault
        self._keyframes = -1

    def jobs(self, request: KeyframeRequest) -> Mapping[PartName, Job]:
        self._keyframes += 1
        jobs = dict(self._generator.jobs(request))
        on = self._fault.get("on")
        if on is None or self._keyframes in on:
            for part in self._fault.get("parts", ["embedding"]):
                if part in jobs:
                    jobs[part] = self._spoilt(jobs[part])
        return jobs

    def _spoilt(self, job: Job) -> Job:
        def make() -> tuple[PartValue, str]:
            value, backend = job()
            return self._do(value), backend

        return make

    def _do(self, value: PartValue) -> PartValue:
        match self._fault["do"]:
            case "raise":
                raise ArithmeticError("the model\nwas told to")
            case "nan":
                return with_number(value, np.nan)
            case "inf":
                return with_number(value, np.inf)
            case "shape":
                return with_shape(value)
            case "hang":
                time.sleep(3600)
            case "memory":
                raise MemoryError
            case "out of memory":
                use_up_memory()
            case "torch out of memory":
                import torch

                torch.ones(1 << 50)
            case "sys.exit":
                sys.exit(0)
            case "die":
                os._exit(0)
            case "segfault":
                os.kill(os.getpid(), signal.SIGSEGV)
        return value


def with_number(value: PartValue, number: float) -> PartValue:
    """The same with one place that holds this number."""
    match value:
        case Clusters():
            return replace(value, areas=_with(value.areas, number))
        case Embedding():
            return replace(value, values=_with(value.values, number))
        case TextFinding():
            return replace(value, mask=_with(value.mask, number))


def _with(array: Any, number: float) -> Any:
    changed = array.copy()
    changed.flat[changed.size // 2] = number
    return changed


def with_shape(value: PartValue) -> PartValue:
    """The same numbers in one row."""
    match value:
        case Clusters():
            return replace(value, labels=value.labels.ravel())
        case Embedding():
            return replace(value, values=value.values.reshape(len(value.values), -1))
        case TextFinding():
            return replace(value, mask=value.mask.ravel())


def use_up_memory() -> None:
    """Ask for memory until the system refuses; a limit is set first, so that it does soon."""
    import resource

    used_pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = used_pages * resource.getpagesize() + (256 << 20)
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    try:
        held = []
        while True:
            held.append(np.ones(32 << 20, np.uint8))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def make_faulty(settings: Mapping[str, Any], parts: Sequence[PartName]) -> KeyframeGenerator:
    """The factory of worker processes."""
    fault = json.loads(os.environ[_FAULT])
    return Faulty(make_generator(Settings.model_validate(settings), 1, parts), fault)


def main() -> None:
    """The command line with its faults."""
    import arr_stream.cli

    fault = json.loads(os.environ[_FAULT])
    # A shell that starts the tests in the background has it ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if fault is not None:
        _spoil_models(fault)
    arr_stream.cli.main()


def _spoil_models(fault: Mapping[str, Any]) -> None:
    """Put the fault into the models in step, and into those of workers."""
    import arr_stream.stream
    from arr_stream.keyframes.worker import KeyframeWorker

    faulty = lambda *given: Faulty(make_generator(*given), fault)  # noqa: E731
    setattr(arr_stream.stream, "make_generator", faulty)  # noqa: B010
    defaults = KeyframeWorker.__init__.__kwdefaults__
    assert defaults is not None and "factory" in defaults
    defaults["factory"] = "tests.fault_helpers:make_faulty"


if __name__ == "__main__":
    main()


def worker_pids() -> list[int]:
    """Return the keyframe workers that this process started."""
    found = []
    for pid in children(os.getpid()):
        with contextlib.suppress(OSError):
            if b"arr_stream.keyframes.worker" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found
