"""Files that are written: never replaced unasked, never half there under their final name.

What is still being written bears a partial name beside it (`out.partial.mp4` for `out.mp4`); that file is playable up
to its last second too, should the run be killed.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from arr_stream.errors import DiskFull, OutputExists, OutputUnwritable

STANDARD_OUTPUT = Path("-")
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def expanded(path: Path | str) -> Path:
    """With `~` as a home; that of a user whom nobody knows stays as it is, and is not found."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 (the method of Path raises a RuntimeError)


def prepare_output(path: Path | str, force: bool = False, *, direct: bool = False) -> Path:
    """Check, before any work is done, that a file can be written at `path`; nothing is created yet.

    Missing folders are made when the first frame arrives (`make_parent`).

    Args:
        path: The final name.
        force: Replacing what is there is wanted.
        direct: Written line by line under its final name, so that pipes, devices and `-` (standard output) will do too.

    Raises:
        OutputExists: The file, or what a killed run left under its partial name, is there and `force` is not set.
        OutputUnwritable: It is a folder, a device, or the folder that it would be in cannot be written to.
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
    """Check that `folder` is one that can be written to, or could be made.

    Raises:
        OutputUnwritable: Something on the way is no folder, or may not be written to.
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
    """Make the folder that `path` is in, where it is missing."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)


def partial_path(path: Path) -> Path:
    """Where a file is written before it is whole: `out.partial.mp4` for `out.mp4`.

    A table that is not whole is no `*.parquet`, which others' tools take all of: `frames.parquet.partial`.
    """
    if path.suffix == ".parquet":
        return path.with_name(f"{path.name}.partial")
    return path.with_name(f"{path.stem}.partial{path.suffix}")


def publish(path: Path, *, force: bool) -> None:
    """Give the partial file of `path` its final name.

    Raises:
        OutputExists: Someone else made `path` meanwhile and `force` is not set; the partial file stays.
    """
    partial = partial_path(path)
    if os.path.lexists(path) and not force:
        raise OutputExists(f"{path}: was made by something else meanwhile", remedy=f"what was written is in {partial}")
    with writing(path):
        partial.replace(path)


@contextlib.contextmanager
def written_whole(path: Path, *, force: bool) -> Iterator[Path]:
    """A partial file to write to, which gets the name of `path` when it is whole, and is removed otherwise.

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
    """Turn the system's refusals to write into errors of our own.

    Raises:
        DiskFull: No room, quota reached, or the file has become larger than allowed.
        OutputUnwritable: Any other refusal.
    """
    try:
        yield
    except OSError as exc:
        raise output_error(exc, path) from exc


def output_error(exc: OSError, path: Path) -> DiskFull | OutputUnwritable:
    """The error that says what the system refused."""
    reason = (exc.strerror or str(exc)).lower()
    name = "standard output" if path == STANDARD_OUTPUT else path
    if exc.errno in _NO_ROOM:
        return DiskFull(f"{name}: {reason}", remedy="make room, or write somewhere else")
    remedy = "its reader has ended" if exc.errno == errno.EPIPE else "check the folder and its permissions"
    return OutputUnwritable(f"{name}: {reason}", remedy=remedy)
