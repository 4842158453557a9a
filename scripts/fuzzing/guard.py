"""Guard of a process that reads untrusted input: files, connections and processes are watched.

Python's audit events tell of everything that Python code opens. C libraries open files behind its back; so files that
hostile media refer to exist, are watched by the kernel (inotify), and their addresses lead to a port that listens.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

CANARIES = ("canary.mp4", "canary.png", "canary.ts", "canary.srt")
"""Files beside the input, and in the working folder, that must never be opened."""
PORT = b"00000"
"""Stands in inputs for the five digits of the port that must never be called."""

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_PATH_EVENTS = {
    *("os.mkdir", "os.remove", "os.rmdir", "os.truncate", "os.chmod", "os.chown", "os.utime", "os.mkfifo"),
    *("os.setxattr", "shutil.rmtree", "tempfile.mkstemp", "tempfile.mkdtemp"),
}
_TWO_PATH_EVENTS = {"os.rename", "os.link", "os.symlink", "shutil.copyfile", "shutil.move"}
_NEVER = {
    *("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.bind", "socket.sendto"),
    *("subprocess.Popen", "os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.kill"),
    *("urllib.Request", "webbrowser.open", "ftplib.connect", "http.client.connect"),
}
_IN_OPEN, _IN_NONBLOCK = 0x20, 0x800


class Forbidden(PermissionError):
    """Raised in place of what would have been done."""


class Guard:
    """Watches one process.

    Args:
        scratch: The only folder in which files may be written.
        more: Further audit events that are forbidden, such as `pickle.find_class`.
    """

    def __init__(self, scratch: Path, more: Sequence[str] = ()) -> None:
        self.armed = False
        self._scratch = os.path.realpath(scratch)
        self._never = _NEVER | set(more)
        self._seen: list[str] = []
        self._canaries = _Canaries(scratch)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self.port = b"%05d" % self._listener.getsockname()[1]
        sys.addaudithook(self._heard)

    def seen(self) -> list[str]:
        """Return the forbidden actions since the last call, one short text each."""
        found, self._seen = self._seen, []
        found += [f"opened {name}, which the input refers to" for name in self._canaries.opened()]
        try:
            self._listener.accept()[0].close()
            found.append("connected to an address in the input")
        except BlockingIOError:
            pass
        return found

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.armed:
            return
        if event == "open":
            path, _, flags = arguments
            if not isinstance(path, int) and isinstance(flags, int) and flags & _WRITING and not self._own(path):
                self._refuse(f"opened {_shown(path)} for writing")
        elif event in _PATH_EVENTS or event in _TWO_PATH_EVENTS:
            paths = arguments[: 2 if event in _TWO_PATH_EVENTS else 1]
            if not all(isinstance(path, int) or self._own(path) for path in paths):
                self._refuse(f"{event} {' '.join(map(_shown, paths))}")
        elif event in self._never:
            self._refuse(f"{event} {_shown(arguments)}")

    def _refuse(self, what: str) -> None:
        self._seen.append(what)
        raise Forbidden(f"fuzzing: {what}")

    def _own(self, path: Any) -> bool:
        """Return whether a path lies inside the scratch folder, links followed, or is `/dev/null`."""
        self.armed = False
        try:
            real = os.path.realpath(os.fsdecode(path))
        except (TypeError, ValueError, OSError):
            return False
        finally:
            self.armed = True
        return real == "/dev/null" or real.startswith(self._scratch + "/")


class _Canaries:
    """Files that must not be opened, watched by the kernel."""

    def __init__(self, scratch: Path) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = libc.inotify_init1(_IN_NONBLOCK)
        self._names: dict[int, str] = {}
        for name in CANARIES:
            for path in (scratch / name, scratch / "elsewhere" / name):
                watch = libc.inotify_add_watch(self._descriptor, os.fsencode(path), _IN_OPEN)
                if watch < 0:
                    raise OSError(ctypes.get_errno(), f"cannot watch {path}")
                self._names[watch] = name

    def opened(self) -> list[str]:
        try:
            events = os.read(self._descriptor, 1 << 16)
        except BlockingIOError:
            return []
        found, at = [], 0
        while at < len(events):
            watch, _, _, length = struct.unpack_from("iIII", events, at)
            found.append(self._names.get(watch, "a canary"))
            at += 16 + length
        return sorted(set(found))


def _shown(value: Any) -> str:
    return ascii(value)[:100]
