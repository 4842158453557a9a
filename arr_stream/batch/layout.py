"""Layout of a batch's output folder, and the atomic commit of a finished file.

    manifest.jsonl      the journal
    videos/NAME/        records.jsonl, annotated.mp4, report/, done.json
    errors/NAME.json    error of a failed file
    summary.json        result of the last run
    .lock               held by the running batch
    .work/              attempts in progress

`videos/NAME/` appears by a rename, after everything else of that file, and holds `done.json`: a file is done if and
only if that exists.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from arr_stream.batch import remote
from arr_stream.batch.job import Attempt, Done, Job
from arr_stream.files import writing

RECORDS, VIDEO, REPORT, DONE = "records.jsonl", "annotated.mp4", "report", "done.json"


class Layout:
    """Paths of a batch, whose output folder is absolute."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest, self.summary = folder / "manifest.jsonl", folder / "summary.json"
        self.lock, self.work, self.videos = folder / ".lock", folder / ".work", folder / "videos"

    def video(self, name: str) -> Path:
        return self.videos / name

    def done(self, name: str) -> Path:
        return self.video(name) / DONE

    def error(self, name: str) -> Path:
        return self.folder / "errors" / f"{name}.json"

    def own(self) -> tuple[Path, ...]:
        """Return everything that a batch creates in its folder, except the lock."""
        return self.manifest, self.summary, self.work, self.videos, self.folder / "errors"


def identity(source: str, storage: Mapping[str, Any]) -> dict[str, Any]:
    """Return values that change with a source: size and modification time, or a hash over a folder of pictures.

    Raises:
        OSError: A local source is missing or cannot be read.
        ArrStreamError: A remote one is missing.
    """
    if "://" in source:
        return remote.identity(source, storage)
    path = Path(source)
    status = path.stat()
    if not path.is_dir():
        return {"bytes": status.st_size, "mtime_ns": status.st_mtime_ns}
    hashed = hashlib.sha256()
    for entry in sorted(path.iterdir()):
        if entry.is_file():
            status = entry.stat()
            hashed.update(f"{os.fsencode(entry.name)!r} {status.st_size} {status.st_mtime_ns}\n".encode())
    return {"files_sha256": hashed.hexdigest()}


class Workspace:
    """Folder of one attempt, from which its outputs are moved to their final places.

    Raises:
        DiskFull, OutputUnwritable: The folder cannot be created.
    """

    def __init__(self, layout: Layout, attempt: Attempt) -> None:
        self._layout = layout
        self._job: Job = attempt.job
        # The numbers of the attempt and of this process keep attempts apart.
        self.folder = layout.work / f"{attempt.job.name}-{attempt.number}-{os.getpid()}"
        self.video = self.folder / "video"
        with writing(self.folder):
            self.discard()
            self.video.mkdir(parents=True)

    def outputs(self) -> tuple[str, ...]:
        """Return the final paths of the written files, relative to the output folder."""
        name = self._job.name
        files = sorted(path.relative_to(self.video) for path in self.video.rglob("*") if path.is_file())
        own = [self._layout.video(name) / path for path in files if path.name != DONE]
        return tuple(path.relative_to(self._layout.folder).as_posix() for path in own)

    def commit(self, done: Done) -> Done:
        """Move the outputs to their final places; a kill in the middle leaves the file undone and harms nothing else.

        Returns:
            The committed result: `done`, or that of another attempt on the same source with the same options, which
                stays unchanged.

        Raises:
            DiskFull, OutputUnwritable: They could not be moved.
        """
        place = self._layout.video(self._job.name)
        standing = Done.read(place / DONE)
        if standing is not None and standing.fits(self._job.source, done.options, done.identity):
            self.discard()
            return standing
        with writing(place):
            (self.video / DONE).write_text(json.dumps(asdict(done), ensure_ascii=True, indent=1) + "\n")
            _sync_tree(self.folder)
            # From here on the file is not done, even if it was before: its parts will be of two attempts.
            (place / DONE).unlink(missing_ok=True)
            sync_folder(place)
            if os.path.lexists(place):
                os.replace(place, self.folder / "before")  # noqa: PTH105
            make_folder(place.parent)
            os.replace(self.video, place)  # noqa: PTH105
            sync_folder(place.parent)
        self.discard()
        return done

    def discard(self) -> None:
        """Delete the files of the attempt."""
        shutil.rmtree(self.folder, ignore_errors=True)


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write JSON with `write_whole`."""
    write_whole(path, json.dumps(values, indent=1, ensure_ascii=True) + "\n")


def write_whole(path: Path, text: str) -> None:
    """Write a file atomically: it is complete and on disk, or unchanged.

    Raises:
        DiskFull, OutputUnwritable: It cannot be written.
    """
    partial = path.with_name(f".{path.name}.partial")
    with writing(path):
        make_folder(path.parent)
        try:
            partial.write_text(text, encoding="utf-8")
            _sync(partial)
            partial.replace(path)
            sync_folder(path.parent)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise


def make_folder(folder: Path) -> None:
    """Create a folder and its parents, so that they survive a power loss.

    Raises:
        OSError: It cannot be created.
    """
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Make names in a folder survive a power loss, if the system supports that."""
    with contextlib.suppress(OSError):
        _sync(folder)


def _sync_tree(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_dir():
            sync_folder(path)
        else:
            _sync(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
