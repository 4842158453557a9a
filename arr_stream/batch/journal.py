"""The journal of a batch: one JSON line for each event, kept over all runs of the batch.

    {"type": "batch", "version": 1, "options": {...}, "options_sha256": ..., "versions": {"arr-stream": ..., ...}}
    {"type": "jobs", "jobs": [[source, name], ...]}          files that were not known before {"type": "run", "engine":
    "local", "jobs": 2, "files": 20, "to_do": 12} {"type": "attempt", "name": ..., "number": 1} {"type": "finished",
    "name": ..., "frames": ..., "seconds": ..., "digest": ..., "attempt": 1} {"type": "failed", "name": ..., "kind":
    ..., "message": ..., "attempt": 1, "again": true} {"type": "ended", "reason": "finished"}

Events carry their `time` in seconds since 1970. A line is on disk before its consequences begin. If a kill cut off the
last line, the next run removes it; nothing is lost, because each finished file has its `done.json`.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as replaced
from pathlib import Path
from typing import Any

from arr_stream.batch.job import Done, options_digest
from arr_stream.batch.layout import make_folder, sync_folder, write_whole
from arr_stream.errors import BatchBusy, BatchDiffers
from arr_stream.files import writing
from arr_stream.plain_text import redact_url

_PATIENCE_SECONDS = 5.0
_NAMES_A_LINE = 1000
_MARK = re.compile(r" #[0-9a-f]{4}$")
_AWAY = "choose another folder, or move it away and run again with --force, which keeps finished files"


@dataclass(frozen=True, slots=True)
class Past:
    """Content of a journal.

    Args:
        options: The options, as `public_options`; None if none are recorded yet.
        versions: Versions of the software at that time.
        names: Names by source, as `source_key` writes it.
        broken: Number of unreadable lines.
    """

    options: Mapping[str, Any] | None = None
    versions: Mapping[str, Any] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    broken: int = 0

    def alike(self) -> dict[str, set[str]]:
        """Return the names of sources that differ at most in their secrets, by their public part."""
        found: dict[str, set[str]] = {}
        for key, name in self.names.items():
            found.setdefault(_MARK.sub("", key), set()).add(name)
        return found


def source_key(source: str) -> str:
    """Return the key of a source in the journal: without secrets, but distinct from sources that differ only in those.

    The hash is short, so that it cannot confirm a guess at a password.
    """
    public = redact_url(source)
    if public == source:
        return source
    return f"{public} #{hashlib.sha256(source.encode('utf-8', 'surrogatepass')).hexdigest()[:4]}"


def read_past(path: Path, *, skip_broken: bool = False) -> Past:
    """Read a journal, empty if it is missing; broken lines are refused, or counted.

    Raises:
        BatchDiffers: It is not a journal, or of a later version.
    """
    past = Past()
    names: dict[str, str] = {}
    broken: list[int] = []
    for line in _whole_lines(path, broken if skip_broken else None):
        if line.get("type") == "batch":
            if line.get("version") != 1:
                raise BatchDiffers(
                    f"{path}: version {line.get('version')} of a journal, 1 is known", remedy="update arr-stream"
                )
            past = Past(_mapping(line, "options", path), _mapping(line, "versions", path), names)
        elif line.get("type") == "jobs":
            names.update(_named(line, path))
    if past.options is None and (names or broken or any(_whole_lines(path))):
        raise BatchDiffers(f"{path}: not the journal of a batch", remedy=_AWAY)
    return replaced(past, broken=len(broken))


def _mapping(line: Mapping[str, Any], key: str, path: Path) -> Mapping[str, Any]:
    found = line.get(key, {})
    if not isinstance(found, dict):
        raise BatchDiffers(f"{path}: {key} is a {type(found).__name__}, not an object", remedy=_AWAY)
    return found


def _named(line: Mapping[str, Any], path: Path) -> Iterator[tuple[str, str]]:
    """Yield sources and names; a name must be that of a single folder, since the batch replaces that folder."""
    pairs = line.get("jobs")
    for pair in pairs if isinstance(pairs, list) else [pairs]:
        if not (isinstance(pair, list) and len(pair) == 2 and all(isinstance(part, str) for part in pair)):
            raise BatchDiffers(f"{path}: {str(pair)[:80]!r} is no source with its name", remedy=_AWAY)
        source, name = pair
        if name in ("", ".", "..") or any(mark in name for mark in "/\\\0"):
            raise BatchDiffers(f"{path}: {name[:80]!r} is no name of a folder", remedy=_AWAY)
        yield source, name


def read_journal(path: Path) -> list[dict[str, Any]]:
    """Return every complete line, in order; empty without a journal.

    Raises:
        BatchDiffers: A line is no JSON object.
    """
    return list(_whole_lines(path))


def leave_out_broken(path: Path) -> None:
    """Rewrite a journal without its broken lines; call it with the folder locked.

    Raises:
        BatchDiffers: It cannot be read.
        DiskFull, OutputUnwritable: It cannot be written; it stays unchanged.
    """
    write_whole(path, "".join(json.dumps(line, ensure_ascii=True) + "\n" for line in _whole_lines(path, [])))


def _whole_lines(path: Path, broken: list[int] | None = None) -> Iterator[dict[str, Any]]:
    """Yield complete lines; the numbers of broken ones are appended to `broken`, or raise if that is None."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return
    except OSError as exc:
        raise BatchDiffers(f"{path}: {(exc.strerror or str(exc)).lower()}", remedy="choose another folder") from exc
    for number, line in enumerate(raw.split(b"\n")[:-1], start=1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as exc:
            record, why = None, f"not JSON: {exc}"
        else:
            why = "not a JSON object"
        if isinstance(record, dict):
            yield record
        elif broken is None:
            raise BatchDiffers(f"{path}, line {number}: {why}", remedy="--force leaves it out, and keeps what is done")
        else:
            broken.append(number)


class Journal:
    """Writer that appends to a journal, created if missing; a truncated last line is removed.

    Raises:
        DiskFull, OutputUnwritable: It cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with writing(path):
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_APPEND, 0o666)
            self._bytes = path.read_bytes().rfind(b"\n") + 1
            os.ftruncate(self._descriptor, self._bytes)
            sync_folder(path.parent)

    def begin(self, options: Mapping[str, Any], versions: Mapping[str, Any]) -> None:
        """Record the options, as `public_options`; earlier lines no longer count."""
        self.append("batch", version=1, options=options, options_sha256=options_digest(options), versions=versions)

    def add_jobs(self, names: Sequence[tuple[str, str]]) -> None:
        """Record sources, as `source_key` writes them, with their names."""
        for start in range(0, len(names), _NAMES_A_LINE):
            self.append("jobs", jobs=[list(pair) for pair in names[start : start + _NAMES_A_LINE]])

    def add_done(self, done: Done, **more: bool) -> None:
        """Record a finished file."""
        about = {"name": done.name, "frames": done.frames, "seconds": done.seconds, "digest": done.digest}
        self.append("finished", **about, attempt=done.attempt, **more)

    def append(self, kind: str, /, **values: Any) -> None:
        """Write a line and wait until it is on disk.

        Raises:
            DiskFull, OutputUnwritable: It cannot be written; the lines before stay complete.
        """
        stamp = {} if kind in ("batch", "jobs") else {"time": round(time.time(), 3)}
        # Escape non-ASCII, since file names may hold undecodable bytes.
        line = (json.dumps({"type": kind, **stamp, **values}, ensure_ascii=True) + "\n").encode()
        rest = memoryview(line)
        with writing(self.path):
            try:
                while rest:
                    rest = rest[os.write(self._descriptor, rest) :]
                os.fsync(self._descriptor)
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._descriptor, self._bytes)
                raise
        self._bytes += len(line)

    def close(self) -> None:
        """Close the file; safe to call again."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class FolderLock:
    """Lock that keeps a second batch out of a folder as long as this one or any of its workers lives.

    The lock belongs to the open file, which workers inherit: it ends with the last process that holds it.

    Raises:
        BatchBusy: Another batch holds it for longer than a killed batch needs to end.
        DiskFull, OutputUnwritable: The file cannot be created.
    """

    def __init__(self, path: Path) -> None:
        with writing(path):
            make_folder(path.parent)
            self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        deadline = time.monotonic() + _PATIENCE_SECONDS
        with writing(path):
            while not self._taken():
                if time.monotonic() > deadline:
                    os.close(self.descriptor)
                    remedy = "wait for it, or choose another folder"
                    raise BatchBusy(f"{path.parent}: another batch works in this folder", remedy=remedy)
                time.sleep(0.1)

    def _taken(self) -> bool:
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def __enter__(self) -> FolderLock:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.descriptor)
