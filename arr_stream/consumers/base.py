"""What every consumer of patch sets has in common: its shape, and how it treats the paths that it writes to.

A file under its final name is always whole. What is still being written bears a partial name beside it
(`out.partial.mp4` for `out.mp4`); that file is playable up to its last second too, should the run be killed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from arr_stream.config import Settings
from arr_stream.errors import DiskFull, OutputExists, OutputUnwritable
from arr_stream.types import Frame, PatchSet

EndReason = Literal["finished", "interrupted", "damaged", "failed"]

UNREAD_SECONDS = 2.0
"""A run that was told to end waits no longer for somebody who takes nothing."""

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Schemes are short; without a bound, a long text without one would take quadratic time.
_URL = re.compile(r"[a-z][a-z0-9+.-]{0,31}://[^\s'\"<>]+", re.IGNORECASE)
_USER = re.compile(r"^([a-z][a-z0-9+.-]*://)(?:[^/@]*@)+", re.IGNORECASE)
_SECRET = re.compile(
    r"([?&;](?:[\w.-]{0,64}(?:pass|token|secret|key|auth|sig|credential|pwd)[\w.-]{0,64})=)[^&;#\s]*", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended, for consumers that write it down.

    Args:
        reason: `finished`, `interrupted` (Ctrl-C), `damaged` (the source broke off) or `failed`.
        dropped: Frames that were never shown to the consumers.
        error: One line, where there was an error.
        counters: More numbers about the run; plain JSON values.
    """

    reason: EndReason = "finished"
    dropped: int = 0
    error: str | None = None
    counters: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, *, failed: bool) -> Outcome:
        """What is known when nobody says more."""
        return cls("failed" if failed else "finished")


class Consumer(Protocol):
    """Anything that frames and their patch sets are handed to, in order."""

    def consume(self, frame: Frame, patches: PatchSet) -> None:
        """Take one frame; `patches.index == frame.index`. Neither is changed.

        Raises:
            OutputError: The output cannot be written.
        """
        ...

    def close(self, *, failed: bool = False, outcome: Outcome | None = None) -> None:
        """Finish the output so that it is whole; harmless when called again.

        What was taken so far is kept, whether or not the run `failed`. An output that never got a frame leaves no file.
        """
        ...


@runtime_checkable
class Waits(Protocol):
    """A consumer that may have to wait for somebody else, such as the reader of a pipe.

    Attributes:
        stop: Set when the run is to end; waiting is given up then. `consume` raises `KeyboardInterrupt` in that case.
    """

    stop: threading.Event | None


def total_ms(latency_ms: Mapping[str, float]) -> float:
    """Milliseconds of one frame: its `total` where the clock's owner gave one, otherwise the sum of its stages."""
    return float(latency_ms["total"]) if "total" in latency_ms else float(sum(latency_ms.values()))


def redact_url(text: str) -> str:
    """The text with user names, passwords and secret parameters of URLs in it replaced by `***`."""
    return _URL.sub(lambda match: _SECRET.sub(r"\1***", _USER.sub(r"\1***@", match.group())), text)


def public_settings(settings: Settings) -> dict[str, Any]:
    """All settings as plain JSON values, without the secrets that addresses among them may hold."""
    return {
        section: {key: redact_url(value) if isinstance(value, str) else value for key, value in values.items()}
        for section, values in settings.model_dump(mode="json").items()
    }


def prepare_output(path: Path | str, force: bool = False, *, direct: bool = False) -> Path:
    """Check, before any work is done, that a file can be written at `path`; nothing is created yet.

    Missing folders are made when the first frame arrives (`make_parent`).

    Args:
        path: The final name.
        force: Replacing what is there is wanted.
        direct: Written line by line under its final name, so that pipes and devices will do too.

    Raises:
        OutputExists: The file, or what a killed run left under its partial name, is there and `force` is not set.
        OutputUnwritable: It is a folder, a device, or the folder that it would be in cannot be written to.
    """
    path = Path(path)
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
    """Where a file is written before it is whole: `out.partial.mp4` for `out.mp4`."""
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
    if exc.errno in _NO_ROOM:
        return DiskFull(f"{path}: {reason}", remedy="make room, or write somewhere else")
    return OutputUnwritable(f"{path}: {reason}", remedy="check the folder and its permissions")
