"""The decoding process: reads one source for its parent, with nothing but the source's own files.

    python -m arr_stream.sources.sandbox.child SOCKET

First message from the parent: the job. The process limits itself, imports what it will need, closes itself in (see
`lockdown`) and says that it is ready. Files are handed to it open, one after the other as it asks for them; frames go
into memory that the parent has made. It ends when its parent does. What it may say stands in `messages`.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import io
import mmap
import os
import pkgutil
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, astuple
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from arr_stream.errors import ArrStreamError, SandboxViolated
from arr_stream.sources.base import Job, Source, SourceStats, Span
from arr_stream.sources.sandbox.lockdown import forbidden, limit_resources, lock_down
from arr_stream.sources.sandbox.messages import Info, close_all, receive_with_files, send
from arr_stream.types import Frame

if TYPE_CHECKING:
    from pathlib import Path

    from av.video.frame import VideoFrame

_NICE = 2
_FILES_AHEAD = 8
_LONGEST_TEXT = 4000
_ALIVE_EVERY_SECONDS = 0.5
_OUT_OF_MEMORY = "cannot allocate memory"

# What PyAV, Pillow and Python import where they first need it, and not when they are imported themselves.
_TEXT_CODECS = ("ascii", "latin-1", "utf-8", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "unicode-escape")
_PLUGINS = ("Bmp", "Gif", "Jpeg", "Mpo", "Png", "Ppm", "Tiff", "WebP")
_PILLOW = (*(f"{name}ImagePlugin" for name in _PLUGINS), "ImageCms", "ImageColor", "ImageFilter", "ImagePalette")


class Link:
    """The way to the parent. Everything is sent by one thread; another one receives.

    The slots are shared memory for frames. Of so many files, every how many-th (`stride`) is likely to be wanted.
    """

    def __init__(self, end: socket.socket, slots: Sequence[int], files: int, stride: int) -> None:
        self._end, self._files, self._stride = end, files, stride
        self._free: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._handed: queue.SimpleQueue[tuple[int, int, int]] = queue.SimpleQueue()
        self._open: dict[int, tuple[int, int]] = {}
        self._asked: set[int] = set()
        self._slots = [np.frombuffer(mmap.mmap(descriptor, 0), np.uint8) for descriptor in slots]
        self._said_seconds = 0.0
        for slot in range(len(slots)):
            self._free.put(slot)
        threading.Thread(target=self._listen, name="sandbox-listener", daemon=True).start()

    def say(self, kind: str, **values: Any) -> None:
        self._said_seconds = time.monotonic()
        send(self._end, {"kind": kind, **values})

    def alive(self) -> None:
        """Tell the parent now and then that something goes on."""
        if time.monotonic() - self._said_seconds > _ALIVE_EVERY_SECONDS:
            self.say("alive")

    def descriptor(self, number: int) -> int:
        """The open file of that number; those before it are closed, and those after it asked for in good time.

        Raises:
            OSError: The parent cannot open it.
        """
        for before in [each for each in self._open if each < number]:
            self._close(before)
        ahead = range(number, min(self._files, number + _FILES_AHEAD * self._stride), self._stride)
        new = [each for each in ahead if each not in self._asked]
        if number not in self._asked or len(new) >= _FILES_AHEAD // 2:
            self._asked.update(new)
            self.say("want", numbers=new)
        while number not in self._open:
            which, descriptor, problem = self._handed.get()
            self._open[which] = descriptor, problem
        descriptor, problem = self._open[number]
        if problem:
            raise OSError(problem, os.strerror(problem))
        return descriptor

    def deliver(self, frame: Frame, counters: Sequence[int]) -> None:
        """Lay a frame into a free slot, once there is one, and say so."""
        slot = self._free.get()
        self._slots[slot][: frame.rgb.nbytes] = frame.rgb.reshape(-1)
        self.say(
            "frame",
            slot=slot,
            index=frame.index,
            pts_seconds=frame.pts_seconds,
            size_wh=frame.size_wh,
            counters=counters,
        )

    def _close(self, number: int) -> None:
        descriptor, problem = self._open.pop(number)
        self._asked.discard(number)
        if not problem:
            os.close(descriptor)

    def _listen(self) -> None:
        """Pass on what the parent sends; end the process, whatever it is doing, once the parent is gone."""
        with contextlib.suppress(EOFError, OSError):
            while True:
                message, descriptors = receive_with_files(self._end)
                if message["kind"] == "free":
                    self._free.put(message["slot"])
                else:
                    left = iter(descriptors)
                    for number, problem in message["files"]:
                        self._handed.put((number, -1 if problem else next(left), problem))
        os._exit(0)


class HandedFile(io.RawIOBase):
    """One of the source's files. Stands where the readers expect a path, to be opened, and a picture, to be read.

    Its name is what its path is, for messages; nothing is opened by it.
    """

    def __init__(self, link: Link, number: int, name: str) -> None:
        self._link, self._number, self._name = link, number, name
        self._at = 0
        self._size: int | None = None

    @property
    def suffix(self) -> str:
        return PurePath(self._name).suffix

    def __str__(self) -> str:
        return self._name

    def open(self, _mode: str) -> io.BufferedReader:
        """The same file from its beginning, with a position of its own."""
        self._descriptor()
        return io.BufferedReader(HandedFile(self._link, self._number, self._name), 1 << 16)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_END and self._size is None:
            self._size = os.lseek(self._descriptor(), 0, os.SEEK_END)
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size or 0}[whence]
        if start + offset < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        self._at = start + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        read = os.preadv(self._descriptor(), [buffer], self._at)
        self._at += read
        return read

    def _descriptor(self) -> int:
        try:
            return self._link.descriptor(self._number)
        except OSError as exc:
            raise OSError(exc.errno, exc.strerror, self._name) from exc


OpenJob = Callable[[Job, Link, int], Source]
"""Opens what a job names, but for containers with more streams than so many."""


def prepare(*, pictures: bool) -> None:
    """Import everything that reading may need: nothing can be imported once the process is closed in."""
    for codec in _TEXT_CODECS:
        "".encode(codec)
    if pictures:
        import arr_stream.sources.images

        for name in _PILLOW:
            with contextlib.suppress(ImportError):
                importlib.import_module(f"PIL.{name}")
        return
    import av
    import cv2

    import arr_stream.sources.ffmpeg  # noqa: F401

    # OpenCV turns pictures upright here and does nothing else.
    cv2.setNumThreads(1)
    for module in pkgutil.walk_packages(av.__path__, "av."):
        if module.name != "av.__main__":
            importlib.import_module(module.name)


def open_job(job: Job, link: Link, most_streams: int) -> Source:
    """The source that the job names, over files that are handed in."""
    if job.pictures:
        from arr_stream.sources.images import ImagesSource

        return ImagesSource(job)
    from arr_stream.sources.ffmpeg import FfmpegSource

    class Watched(FfmpegSource):
        """Says that it is alive while it passes pictures over, and counts streams."""

        def _open(self) -> None:
            super()._open()
            streams = len(self._container.streams)
            if streams > most_streams:
                raise SandboxViolated(
                    f"{job.name}: {streams} streams, at most {most_streams} are allowed",
                    frames_read=0,
                    remedy="raise sandbox.max_streams if the file can be trusted",
                )

        def _pictures(self) -> Iterator[VideoFrame]:
            for picture in super()._pictures():
                link.alive()
                yield picture

    return Watched(job)


def main(open_job: OpenJob = open_job) -> int:
    """Do one job; `open_job` is called once the process is closed in."""
    end = socket.socket(fileno=int(sys.argv[1]))
    told, slots = receive_with_files(end)
    if hasattr(os, "nice"):
        with contextlib.suppress(OSError):
            os.nice(_NICE)
    memory = limit_resources(told["memory_mb"], told["open_cpu_seconds"])
    prepare(pictures=told["job"]["pictures"])
    layers = lock_down(memory=memory, end_with_parent=told["end_with_parent"])
    span = Span(**told["job"].pop("span"))
    link = Link(end, slots, len(told["files"]), span.stride)
    close_all(slots)
    # The readers know files as paths: they open them, name them, and look at their endings.
    files = cast("list[Path]", [HandedFile(link, number, name) for number, name in enumerate(told["files"])])
    link.say("ready", layers=asdict(layers))
    if not told["probe"]:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            job = Job(**{**told["job"], "paths": files, "span": span})
            _read(lambda: open_job(job, link, told["max_streams"]), link)
    # The listening thread waits for the parent; nothing here needs tidying up.
    os._exit(0)


def _read(opener: Callable[[], Source], link: Link) -> None:
    source: Source | None = None
    try:
        source = opener()
        info = {name: getattr(source.info, name) for name in Info.model_fields}
        link.say("info", info=info, counters=astuple(source.stats))
        for frame in source.frames():
            link.deliver(frame, astuple(source.stats))
        link.say("end", counters=astuple(source.stats))
    except (BrokenPipeError, ConnectionResetError):
        raise
    except Exception as exc:
        _tell(exc, link, astuple(source.stats if source else SourceStats()))


def _tell(error: Exception, link: Link, counters: Sequence[int]) -> None:
    text = str(error)[:_LONGEST_TEXT]
    if isinstance(error, MemoryError) or _OUT_OF_MEMORY in text.lower():
        link.say("failed", why="memory", text=text, counters=counters)
    elif isinstance(error, ArrStreamError):
        link.say(
            "error",
            error=type(error).__name__,
            message=error.message[:_LONGEST_TEXT],
            remedy=error.remedy,
            counters=counters,
        )
    else:
        refused = isinstance(error, OSError) and forbidden(error)
        why = "forbidden" if refused else "raised"
        link.say("failed", why=why, text=f"{type(error).__name__}: {text}", counters=counters)


if __name__ == "__main__":
    main()
