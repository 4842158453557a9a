"""Lines passed to the system one by one."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

from arr_stream.errors import ArrStreamError, OutputUnwritable
from arr_stream.files import STANDARD_OUTPUT, make_parent, writing


class LineFile:
    """Writer of whole lines; a killed or failed run leaves at most one incomplete line, the last.

    Writes to a pipe wait for its reader.

    Args:
        path: A file, created with its folder; an existing pipe or device; or `-`, standard output.
        force: Replace an existing file.

    Attributes:
        torn: The last line is or may be incomplete: no line can follow it.

    Raises:
        DiskFull, OutputUnwritable: It cannot be opened.
    """

    def __init__(self, path: Path, *, force: bool) -> None:
        self.path = path
        self.torn = False
        self._whole_bytes = 0
        if path == STANDARD_OUTPUT:
            # All other output goes to standard error meanwhile.
            sys.stdout.flush()
            self._file = os.fdopen(os.dup(1), "wb", buffering=0)
            os.dup2(2, 1)
            return
        make_parent(path)
        special = path.exists() and not path.is_file()
        with writing(path):
            # A regular file that appeared since its name was checked is not overwritten.
            self._file = path.open("wb" if force or special else "xb", buffering=0)

    def write(self, line: bytes) -> None:
        """Write one line, its line break included; on return the system has it.

        Raises:
            DiskFull: The disk is full; earlier lines stay whole, and the part of this one is removed.
            OutputUnwritable: The file cannot be written, or an earlier line was torn.
        """
        if self.torn:
            raise OutputUnwritable(f"{self.path}: its last line is not whole", remedy="write to another file")
        rest = memoryview(line)
        # True until the line is written whole; an exception in between leaves it so.
        self.torn = True
        try:
            with writing(self.path):
                while rest:
                    rest = rest[self._file.write(rest) :]
        except ArrStreamError:
            # A pipe keeps the part that it took.
            with contextlib.suppress(OSError):
                if self.path != STANDARD_OUTPUT:
                    self._file.truncate(self._whole_bytes)
                    self._file.seek(self._whole_bytes)
                    self.torn = False
            raise
        self.torn = False
        self._whole_bytes += len(line)

    def close(self) -> None:
        """Close; safe to call again.

        Raises:
            OutputUnwritable: The file was removed while it was written.
        """
        if self._file.closed:
            return
        if self.path == STANDARD_OUTPUT:
            sys.stdout.flush()
            os.dup2(self._file.fileno(), 1)
        removed = os.fstat(self._file.fileno()).st_nlink == 0
        self._file.close()
        if removed and self.path != STANDARD_OUTPUT:
            raise OutputUnwritable(f"{self.path}: was removed while it was written", remedy="run it again")
