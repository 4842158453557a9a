"""The actor of the Ray engine: it does files, one at a time, and reports progress on request.

All results are values, never exceptions, since Ray would wrap those and lose their class.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from arr_stream import __version__
from arr_stream.batch.engine import Answer, Loaded
from arr_stream.batch.job import Attempt, JobOptions, JobProgress
from arr_stream.errors import BackendUnavailable, OutputUnwritable, WorkerLost
from arr_stream.files import writing
from arr_stream.plain_text import redact_url
from arr_stream.processes import POOLS, Refused

if TYPE_CHECKING:
    from arr_stream.batch.runner import JobRunner


@dataclass(frozen=True, slots=True)
class Sign:
    """File with a random text, which proves access to the shared output folder."""

    path: Path
    text: str

    @classmethod
    def left_in(cls, folder: Path) -> Sign:
        """Create a new sign.

        Raises:
            DiskFull, OutputUnwritable: It cannot be written.
        """
        sign = cls(folder / f"ray-{secrets.token_hex(8)}", secrets.token_hex(16))
        with writing(sign.path):
            folder.mkdir(parents=True, exist_ok=True)
            sign.path.write_text(sign.text)
        return sign

    def take_away(self) -> None:
        """Delete the sign, so that no attempt can commit any more."""
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)
        shutil.rmtree(self.marks, ignore_errors=True)

    @property
    def marks(self) -> Path:
        """Folder of revoked attempts."""
        return self.path.with_name(f"revoked-{self.path.name}")

    def revoked(self, attempt: Attempt) -> Path:
        """Return the path of the file that marks an attempt as given up."""
        return self.marks / f"{attempt.job.name}-{attempt.number}"

    def revoke(self, attempt: Attempt) -> None:
        """Revoke an attempt, so that it can commit nothing even if its actor still runs.

        Raises:
            DiskFull, OutputUnwritable: The mark cannot be written.
        """
        mark = self.revoked(attempt)
        with writing(mark):
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()

    def check(self, folder: Path) -> None:
        """Check that this node sees the sign and can write into the folder.

        Raises:
            OutputUnwritable: It does not, or cannot.
        """
        seen = False
        with contextlib.suppress(OSError):
            seen = self.path.read_text() == self.text
        if not seen:
            raise OutputUnwritable(
                f"{folder}: on {socket.gethostname()} this is not the folder that the batch was started with",
                remedy="write into a folder that all nodes share under the same path",
            )
        if not os.access(folder, os.W_OK | os.X_OK):
            raise OutputUnwritable(
                f"{folder}: cannot be written to on {socket.gethostname()}", remedy="check its permissions there"
            )


class RayWorker:
    """Worker that does files; the class of the Ray actor.

    Args:
        options: Options for every file.
        threads: Threads for the pools of the libraries.
        sign: Proves that the output folder is the same here.
        version: Version of arr-stream that started the batch.
    """

    def __init__(self, options: JobOptions, threads: int, sign: Sign, version: str) -> None:
        self._options = options
        self._threads = threads
        self._sign = sign
        self._version = version
        self._runner: JobRunner | None = None
        self._progress: JobProgress | None = None

    def load(self) -> Loaded | Refused:
        """Load the models; return the reason if this node can do no file."""
        try:
            if self._version != __version__:
                here, there = f"{__version__} on {socket.gethostname()}", f"{self._version} where the batch was started"
                remedy = "install the same version on all nodes"
                raise BackendUnavailable(f"arr-stream {here}, and {there}", remedy=remedy)
            self._sign.check(Path(self._options.folder))
            # The libraries read these variables when they are imported.
            os.environ.update(dict.fromkeys(POOLS, str(self._threads)))
            from arr_stream.batch.runner import JobRunner
            from arr_stream.threads import limit_threads

            limit_threads(self._threads)
            self._runner = JobRunner(self._options, threads=self._threads, before_commit=self._may_commit)
        except Exception as exc:
            return Refused.of(exc)
        return Loaded(os.getpid(), socket.gethostname())

    def run(self, attempt: Attempt) -> Answer:
        """Process a file."""
        assert self._runner is not None
        self._progress = None
        return self._runner.run(attempt, self._hear)

    def progress(self) -> JobProgress | None:
        """Return the progress of the current file, while `run` runs; None before the first report."""
        return self._progress

    def _hear(self, progress: JobProgress) -> None:
        self._progress = progress

    def _may_commit(self, attempt: Attempt) -> None:
        """Check that the attempt may still commit.

        Raises:
            OutputUnwritable: The batch has ended, or the folder is gone.
            WorkerLost: The attempt was given up, and another may be running.
        """
        self._sign.check(Path(self._options.folder))
        mark = self._sign.revoked(attempt)
        # Listing the folder makes a network disk refresh its cache.
        if mark.parent.is_dir() and mark in mark.parent.iterdir():
            raise WorkerLost(
                f"{redact_url(attempt.job.source)}: attempt {attempt.number} was given up meanwhile",
                remedy="another attempt follows, where any is left",
            )
