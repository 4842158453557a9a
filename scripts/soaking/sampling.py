"""Resources of a process and its descendants, sampled every second from /proc."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.live.process import children

_KILOBYTES = re.compile(r"^Anonymous:\s+(\d+) kB$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Sample:
    """Resources of the server at one time.

    Args:
        seconds: Since the soak began.
        fault: The fault in progress, None for none.
        own_mb: Anonymous memory of the server (pages of files depend on who else reads them).
        all_mb: The same with its workers.
        handles: Open file descriptors of the server.
        threads: Of the server, those of libraries included.
        children: Processes below it.
    """

    seconds: float
    fault: str | None
    own_mb: float
    all_mb: float
    handles: int
    threads: int
    children: int


class Sampler:
    """Thread that samples a process until closed.

    Args:
        pid: The process.
        fault: Returns the fault in progress.
    """

    def __init__(self, pid: int, fault: Callable[[], str | None]) -> None:
        self.samples: list[Sample] = []
        self._pid, self._fault = pid, fault
        self._began = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="soak-sampler")
        self._thread.start()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._stop.wait(1.0):
            # A process may end while it is looked at; the verdicts demand enough samples.
            with suppress(OSError):
                self.samples.append(self._sample())

    def _sample(self) -> Sample:
        workers, fault = family(self._pid), self._fault()
        own, others = _anonymous_mb(self._pid), [_anonymous_mb(pid) for pid in workers]
        handles, threads = (len(list(Path(f"/proc/{self._pid}/{name}").iterdir())) for name in ("fd", "task"))
        return Sample(round(self.seconds, 2), fault, own, own + sum(others), handles, threads, len(workers))


def family(pid: int) -> list[int]:
    """Return all processes below one."""
    found: list[int] = []
    with suppress(OSError):
        for child in children(pid):
            found += [child, *family(child)]
    return found


def _anonymous_mb(pid: int) -> float:
    with suppress(OSError):
        found = _KILOBYTES.search(Path(f"/proc/{pid}/smaps_rollup").read_text())
        return int(found[1]) * 1024 / 1e6 if found else 0.0
    return 0.0
