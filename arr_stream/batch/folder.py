"""The output folder of a batch: its layout, its lock, and the atomic commit of a finished file.

    options.json        the options that affect the output
    videos/NAME/        records.jsonl, annotated.mp4, report/, done.json
    errors/NAME.json    error of a failed file
    summary.json        result of the last run
    .lock               held by the running batch
    .work/              attempts in progress

`videos/NAME/` appears by a rename and holds `done.json`: a file is done if and only if that exists.
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
from arr_stream.errors import BatchBusy
from arr_stream.files import writing, written_whole

RECORDS, VIDEO, REPORT, DONE = "records.jsonl", "annotated.mp4", "report", "done.json"

_PATIENCE_SECONDS = 5.0
"""Time that the workers of a killed batch need to end."""


class Layout:
    """Paths of a batch, whose output folder is absolute."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.options, self.summary = folder / "options.json", folder / "summary.json"
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
