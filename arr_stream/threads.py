"""Keeps libraries from spending more on their threads than the threads save."""

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
    """The limit that `one_blas_thread` sets, for as long as anybody wants it: it holds for the whole process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._before: list[tuple[LibController, int]] = []

    def __enter__(self) -> None:
        with self._lock:
            self._users += 1
            if self._users == 1:
                # Twice a frame: the controller's own way to set limits takes fifty times as long.
                self._before = [(library, library.get_num_threads()) for library in _blas()]
            # Others restore the number that they found (scikit-learn does), which may be in the middle of this.
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
    """Those loaded by now; to look for them takes some milliseconds."""
    found: list[LibController] = ThreadpoolController().select(user_api="blas").lib_controllers
    return found


def one_blas_thread() -> AbstractContextManager[None]:
    """Run NumPy's linear algebra on the calling thread alone, and restore the setting when nobody wants that any more.

    The frame loop's matrices are small: waking other threads for them costs more than it gains, and their number, which
    nobody here sets, has a say in the last digits.
    """
    return _ONE_BLAS_THREAD


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Run torch on the calling thread alone, and restore the setting afterwards.

    For small tensors beside a frame loop. After each parallel operation torch's helper threads go on spinning for a
    while, and beside a video encoder and OpenCV's own threads that has cost ten times what the operations take.
    (OpenCV's threads spin as well, but they do save latency: a fifth of a frame at 854x480 on two cores.)
    """
    with torch_threads(1):
        yield


@contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    """Run torch on so many threads (None: as it is set), and restore the setting afterwards."""
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

    For throughput: where frames wait for nobody and the other cores encode, threads that spin only take time from
    them. Two OpenCV threads cost a quarter more processor time at 1280x720 than one.
    """
    before = cv2.getNumThreads()
    cv2.setNumThreads(1)
    try:
        yield
    finally:
        cv2.setNumThreads(before)


def limit_threads(count: int) -> None:
    """Keep the pools of a process that shares the machine with others like it to so many threads, for good."""
    cv2.setNumThreads(count)
    # Read by torch when it is loaded, which may be never.
    os.environ["OMP_NUM_THREADS"] = str(count)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(count)


def prepare_for_live() -> None:
    """Keep the interpreter from making some frames late: once, when all is imported that will be.

    Threads take turns more often than Python's usual 5 ms, since a frame's work leaves the interpreter for OpenCV many
    times, and each return waits for its turn; and what is there by now, hundreds of thousands of objects of libraries,
    is never looked through for garbage again. On two cores with the page open, the 99th percentile of a frame's time
    fell from 2.5 times the median to 1.8.

    Memory comes from few arenas: where streams come and go, each of their many threads would else leave one behind that
    is never given back.
    """
    sys.setswitchinterval(_PROMPT_SECONDS)
    _limit_arenas()
    gc.collect()
    gc.freeze()


def _limit_arenas() -> None:
    """By glibc's own means; other C libraries have no such arenas."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").mallopt(_M_ARENA_MAX, _ARENAS)
