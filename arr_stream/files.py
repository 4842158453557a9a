"""Output files: never replaced without `force`, never incomplete under their final name.

A file in progress has a partial name beside it (`out.partial.mp4` for `out.mp4`); after a kill it is playable up to its
last second.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

from arr_stream.errors import ArrStreamError, DiskFull, OutputExists, OutputUnwritable

STANDARD_OUTPUT = Path("-")
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def expanded(path: Path | str) -> Path:
    """Expand `~`; that of an unknown user stays as it is, and is not found."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 (the method of Path raises a RuntimeError)


def prepare_output(path: Path | str, force: bool = False, *, direct: bool = False) -> Path:
    """Check, before any work is done, that a file can be written at `path`; create nothing yet.

    Missing folders are created when the first frame arrives (`make_parent`).

    Args:
        path: The final name.
        force: Replace an existing file.
        direct: Written line by line under its final name, so that pipes and devices are allowed too.

    Raises:
        OutputExists: The file, or the partial file of a killed run, exists and `force` is not set.
        OutputUnwritable: It is a folder or a device, or its folder cannot be written to.
    """
    path = Path(path)
    if direct and path == STANDARD_OUTPUT:
        return path
    if path.is_dir():
        raise OutputUnwritable(f"{path}: is a folder", remedy="name a file")
    check_folder(path.parent)
    special = path.exists() and not path.is_file()
    if special and not direct:
        raise OutputUnwritable(f"{path}: is not a regular file", remedy="name a file on a disk")
    if path.exists() and not os.access(path, os.W_OK):
        raise OutputUnwritable(f"{path}: cannot be written", remedy="check its permissions")
    if os.path.lexists(path) and not special and not force:
        raise OutputExists(f"{path}: exists already", remedy="choose another name, or --force to replace it")
    partial = partial_path(path)
    if not direct and os.path.lexists(partial) and not force:
        raise OutputExists(
            f"{partial}: left by a run that was killed, or being written by another",
            remedy="move it away, or --force to replace it",
        )
    return path


def check_folder(folder: Path) -> None:
    """Check that `folder` can be written to, or could be created.

    Raises:
        OutputUnwritable: Part of the path is no folder, or cannot be written to.
    """
    while not os.path.lexists(folder) and folder != folder.parent:
        folder = folder.parent
    if not folder.is_dir():
        raise OutputUnwritable(f"{folder}: is not a folder", remedy="choose another place for the output")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OutputUnwritable(
            f"{folder}: cannot be written to", remedy="check its permissions or choose another place"
        )


def make_parent(path: Path) -> None:
    """Create the parent folder of `path` if it is missing."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)


def partial_path(path: Path) -> Path:
    """Return the name of a file in progress: `out.partial.mp4` for `out.mp4`."""
    return path.with_name(f"{path.stem}.partial{path.suffix}")


def publish(path: Path, *, force: bool) -> None:
    """Give the partial file of `path` its final name.

    Raises:
        OutputExists: Another process created `path` meanwhile and `force` is not set; the partial file stays.
    """
    partial = partial_path(path)
    if os.path.lexists(path) and not force:
        raise OutputExists(f"{path}: another program created it meanwhile", remedy=f"the output is in {partial}")
    with writing(path):
        partial.replace(path)


@contextlib.contextmanager
def written_whole(path: Path, *, force: bool) -> Iterator[Path]:
    """Yield a partial file to write to; it gets the name of `path` when it is complete, and is removed after an error.

    Raises:
        DiskFull, OutputUnwritable: It could not be written.
        OutputExists: As `publish`.
    """
    make_parent(path)
    partial = partial_path(path)
    try:
        with writing(path):
            yield partial
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    publish(path, force=force)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn the system's write errors into those of `arr_stream.errors`.

    Raises:
        DiskFull: No space, quota reached, or the file has become larger than allowed.
        OutputUnwritable: Any other refusal.
    """
    try:
        yield
    except OSError as exc:
        raise output_error(exc, path) from exc


def output_error(exc: OSError, path: Path) -> DiskFull | OutputUnwritable:
    """Return the error for a write that the system refused."""
    reason = (exc.strerror or str(exc)).lower()
    name = "standard output" if path == STANDARD_OUTPUT else path
    if exc.errno in _NO_ROOM:
        return DiskFull(f"{name}: {reason}", remedy="make room, or write somewhere else")
    remedy = "its reader has ended" if exc.errno == errno.EPIPE else "check the folder and its permissions"
    return OutputUnwritable(f"{name}: {reason}", remedy=remedy)


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
        status = os.fstat(self._file.fileno())
        removed = stat.S_ISREG(status.st_mode) and status.st_nlink == 0
        self._file.close()
        if removed and self.path != STANDARD_OUTPUT:
            raise OutputUnwritable(f"{self.path}: was removed while it was written", remedy="run it again")
