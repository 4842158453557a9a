"""Lines passed to the system one by one, into a file or a pipe."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import stat
import sys
import threading
import time
from pathlib import Path

from arr_stream.consumer import UNREAD_SECONDS
from arr_stream.errors import ArrStreamError, OutputUnwritable
from arr_stream.files import STANDARD_OUTPUT, make_parent, writing

_SLICE_SECONDS = 0.05
_NO_WAITING = getattr(os, "O_NONBLOCK", 0)
"""Flag for non-blocking writes; Windows has neither named pipes in folders nor this flag."""


class LineFile:
    """Writer of whole lines; a killed or failed run leaves at most one incomplete line, the last.

    Writes to a pipe wait for its reader as long as the run lasts. After the run is stopped, a reader that takes nothing
    for two seconds is given up.

    Args:
        path: A file, created with its folder; an existing pipe or device; or `-`, standard output.
        force: Replace an existing file.
        stop: Set to end the run.

    Attributes:
        torn: The last line is or may be incomplete: no line can follow it.

    Raises:
        DiskFull, OutputUnwritable: It cannot be opened.
        KeyboardInterrupt: The run was stopped before a reader opened the other end of the pipe.
    """

    def __init__(self, path: Path, *, force: bool, stop: threading.Event | None = None) -> None:
        self.path = path
        self._stop = stop
        self.torn = False
        self._whole_bytes = 0
        if path == STANDARD_OUTPUT:
            # All other output goes to standard error meanwhile.
            sys.stdout.flush()
            self._descriptor = os.dup(1)
            os.dup2(2, 1)
            return
        make_parent(path)
        # A regular file that appeared since its name was checked is not overwritten.
        special = path.exists() and not path.is_file()
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_TRUNC if force or special else os.O_EXCL)
        with writing(path):
            self._descriptor = self._opened(flags | (_NO_WAITING if special else 0))

    def write(self, line: bytes) -> None:
        """Write one line, its line break included; on return the system has it.

        Raises:
            DiskFull: The disk is full; earlier lines stay whole, and the part of this one is removed.
            OutputUnwritable: The file cannot be written, or an earlier line was torn.
            KeyboardInterrupt: The run was stopped while the pipe's reader took nothing.
        """
        if self.torn:
            raise OutputUnwritable(f"{self.path}: its last line is not whole", remedy="write to another file")
        rest = memoryview(line)
        # True until the line is written whole; an exception in between leaves it so.
        self.torn = True
        try:
            with writing(self.path):
                while rest:
                    rest = rest[self._some(rest) :]
        except ArrStreamError:
            self._cut_back(written=len(line) - len(rest))
            raise
        self.torn = False
        self._whole_bytes += len(line)

    def close(self) -> None:
        """Close; safe to call again.

        Raises:
            OutputUnwritable: The file was removed while it was written.
        """
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor < 0:
            return
        if self.path == STANDARD_OUTPUT:
            sys.stdout.flush()
            os.dup2(descriptor, 1)
            os.close(descriptor)
            return
        try:
            gone = _removed(descriptor, self.path)
        finally:
            os.close(descriptor)
        if gone:
            raise OutputUnwritable(f"{self.path}: was removed while it was written", remedy="run it again")

    def _opened(self, flags: int) -> int:
        while True:
            try:
                return os.open(self.path, flags, 0o666)
            except OSError as exc:
                if exc.errno != errno.ENXIO or not self.path.is_fifo():
                    raise
            # No reader has opened the other end yet.
            if self._stop is not None and self._stop.is_set():
                raise KeyboardInterrupt
            time.sleep(_SLICE_SECONDS)

    def _some(self, data: memoryview) -> int:
        """Write as much data as fits; return the number of bytes."""
        waited_from: float | None = None
        while True:
            with contextlib.suppress(BlockingIOError):
                return os.write(self._descriptor, data)
            if self._stop is not None and self._stop.is_set():
                waited_from = waited_from or time.monotonic()
                if time.monotonic() - waited_from > UNREAD_SECONDS:
                    raise KeyboardInterrupt
            ready = select.poll()
            ready.register(self._descriptor, select.POLLOUT)
            ready.poll(_SLICE_SECONDS * 1e3)

    def _cut_back(self, *, written: int) -> None:
        """Remove the part of a line that was written before the disk was full; a pipe cannot undo it."""
        if written:
            if self.path == STANDARD_OUTPUT or not stat.S_ISREG(os.fstat(self._descriptor).st_mode):
                return
            with writing(self.path):
                os.ftruncate(self._descriptor, self._whole_bytes)
                os.lseek(self._descriptor, 0, os.SEEK_END)
        self.torn = False


def _removed(descriptor: int, path: Path) -> bool:
    """Return True if a regular file has no name left, so that its content is lost with the descriptor."""
    about = os.fstat(descriptor)
    if not stat.S_ISREG(about.st_mode) or about.st_nlink:
        return False
    try:
        return not os.path.samestat(about, path.stat())
    except OSError:
        return True
