"""What a process and its children hold, looked at every few seconds."""

from __future__ import annotations

import gc
import math
import os
import re
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.live.process import children

_KILOBYTES = re.compile(r"^(\w+):\s+(\d+) kB$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Sample:
    """One look.

    Args:
        run_seconds: Since the soak began, by the clock on the wall.
        stream_seconds: Of the main stream.
        fault: The fault that is going on, None for none.
        own_mb: Memory that this process has asked for (anonymous; pages of files, such as libraries, depend on who
            else on the machine reads them).
        all_mb: The same of this process and all below it.
        resident_mb: All that is resident of these, what several processes share divided among them (PSS).
        handles: Open file descriptors.
        threads: Of this process, those of libraries included.
        children: Processes below this one.
        waiting: Frames that wait, over all streams.
        dropped: Frames passed over so far.
        blocks: Pieces of memory that Python's own objects take.
    """

    run_seconds: float
    stream_seconds: float
    fault: str | None
    own_mb: float
    all_mb: float
    resident_mb: float
    handles: int
    threads: int
    children: int
    waiting: int
    dropped: int
    blocks: int


@dataclass(frozen=True, slots=True)
class Held:
    """What is compared before and after.

    Args:
        handles: Where each open file descriptor leads to.
        threads: Names of Python's threads.
        tasks: Threads of the process, those of libraries included.
        children: Command lines of the processes below.
    """

    handles: tuple[str, ...]
    threads: tuple[str, ...]
    tasks: int
    children: tuple[str, ...]

    @classmethod
    def now(cls) -> Held:
        # The server has put what was there when it began out of the collector's sight.
        gc.unfreeze()
        gc.collect()
        commands = [_read(f"/proc/{pid}/cmdline").replace("\0", " ") for pid in children(os.getpid())]
        return cls(
            tuple(sorted(_targets())), tuple(sorted(t.name for t in threading.enumerate())), _tasks(), tuple(commands)
        )


@dataclass(frozen=True, slots=True)
class Slope:
    """A straight line through points, by least squares.

    Args:
        per_minute: How much it rises.
        error: Standard error of that; infinite for fewer than three points.
        points: How many there were.
    """

    per_minute: float
    error: float
    points: int


class Sampler:
    """Takes samples in a thread until closed.

    Args:
        every_seconds: How often.
        look: Stream seconds, fault, frames that wait, and frames dropped.
    """

    def __init__(self, every_seconds: float, look: Callable[[], tuple[float, str | None, int, int]]) -> None:
        self.samples: list[Sample] = []
        self.error: Exception | None = None
        self._every_seconds, self._look = every_seconds, look
        self._began = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="soak-sampler")
        self._thread.start()

    @property
    def run_seconds(self) -> float:
        return time.monotonic() - self._began

    def close(self) -> None:
        """End the thread.

        Raises:
            Exception: What kept it from looking.
        """
        self._stop.set()
        self._thread.join()
        if self.error is not None:
            raise self.error

    def _work(self) -> None:
        try:
            while not self._stop.wait(self._every_seconds):
                self.samples.append(self._sample())
        except Exception as exc:
            self.error = exc

    def _sample(self) -> Sample:
        below = _below(os.getpid())
        stream_seconds, fault, waiting, dropped = self._look()
        own, others = _memory_kb(os.getpid()), [_memory_kb(pid) for pid in below]
        return Sample(
            run_seconds=round(self.run_seconds, 2),
            stream_seconds=round(stream_seconds, 2),
            fault=fault,
            own_mb=_megabytes("Anonymous", [own]),
            all_mb=_megabytes("Anonymous", [own, *others]),
            resident_mb=_megabytes("Pss", [own, *others]),
            handles=len(_targets()),
            threads=_tasks(),
            children=len(below),
            waiting=waiting,
            dropped=dropped,
            blocks=sys.getallocatedblocks(),
        )


def fit_slope(minutes: Sequence[float], values: Sequence[float], groups: Sequence[int] | None = None) -> Slope:
    """The line through values over time.

    Args:
        minutes, values: The points.
        groups: Points of one group have a level of their own; all have the same slope.
    """
    levels = sorted(set(groups)) if groups is not None else [0]
    of = groups if groups is not None else [0] * len(minutes)
    apart: list[tuple[float, float]] = []
    for level in levels:
        points = [(x, y) for x, y, group in zip(minutes, values, of, strict=True) if group == level]
        mean_x, mean_y = (statistics.fmean(each) for each in zip(*points, strict=True)) if points else (0.0, 0.0)
        apart += [(x - mean_x, y - mean_y) for x, y in points]
    spread = sum(x * x for x, _ in apart)
    product = sum(x * y for x, y in apart)
    free = len(apart) - len(levels) - 1
    if free < 1 or spread == 0:
        return Slope(0.0, math.inf, len(apart))
    rise = product / spread
    residue = sum((y - rise * x) ** 2 for x, y in apart)
    return Slope(rise, math.sqrt(residue / free / spread), len(apart))


def _below(pid: int) -> list[int]:
    found = []
    command = _read(f"/proc/{pid}/cmdline")
    for child in children(pid):
        if _read(f"/proc/{child}/cmdline") == command:
            # Just forked: until it has its own program, its memory is that of its parent.
            continue
        found.append(child)
        with suppress(OSError):
            found += _below(child)
    return found


def _megabytes(field: str, processes: Sequence[dict[str, int]]) -> float:
    return round(sum(process.get(field, 0) for process in processes) * 1024 / 1e6, 3)


def _memory_kb(pid: int) -> dict[str, int]:
    """Fields of /proc/PID/smaps_rollup; empty for a process that is gone."""
    return {name: int(value) for name, value in _KILOBYTES.findall(_read(f"/proc/{pid}/smaps_rollup"))}


def _targets() -> list[str]:
    found = []
    for link in Path("/proc/self/fd").iterdir():
        # The one that lists them is gone by now.
        with suppress(OSError):
            found.append(re.sub(r"\[\d+\]", "", str(link.readlink())))
    return found


def _tasks() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""
