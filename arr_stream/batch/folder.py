"""The output folder of a batch: its layout, its lock, its journal, and the atomic commit of a finished file.

    manifest.jsonl      the journal: one JSON line for each event, over all runs
    videos/NAME/        records.jsonl, annotated.mp4, report/, done.json
    errors/NAME.json    error of a failed file
    summary.json        result of the last run
    .lock               held by the running batch
    .work/              attempts in progress

`videos/NAME/` appears by a rename and holds `done.json`: a file is done if and only if that exists. The journal only
records what happened, and the options; a line is on disk before its consequences begin.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from arr_stream.batch.job import Attempt, Done
from arr_stream.errors import BatchBusy, BatchDiffers
from arr_stream.files import writing, written_whole
from arr_stream.records.line_file import LineFile

RECORDS, VIDEO, REPORT, DONE = "records.jsonl", "annotated.mp4", "report", "done.json"

_PATIENCE_SECONDS = 5.0
"""Time that the workers of a killed batch need to end."""


class Layout:
    """Paths of a batch, whose output folder is absolute."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest, self.summary = folder / "manifest.jsonl", folder / "summary.json"
        self.lock, self.work = folder / ".lock", folder / ".work"
        self.videos, self.errors = folder / "videos", folder / "errors"

    def video(self, name: str) -> Path:
        return self.videos / name

    def error(self, name: str) -> Path:
        return self.errors / f"{name}.json"


@contextlib.contextmanager
def folder_lock(path: Path) -> Iterator[int]:
    """Keep a second batch out of a folder as long as this one or any of its workers lives.

    Yields:
        The descriptor of the locked file. Workers inherit it: the lock ends with the last process that holds it.

    Raises:
        BatchBusy: Another batch holds it for longer than a killed batch needs to end.
        DiskFull, OutputUnwritable: The file cannot be created.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a")
    with file:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            with writing(path), contextlib.suppress(BlockingIOError, PermissionError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            if time.monotonic() > deadline:
                remedy = "wait for it, or choose another folder"
                raise BatchBusy(f"{path.parent}: another batch works in this folder", remedy=remedy)
            time.sleep(0.1)
        yield file.fileno()


def read_journal(path: Path) -> list[dict[str, Any]]:
    """Return the complete lines of a journal, in order; none without a journal.

    Raises:
        BatchDiffers: It cannot be read, or a line is no JSON object.
    """
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as exc:
        raise BatchDiffers(f"{path}: {(exc.strerror or str(exc)).lower()}", remedy="choose another folder") from exc
    lines = []
    for number, text in enumerate(raw.split(b"\n")[:-1], start=1):
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            line = None
        if not isinstance(line, dict):
            raise BatchDiffers(
                f"{path}, line {number}: not a JSON object",
                remedy="choose another folder, or move the file away and run again with --force: finished files stay",
            )
        lines.append(line)
    return lines


class Journal:
    """Writer that appends to a journal, created if missing; a last line that a kill cut off is removed.

    Raises:
        DiskFull, OutputUnwritable: It cannot be written.
    """

    def __init__(self, path: Path) -> None:
        with writing(path):
            if path.exists():
                os.truncate(path, path.read_bytes().rfind(b"\n") + 1)
        self._file = LineFile(path, "ab")

    def append(self, kind: str, /, **values: Any) -> None:
        """Write a line and wait until it is on disk.

        Raises:
            DiskFull, OutputUnwritable: It cannot be written; the lines before stay complete.
        """
        # Escape non-ASCII, since file names may hold undecodable bytes.
        self._file.write((json.dumps({"type": kind, "time": round(time.time(), 3), **values}) + "\n").encode())
        self._file.sync()

    def close(self) -> None:
        """Close the file; safe to call again."""
        self._file.close()


class Workspace:
    """Folder of one attempt, from which its outputs are moved to their final place.

    Raises:
        DiskFull, OutputUnwritable: The folder cannot be created.
    """

    def __init__(self, layout: Layout, attempt: Attempt) -> None:
        self._place = layout.video(attempt.job.name)
        self._source = attempt.job.source
        # The numbers of the attempt and of this process keep attempts apart.
        self.folder = layout.work / f"{attempt.job.name}-{attempt.number}-{os.getpid()}"
        self.video = self.folder / "video"
        with writing(self.folder):
            self.discard()
            self.video.mkdir(parents=True)

    def outputs(self) -> tuple[str, ...]:
        """Return the final paths of the written files, relative to the output folder."""
        files = sorted(path.relative_to(self.video) for path in self.video.rglob("*") if path.is_file())
        return tuple(f"videos/{self._place.name}/{path.as_posix()}" for path in files)

    def commit(self, done: Done) -> Done:
        """Move the outputs to their final place; a kill in the middle leaves the file undone and harms nothing else.

        Returns:
            The committed result: `done`, or that of another attempt on the same source with the same options, which
                stays unchanged.

        Raises:
            DiskFull, OutputUnwritable: They could not be moved.
        """
        place = self._place
        earlier = Done.read(place / DONE)
        if earlier is not None and earlier.fits(self._source, done.options, done.identity):
            self.discard()
            return earlier
        with writing(place):
            (self.video / DONE).write_text(json.dumps(asdict(done), indent=1) + "\n")
            for path in (self.video, *self.video.rglob("*")):
                _flush(path)
            # From here on the file is not done, even if it was before.
            (place / DONE).unlink(missing_ok=True)
            if os.path.lexists(place):
                os.replace(place, self.folder / "before")  # noqa: PTH105
            place.parent.mkdir(exist_ok=True)
            os.replace(self.video, place)  # noqa: PTH105
            _flush(place.parent)
        self.discard()
        return done

    def discard(self) -> None:
        """Delete the files of the attempt."""
        shutil.rmtree(self.folder, ignore_errors=True)


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write a file that is complete or unchanged.

    Raises:
        DiskFull, OutputUnwritable: It cannot be written.
    """
    with written_whole(path, force=True) as partial:
        partial.write_text(json.dumps(values, indent=1) + "\n")


def _flush(path: Path) -> None:
    """Make a file, or the names in a folder, survive a power loss; some systems cannot do so for a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError) if path.is_dir() else contextlib.nullcontext():
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
