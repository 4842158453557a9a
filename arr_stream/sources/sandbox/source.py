"""A source that is decoded in a process of its own, which has nothing but the source's files.

Media parsers are large, and files of unknown origin are written to break them. Here FFmpeg and Pillow run in a child
process that can open no file, reach no network, start no program and use no more than its share of memory and time;
what it sends is checked before it is used. See docs/trust.md for what is promised.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

import arr_stream.errors
from arr_stream.config import SandboxSettings
from arr_stream.errors import InvalidSetting, SandboxViolated, SourceDamaged, SourceError
from arr_stream.sources.base import OnePass, SourceInfo, SourceKind, SourceStats, Span
from arr_stream.sources.sandbox.decoder import CHILD, DecodingProcess
from arr_stream.sources.sandbox.messages import Garbled, Message, clean, number, size, whole
from arr_stream.types import Frame

VECTORS = np.dtype(
    {
        "names": [
            *("source", "w", "h", "src_x", "src_y", "dst_x", "dst_y"),
            *("flags", "motion_x", "motion_y", "motion_scale"),
        ],
        "formats": ["<i4", "u1", "u1", "<i2", "<i2", "<i2", "<i2", "<u8", "<i4", "<i4", "<u2"],
        "offsets": [0, 4, 5, 6, 8, 10, 12, 16, 24, 28, 32],
        "itemsize": 40,
    },
    align=True,
)
"""PyAV's motion vectors: a type from the child could name Python objects."""

_COUNTERS = tuple(field.name for field in fields(SourceStats))
_MOST = 1 << 53
_TURNS = (0, 90, 180, 270)


class SandboxedSource(OnePass):
    """A media file or pictures, as `FfmpegSource` or `ImagesSource` would give them, decoded elsewhere.

    Frames, times, counters, information and errors are the same, but for two things. `info.has_audio` is always False,
    because whoever copies sound would open the file outside; and a decoder that crashes, breaks a limit or tries what
    it may not ends the frames with `SandboxViolated`, as damage would.

    Args:
        paths: The media file, or the pictures.
        name: What to call it in records and messages.
        pictures: Read them as pictures.
        folder: What `info.path` is; None for a glob.
        span: Which frames.
        video_stream: Which video stream of a media file.
        motion_vectors: Hand out the decoder's motion vectors with the frames.
        max_pixels: Largest frame to decode.
        hardware: As `source.hardware`; only software decodes here, and `auto` says so.
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

    def __init__(
        self,
        paths: Sequence[Path],
        *,
        name: str,
        pictures: bool,
        folder: Path | None = None,
        span: Span | None = None,
        video_stream: int | None = None,
        motion_vectors: bool = False,
        max_pixels: int = 100_000_000,
        hardware: str = "off",
        settings: SandboxSettings | None = None,
        child: str = CHILD,
    ) -> None:
        super().__init__()
        if hardware not in ("off", "auto"):
            raise InvalidSetting(
                f"source.hardware={hardware!r} with source.sandbox: a sandboxed process reaches no device",
                remedy="use source.hardware=off",
            )
        self._name, self._max_pixels, self._settings = name, max_pixels, settings or SandboxSettings()
        self._path = folder
        self._index = 0
        self._pts_seconds = -math.inf
        job = {
            "probe": False,
            "pictures": pictures,
            "name": name,
            "files": [str(path) for path in paths],
            "span": asdict(span or Span()),
            "video_stream": video_stream,
            "motion_vectors": motion_vectors,
            "max_pixels": max_pixels,
            "max_streams": self._settings.max_streams,
        }
        self._process = DecodingProcess(
            job, paths, name=name, settings=self._settings, max_pixels=max_pixels, module=child
        )
        self.layers = self._process.layers
        try:
            self._open(automatic=hardware == "auto" and not pictures)
        except BaseException:
            self.close()
            raise

    def _open(self, *, automatic: bool) -> None:
        message = self._next("info")
        if message is None:
            raise self._process.violated("the decoder gave no frame", "do not trust this file")
        self._process.opened()
        with self._process.checked():
            self.info, has_audio = self._info(message.get("info"), automatic=automatic)
            self._count(message)
        self.notices = tuple(_notices(self._name, self.layers.missing, has_audio=has_audio))
        frames = self._frames()
        self._first, self._made = next(frames, None), frames
        if self._first is None:
            raise self._process.violated("the decoder gave no frame", "do not trust this file")

    def _frames(self) -> Iterator[Frame]:
        while (message := self._next("frame")) is not None:
            try:
                with self._process.checked():
                    frame = self._frame(message)
            except ValueError:
                # Closed by another thread, and the memory with it.
                if self._process.closed:
                    return
                raise
            yield frame

    def _next(self, kind: str) -> Message | None:
        """The next message, which must be of that kind; None at the end of the frames.

        Raises:
            SourceError: The one that the decoder raised.
            SandboxViolated: See `DecodingProcess.next`.
        """
        message = self._process.next()
        if message is None:
            return None
        with self._process.checked():
            if message["kind"] == kind:
                return message
            if kind == "frame":
                self._count(message)
            if message["kind"] == "end" and kind == "frame":
                return None
            if message["kind"] == "error":
                raise self._told(message)
            if message["kind"] == "failed":
                raise self._failed(message)
            raise Garbled(message["kind"])

    def _frame(self, message: Message) -> Frame:
        memory = self._process.bytes_of(slot := message.get("slot"))
        width, height = size(message.get("size_wh"), self._max_pixels)
        pts_seconds, intra = number(message.get("pts_seconds")), message.get("intra")
        vectors = None if message.get("vectors") is None else whole(message["vectors"], 0, len(memory))
        nbytes = width * height * 3
        later = pts_seconds is not None and pts_seconds >= self._pts_seconds
        if not later or message.get("index") != self._index or not isinstance(intra, bool | None):
            raise Garbled("a frame out of order")
        if nbytes + (vectors or 0) * VECTORS.itemsize > len(memory):
            raise Garbled("a frame larger than its slot")
        assert pts_seconds is not None
        # A copy: whoever takes the frame may keep it, and the child must not change it any more.
        rgb = np.frombuffer(memory, np.uint8, nbytes).reshape(height, width, 3).copy()
        found: npt.NDArray[Any] | None = None
        if vectors is not None:
            found = np.frombuffer(memory, VECTORS, vectors, nbytes).copy()
        self._count(message)
        self._process.release(whole(slot, 0, _MOST))
        self._index += 1
        self._pts_seconds = pts_seconds
        self._process.frames_read = self._index
        return Frame(self._index - 1, pts_seconds, rgb, found, intra)

    def _count(self, message: Message) -> None:
        """Take over the counters; frames delivered are counted on this side."""
        counters = message.get("counters")
        if counters == [] and message["kind"] in ("error", "failed"):
            return
        if not isinstance(counters, list) or len(counters) != len(_COUNTERS):
            raise Garbled("counters")
        for name, value in zip(_COUNTERS, counters, strict=True):
            if name != "frames":
                setattr(self.stats, name, whole(value, 0, _MOST))

    def _told(self, message: Message) -> SourceError:
        """The child's own error, if it is one that a source may raise."""
        kind = getattr(arr_stream.errors, clean(message.get("error")), None)
        text, remedy = message.get("message"), message.get("remedy")
        if not isinstance(kind, type) or not issubclass(kind, SourceError):
            raise Garbled("an error of an unknown class")
        if not isinstance(text, str) or not isinstance(remedy, str | None):
            raise Garbled("an error without text")
        if issubclass(kind, SourceDamaged):
            return kind(text, frames_read=self._index, remedy=remedy)
        return kind(text, remedy=remedy)

    def _failed(self, message: Message) -> SandboxViolated:
        why = message.get("why")
        if why == "memory":
            remedy = "raise sandbox.memory_mb if the file can be trusted"
            return self._process.violated(
                f"decoding needs more than the {self._settings.memory_mb} MB of sandbox.memory_mb,", remedy
            )
        what = "tried what the sandbox forbids" if why == "forbidden" else "failed"
        return self._process.violated(f"the decoder {what} ({clean(message.get('text'), 300)})", "do not trust it")

    def _info(self, values: Any, *, automatic: bool) -> tuple[SourceInfo, bool]:
        """What the child knows of the source, and whether that has sound."""
        if not isinstance(values, Mapping) or values.get("kind") not in get_args(SourceKind):
            raise Garbled("info")
        frames = values.get("num_frames")
        turned = whole(values.get("rotation_degrees"), 0, 270)
        offset, aspect = number(values.get("start_offset_seconds")), number(values.get("pixel_aspect"))
        if turned not in _TURNS or offset is None or aspect is None or aspect <= 0:
            raise Garbled("info")
        info = SourceInfo(
            name=self._name,
            kind=values["kind"],
            size_wh=size(values.get("size_wh"), self._max_pixels),
            pixel_aspect=aspect,
            average_fps=number(values.get("average_fps")),
            duration_seconds=number(values.get("duration_seconds")),
            num_frames=None if frames is None else whole(frames, -_MOST, _MOST),
            codec=clean(values.get("codec"), 100),
            has_audio=False,
            rotation_degrees=turned,
            video_streams=whole(values.get("video_streams"), 1, _MOST),
            path=self._path,
            start_offset_seconds=offset,
            decoder="software (a sandboxed process reaches no hardware)" if automatic else "software",
        )
        return info, values.get("has_audio") is True

    def _release(self) -> None:
        self._process.close()


def _notices(name: str, missing: Sequence[str], *, has_audio: bool) -> Iterator[str]:
    if missing:
        yield f"sandbox: this system gives no {', no '.join(missing)}; see docs/trust.md"
    if has_audio:
        yield f"sound left out: {name} is read in a sandbox, and sound would be read outside"
