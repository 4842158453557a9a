"""A source that is decoded in a process of its own, which has nothing but the source's files.

Media parsers are large, and files of unknown origin are written to break them. Here FFmpeg and Pillow run in a child
process that can open no file, reach no network, start no program and use no more than its share of memory and time;
what it sends is checked before it is used. See docs/trust.md for what is promised.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import TypeVar

import numpy as np

import arr_stream.errors
from arr_stream.config import SandboxSettings
from arr_stream.errors import InvalidSetting, SandboxViolated, SourceDamaged, SourceError
from arr_stream.sources.base import Job, OnePass, SourceInfo, SourceStats
from arr_stream.sources.sandbox.decoder import CHILD, DISTRUST, DecodingProcess
from arr_stream.sources.sandbox.messages import Delivered, End, Failure, Garbled, Info, Opened, Refusal, clean
from arr_stream.types import Frame

Wanted = TypeVar("Wanted", Opened, Delivered)


class SandboxedSource(OnePass):
    """A media file or pictures, as `FfmpegSource` or `ImagesSource` would give them, decoded elsewhere.

    Frames, times, counters, information and errors are the same, but for two things. `info.has_audio` is always False,
    because whoever copies sound would open the file outside; and a decoder that crashes, breaks a limit or tries what
    it may not ends the frames with `SandboxViolated`, as damage would.

    Args:
        job: Its hardware may be `off` or `auto`: only software decodes here, and with `auto` `info.decoder` says so.
        settings: The limits.
        child: Module that is run as the decoding process.

    Attributes:
        layers: What holds the decoding process on this system.
        notices: One line for each thing that the user should know.

    Raises:
        SourceError: What opening the source without a sandbox raises.
        SandboxViolated: The decoder crashed, broke a limit, or tried what it may not.
        InvalidSetting: Hardware decoding was asked for.
        BackendUnavailable: The process cannot be started, or a layer is missing and `sandbox.strict` is set.
    """

    def __init__(self, job: Job, settings: SandboxSettings, child: str = CHILD) -> None:
        super().__init__()
        if job.hardware not in ("off", "auto"):
            raise InvalidSetting(
                f"source.hardware={job.hardware!r} with source.sandbox: a sandboxed process reaches no device",
                remedy="use source.hardware=off",
            )
        self._job, self._settings = job, settings
        self._index = 0
        self._pts_seconds = -math.inf
        self._process = DecodingProcess(job, settings, module=child)
        self.layers = self._process.layers
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        opened = self._next(Opened)
        if opened is not None:
            self._process.opened()
            with self._process.checked():
                self.info = self._info(opened.info)
                self._count(opened.counters)
            self.notices = tuple(_notices(self._job.name, self.layers.missing, has_audio=opened.info.has_audio))
            self._made = self._frames()
            self._first = next(self._made, None)
        if self._first is None:
            raise self._process.violated("the decoder gave no frame", DISTRUST)

    def _frames(self) -> Iterator[Frame]:
        while (delivered := self._next(Delivered)) is not None:
            try:
                with self._process.checked():
                    frame = self._frame(delivered)
            except ValueError:
                # Closed by another thread, and the memory with it.
                if self._process.closed:
                    return
                raise
            yield frame

    def _next(self, wanted: type[Wanted]) -> Wanted | None:
        """The next message, which must be of that kind; None at the end of the frames.

        Raises:
            SourceError: The one that the decoder raised.
            SandboxViolated: See `DecodingProcess.next`.
        """
        told = self._process.next()
        if told is None or isinstance(told, wanted):
            return told
        with self._process.checked():
            self._count(told.counters)
            if isinstance(told, End) and wanted is Delivered:
                return None
            if isinstance(told, Refusal):
                raise self._refused(told)
            if isinstance(told, Failure):
                raise self._failed(told)
            raise Garbled(told.kind)

    def _frame(self, delivered: Delivered) -> Frame:
        memory = self._process.slots[delivered.slot]
        width, height = self._checked_size(delivered.size_wh)
        nbytes = width * height * 3
        if delivered.pts_seconds < self._pts_seconds or delivered.index != self._index:
            raise Garbled("a frame out of order")
        if nbytes > len(memory):
            raise Garbled("a frame larger than its slot")
        # A copy: whoever takes the frame may keep it, and the child must not change it any more.
        rgb = np.frombuffer(memory, np.uint8, nbytes).reshape(height, width, 3).copy()
        self._count(delivered.counters)
        self._process.release(delivered.slot)
        self._index += 1
        self._pts_seconds = delivered.pts_seconds
        self._process.frames_read = self._index
        return Frame(self._index - 1, delivered.pts_seconds, rgb)

    def _checked_size(self, size_wh: tuple[int, int]) -> tuple[int, int]:
        if size_wh[0] * size_wh[1] > self._job.max_pixels:
            raise Garbled("size")
        return size_wh

    def _count(self, counters: Sequence[int]) -> None:
        """Take over the counters; frames delivered are counted on this side."""
        for field, value in zip(fields(SourceStats), counters, strict=True):
            if field.name != "frames":
                setattr(self.stats, field.name, value)

    def _refused(self, told: Refusal) -> SourceError:
        """The child's own error, if it is one that a source may raise."""
        kind = getattr(arr_stream.errors, told.error, None)
        if not isinstance(kind, type) or not issubclass(kind, SourceError):
            raise Garbled("an error of an unknown class")
        if issubclass(kind, SourceDamaged):
            return kind(told.message, frames_read=self._index, remedy=told.remedy)
        return kind(told.message, remedy=told.remedy)

    def _failed(self, told: Failure) -> SandboxViolated:
        if told.why == "memory":
            most = self._settings.memory_mb
            remedy = "raise sandbox.memory_mb if the file can be trusted"
            return self._process.violated(f"decoding needs more than the {most} MB of sandbox.memory_mb,", remedy)
        what = "tried what the sandbox forbids" if told.why == "forbidden" else "failed"
        return self._process.violated(f"the decoder {what} ({clean(told.text, 300)})", DISTRUST)

    def _info(self, told: Info) -> SourceInfo:
        self._checked_size(told.size_wh)
        automatic = self._job.hardware == "auto" and not self._job.pictures
        ours = {
            "name": self._job.name,
            "codec": clean(told.codec, 100),
            "has_audio": False,
            "path": self._job.folder,
            "decoder": "software (a sandboxed process reaches no hardware)" if automatic else "software",
        }
        return SourceInfo(**{**told.model_dump(), **ours})

    def _release(self) -> None:
        self._process.close()


def _notices(name: str, missing: Sequence[str], *, has_audio: bool) -> Iterator[str]:
    if missing:
        yield f"sandbox: this system gives no {', no '.join(missing)}; see docs/trust.md"
    if has_audio:
        yield f"sound left out: {name} is read in a sandbox, and sound would be read outside"
