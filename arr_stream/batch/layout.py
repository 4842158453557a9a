"""Where a batch keeps what in its output folder, and how a finished file gets there whole or not at all.

    manifest.jsonl                     the journal
    videos/NAME/                       records.jsonl, annotated.mp4, report/, done.json
    frames/video=NAME/frames.parquet   with `--format parquet`
    cells/video=NAME/cells.parquet
    errors/NAME.json                   why a file failed
    summary.json                       how the last run went
    .lock                              held by whoever works there
    .work/                             what is under way

`videos/NAME/` appears by a rename, after everything else of that file, and holds `done.json`: a file is done if and
only if that is there.
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
from arr_stream.records.partitions import hive_folder

RECORDS, VIDEO, REPORT, DONE = "records.jsonl", "annotated.mp4", "report", "done.json"
PARQUET = ("frames", "cells")


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

    def parquet(self, kind: str, name: str) -> Path:
        return self.folder / kind / hive_folder(name) / f"{kind}.parquet"

    def own(self) -> tuple[Path, ...]:
        """Everything that a batch makes in its folder, but for the lock."""
        folders = (self.work, self.videos, self.folder / "errors", *(self.folder / kind for kind in PARQUET))
        return self.manifest, self.summary, *folders

    def remove(self, name: str) -> None:
        """Take away everything of one file, its sign of being done first."""
        self.done(name).unlink(missing_ok=True)
        for place in (self.video(name), *(self.parquet(kind, name).parent for kind in PARQUET)):
            shutil.rmtree(place, ignore_errors=True)
        self.error(name).unlink(missing_ok=True)


def identity(source: str, storage: Mapping[str, Any]) -> dict[str, Any]:
    """What changes when a source does: size and time of change of a file, names and those of a folder of pictures.

    Raises:
        OSError: A local source is not there or cannot be read.
        ArrStreamError: A remote one is not there.
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
    """Where one attempt writes, and from where its outputs go to their places.

    Raises:
        DiskFull, OutputUnwritable: The folder cannot be made.
    """

    def __init__(self, layout: Layout, attempt: Attempt) -> None:
        self._layout = layout
        self._job: Job = attempt.job
        # The numbers of the attempt and of this process keep attempts apart.
        self.folder = layout.work / f"{attempt.job.name}-{attempt.number}-{os.getpid()}"
        self.video, self.parquet = self.folder / "video", self.folder / "parquet"
        with writing(self.folder):
            self.discard()
            self.video.mkdir(parents=True)
            self.parquet.mkdir()

    def outputs(self) -> tuple[str, ...]:
        """What was written, as paths that it will have, relative to the output folder."""
        name = self._job.name
        files = sorted(path.relative_to(self.video) for path in self.video.rglob("*") if path.is_file())
        own = [(self._layout.video(name) / path) for path in files if path.name != DONE]
        tables = [self._layout.parquet(kind, name) for kind in PARQUET if (self.parquet / f"{kind}.parquet").exists()]
        return tuple(path.relative_to(self._layout.folder).as_posix() for path in (*own, *tables))

    def commit(self, done: Done) -> Done:
        """Bring the outputs to their places; killed in the middle, the file is not done, and nothing else is harmed.

        Returns:
            What is there now: `done`, or what another attempt did of the same source with the same options, which stays
            as it is.

        Raises:
            DiskFull, OutputUnwritable: They could not be brought there.
        """
        name, place = self._job.name, self._layout.video(self._job.name)
        standing = Done.read(place / DONE)
        if standing is not None and standing.fits(self._job.source, done.options, done.identity):
            self.discard()
            return standing
        with writing(place):
            (self.video / DONE).write_text(json.dumps(asdict(done), ensure_ascii=True, indent=1) + "\n")
            _sync_tree(self.folder)
            # Not done from here on, should it have been done before: its parts are going to be of two attempts.
            (place / DONE).unlink(missing_ok=True)
            sync_folder(place)
            for kind in PARQUET:
                self._place_table(kind, name)
            if os.path.lexists(place):
                os.replace(place, self.folder / "before")  # noqa: PTH105
            make_folder(place.parent)
            os.replace(self.video, place)  # noqa: PTH105
            sync_folder(place.parent)
        self.discard()
        return done

    def _place_table(self, kind: str, name: str) -> None:
        made, place = self.parquet / f"{kind}.parquet", self._layout.parquet(kind, name)
        if made.exists():
            make_folder(place.parent)
            made.replace(place)
        else:
            place.unlink(missing_ok=True)
        sync_folder(place.parent)

    def discard(self) -> None:
        """Take away whatever is left of the attempt."""
        shutil.rmtree(self.folder, ignore_errors=True)


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """`write_whole` for values of JSON."""
    write_whole(path, json.dumps(values, indent=1, ensure_ascii=True) + "\n")


def write_whole(path: Path, text: str) -> None:
    """Write a file that is either whole, and on the disk, or as it was before.

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
    """Make a folder and those that it lies in, so that they survive a loss of power.

    Raises:
        OSError: It cannot be made.
    """
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Let names in a folder survive a loss of power, where the system can be asked for that."""
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
