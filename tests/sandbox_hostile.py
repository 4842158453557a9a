"""A decoding process that has been taken over: after two frames it does what its file says.

Run in place of `arr_stream.sources.sandbox.child`, and closed in exactly as that is. Its file holds an action and what
that is about: `read /etc/passwd`.
"""

from __future__ import annotations

import ctypes
import encodings.idna  # noqa: F401 - for names of hosts: it could not be imported later
import fcntl
import mmap
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np

from arr_stream.sources.base import Job, OnePass, SourceInfo
from arr_stream.sources.sandbox.child import Link, main
from arr_stream.types import Frame

FRAMES_BEFORE = 2
SIZE_WH = (16, 8)


class Hostile(OnePass):
    def __init__(self, job: Job, link: Link, _: int) -> None:
        super().__init__()
        text = os.pread(link.descriptor(0), 10_000, 0).decode()
        self._action, _, self._argument = text.partition(" ")
        self._link = link
        self.info = SourceInfo(job.name, "file", SIZE_WH, "none", average_fps=30.0)
        if self._action.startswith("opening-"):
            ACTIONS[self._action.removeprefix("opening-")](link, self._argument)

    def frames(self) -> Iterator[Frame]:
        for index in range(FRAMES_BEFORE):
            self.stats.frames += 1
            yield Frame(index, index / 30, np.full((SIZE_WH[1], SIZE_WH[0], 3), index + 1, np.uint8))
        ACTIONS[self._action](self._link, self._argument)


def frame_message(**changes: Any) -> dict[str, Any]:
    """What the third frame would be announced with."""
    honest = {
        "slot": 0,
        "index": FRAMES_BEFORE,
        "pts_seconds": 1.0,
        "size_wh": SIZE_WH,
        "counters": [0] * 10,
    }
    return {**honest, **changes}


def _lie(**changes: Any) -> Callable[[Link, str], None]:
    def act(link: Link, _: str) -> None:
        # Frame 0 was taken and its slot is known to both, but this one never went through `deliver`.
        link.say("frame", **frame_message(**changes))
        time.sleep(60)

    return act


def _say(kind: str, **values: Any) -> Callable[[Link, str], None]:
    def act(link: Link, _: str) -> None:
        link.say(kind, **values)
        time.sleep(60)

    return act


def _connect(_: Link, port: str) -> None:
    with socket.create_connection(("127.0.0.1", int(port)), timeout=5):
        pass


def _write(_: Link, path: str) -> None:
    Path(path).write_text("written")


def _spin(_: Link, __: str) -> None:
    while True:
        pass


def _fork(_: Link, path: str) -> None:
    if os.fork() == 0:
        os._exit(0)


def _run_code(_: Link, __: str) -> None:
    mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)


def _thread(_: Link, __: str) -> None:
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()


def _raw(_: Link, __: str) -> None:
    os.write(int(sys.argv[1]), b"\xff\xff\xff\xff")
    time.sleep(60)


def _shrink(link: Link, _: str) -> None:
    """Pull the memory from under the parent: it would die of SIGBUS on reading the next frame."""
    for descriptor in range(3, 64):
        try:
            os.ftruncate(descriptor, 0)
        except OSError:
            continue


def _read_memory(_: Link, __: str) -> None:
    libc = ctypes.CDLL(None)
    buffer = ctypes.create_string_buffer(8)
    vector = (ctypes.c_void_p * 2)(ctypes.addressof(buffer), 8)
    libc.process_vm_readv(os.getppid(), vector, 1, vector, 1, 0)


ACTIONS: dict[str, Callable[[Link, str], Any]] = {
    "read": lambda _, path: Path(path).read_bytes(),
    "list": lambda _, path: os.listdir(path),  # noqa: PTH208
    "write": _write,
    "connect": _connect,
    "fork": _fork,
    "exec": lambda _, path: os.execv(path, [path]),
    "own-a-signal": lambda *_: fcntl.fcntl(0, fcntl.F_SETOWN, os.getppid()),
    "signal-parent": lambda *_: os.kill(os.getppid(), signal.SIGTERM),
    "read-memory": _read_memory,
    "run-code": _run_code,
    "shrink": _shrink,
    "allocate": lambda *_: bytearray(8 << 30),
    "spin": _spin,
    "sleep": lambda *_: time.sleep(60),
    "segv": lambda *_: ctypes.string_at(0),
    "abort": lambda *_: os.abort(),
    "exit": lambda *_: os._exit(3),
    "raise": lambda *_: {}["missing"],
    "thread": _thread,
    "colour": _say(
        "error",
        error="SourceDamaged",
        message="a: \x1b[31mred\nand a new line",
        remedy="\x07bell",
        counters=[0] * 10,
    ),
    "raw": _raw,
    "too-large": _lie(size_wh=(10_000, 10_000)),
    "beyond-slot": _lie(size_wh=(64, 64)),
    "no-slot": _lie(slot=7),
    "odd-slot": _lie(slot="0"),
    "out-of-order": _lie(index=7),
    "backwards": _lie(pts_seconds=-1.0),
    "not-a-time": _lie(pts_seconds=float("nan")),
    "no-counters": _lie(counters=["1"] * 10),
    "other-file": _say("want", numbers=[1]),
    "no-file": _say("want", numbers=[-1]),
    "unknown-kind": _say("run", code="print(1)"),
    "unknown-error": _say("error", error="KeyboardInterrupt", message="", remedy=None, counters=[0] * 10),
    "own-module": _say("error", error="annotations", message="", remedy=None, counters=[0] * 10),
    "long": _say("failed", why="raised", text="x" * 100_000, counters=astuple(OnePass().stats)),
}


if __name__ == "__main__":
    main(Hostile)
