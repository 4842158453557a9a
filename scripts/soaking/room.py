"""A small file system for clips, so that a full disk is a real one."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

_MEGABYTES = 6
_BALLAST = "ballast"


class SmallRoom:
    """A mounted tmpfs.

    Args:
        folder: Where it is mounted.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fill(self) -> None:
        """Leave no byte."""
        with contextlib.suppress(OSError), (self.folder / _BALLAST).open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))

    def empty(self) -> None:
        """Give the room back."""
        (self.folder / _BALLAST).unlink(missing_ok=True)


@contextlib.contextmanager
def small_room(folder: Path) -> Iterator[SmallRoom | None]:
    """A tmpfs at a folder until the end of the block; None where this user may not mount."""
    folder.mkdir(exist_ok=True)
    if not hasattr(os, "geteuid") or os.geteuid() != 0 or not _mounted(folder):
        yield None
        return
    try:
        yield SmallRoom(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=False, capture_output=True)


def _mounted(folder: Path) -> bool:
    command = ["mount", "-t", "tmpfs", "-o", f"size={_MEGABYTES}m", "arr-stream-soak", str(folder)]
    try:
        return subprocess.run(command, check=False, capture_output=True).returncode == 0
    except OSError:
        return False
