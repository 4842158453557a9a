"""Limits on the threads of libraries, where they cost more than they save."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import lru_cache

import cv2
from threadpoolctl import LibController, ThreadpoolController

_PROMPT_SECONDS = 0.0002
_M_ARENA_MAX = -8
_ARENAS = 2


class _OneBlasThread:
    """Limit of `one_blas_thread`, active while it has users, since it applies to the whole process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._before: list[tuple[LibController, int]] = []

    def __enter__(self) -> None:
        with self._lock:
            self._users += 1
            if self._users == 1:
                # This runs twice a frame: the controller's own limits are fifty times as slow.
                self._before = [(library, library.get_num_threads()) for library in _blas()]
            # Other libraries (scikit-learn) restore the number that they found, possibly in the middle of this.
            for library, _ in self._before:
                library.set_num_threads(1)

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                for library, threads in self._before:
                    library.set_num_threads(threads)


_ONE_BLAS_THREAD = _OneBlasThread()


@lru_cache(maxsize=1)
def _blas() -> list[LibController]:
    """Return the BLAS libraries loaded by now; the search takes some milliseconds."""
    found: list[LibController] = ThreadpoolController().select(user_api="blas").lib_controllers
    return found


def one_blas_thread() -> AbstractContextManager[None]:
    """Run NumPy's linear algebra on the calling thread alone, and restore the setting when the last user is done.

    The frame loop's matrices are small: waking other threads costs more than it gains, and the number of threads, which
    is not fixed here, affects the last digits.
    """
    return _ONE_BLAS_THREAD


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Run torch on the calling thread alone, and restore the setting afterwards.

    Use it for small tensors beside a frame loop. After each parallel operation torch's helper threads spin for a while,
    and beside a video encoder and OpenCV's own threads that has cost ten times the operations' own time. (OpenCV's
    threads spin as well, but they do save latency: a fifth of a frame at 854x480 on two cores.)
    """
    with torch_threads(1):
        yield


@contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    """Run torch on `count` threads (None: unchanged), and restore the setting afterwards."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def one_opencv_thread() -> Iterator[None]:
    """Run OpenCV on the calling thread alone, and restore the setting afterwards.

    It improves throughput: without a deadline for frames, while the other cores encode, spinning threads only take time
    from those. Two OpenCV threads cost a quarter more processor time at 1280x720 than one.
    """
    before = cv2.getNumThreads()
    cv2.setNumThreads(1)
    try:
        yield
    finally:
        cv2.setNumThreads(before)


def limit_threads(count: int) -> None:
    """Limit the thread pools of this process, which shares the machine with similar ones, to `count`, for good."""
    cv2.setNumThreads(count)
    # torch reads this at import, which may never happen.
    os.environ["OMP_NUM_THREADS"] = str(count)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(count)


def prepare_for_live() -> None:
    """Prepare the interpreter for live streams, so that fewer frames are late; call it once, after all imports.

    Threads switch more often than Python's default of 5 ms, since a frame's work leaves the interpreter for OpenCV many
    times, and each return waits for its turn. The existing objects, hundreds of thousands from libraries, are excluded
    from garbage collection. On two cores with the page open, the 99th percentile of a frame's time fell from 2.5 times
    the median to 1.8.

    Memory comes from few arenas: otherwise, as streams come and go, each of their many threads would leave one behind
    that is never freed.
    """
    sys.setswitchinterval(_PROMPT_SECONDS)
    _limit_arenas()
    gc.collect()
    gc.freeze()


def _limit_arenas() -> None:
    """Limit the arenas of glibc; other C libraries have none."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").mallopt(_M_ARENA_MAX, _ARENAS)
