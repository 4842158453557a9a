"""Lines that are handed to the system one by one, into a file or into a pipe that somebody reads."""

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
"""Windows has no pipes with names in folders, and no such flag."""


class LineFile:
    """Writes whole lines; what a killed or failed run leaves ends with one, or with the beginning of one.

    A pipe waits for its reader for as long as it takes, but no longer than the run: once that is told to end, a reader
    that takes nothing for two seconds is given up.

    Args:
        path: A file, which is made with its folder; a pipe or a device that is there; or `-`, standard output.
        force: Replace a file that exists.
        stop: Set when the run is to end.

    Attributes:
        torn: The last line is not whole, or may not be: nothing can come after it.

    Raises:
        DiskFull, OutputUnwritable: It cannot be opened.
        KeyboardInterrupt: The run was told to end while nobody had opened the other end of the pipe.
    """

    def __init__(self, path: Path, *, force: bool, stop: threading.Event | None = None) -> None:
        self.path = path
        self._stop = stop
        self.torn = False
        self._whole_bytes = 0
        if path == STANDARD_OUTPUT:
            # Whatever else would be printed there goes to standard error meanwhile.
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
        """Hand over one line, its line break included; on return the system has it.

        Raises:
            DiskFull: No room; the lines before stay whole, and what went in of this one is taken away again.
            OutputUnwritable: The file cannot be written, or a line before this one was torn.
            KeyboardInterrupt: The run was told to end, and whoever reads the pipe takes nothing.
        """
        if self.torn:
            raise OutputUnwritable(f"{self.path}: its last line is not whole", remedy="write to another file")
        rest = memoryview(line)
        # Until the opposite is known; whatever comes in between leaves it so.
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
            # Nobody has opened the other end yet.
            if self._stop is not None and self._stop.is_set():
                raise KeyboardInterrupt
            time.sleep(_SLICE_SECONDS)

    def _some(self, data: memoryview) -> int:
        """Write what finds room; how much that is."""
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
        """Take away the part of a line that still went in before there was no room; what a pipe took is gone."""
        if written:
            if self.path == STANDARD_OUTPUT or not stat.S_ISREG(os.fstat(self._descriptor).st_mode):
                return
            with writing(self.path):
                os.ftruncate(self._descriptor, self._whole_bytes)
                os.lseek(self._descriptor, 0, os.SEEK_END)
        self.torn = False


def _removed(descriptor: int, path: Path) -> bool:
    """Whether a regular file has lost its last name, so that what was written is lost with the descriptor."""
    about = os.fstat(descriptor)
    if not stat.S_ISREG(about.st_mode) or about.st_nlink:
        return False
    try:
        return not os.path.samestat(about, path.stat())
    except OSError:
        return True
