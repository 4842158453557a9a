"""Interface of sources (information, counters, and frames in one pass), and the selection of their frames."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, dropwhile, islice, takewhile
from pathlib import Path
from typing import Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict

from arr_stream.errors import InvalidSetting, NothingInRange, SourceTooLarge
from arr_stream.types import Frame

SourceKind = Literal["file", "images", "animation", "camera", "network", "test", "loop", "browser"]
Matrix = Literal["auto", "bt601", "bt709"]


class Colour(BaseModel):
    """Colour description of a video, and its conversion to RGB; names as FFmpeg spells them.

    Args:
        matrix: Matrix from luma and chroma to RGB: `bt601`, `bt709`, `bt2020`, `smpte240m`; `rgb` for none.
        matrix_assumed: The video names no matrix; see `source.untagged_matrix`.
        transfer: The curve, such as `bt709`, `hlg` or `pq`.
        primaries: Such as `bt709`, `bt2020` or `smpte432` (Display P3).
        done: `tone-mapped to BT.709` for HDR, `mapped to BT.709` for wide gamut, None for neither.
    """

    # As in the records: a later version may add fields.
    model_config = ConfigDict(frozen=True, extra="allow")

    matrix: str
    matrix_assumed: bool = False
    transfer: str = "unspecified"
    primaries: str = "unspecified"
    done: str | None = None


@dataclass(frozen=True, slots=True)
class SourceInfo:
    """Properties of a source, complete once its first frame is read.

    Args:
        name: The user's input, for records and messages, without passwords.
        kind: A media file, pictures in a folder or glob, an animation (GIF, APNG), or a live source: a camera, a
            network stream, a generated test picture, a file in a loop, or the camera or screen of a browser.
        size_wh: Width and height of the first upright frame, in pixels.
        codec: Name of the decoder, or of the picture format.
        pixel_aspect: Width of an upright pixel over its height; 1.0 if the source does not say.
        average_fps: Frames a second of the source, before stride; None if unknown.
        duration_seconds: Length of the whole source; None if the container does not say.
        num_frames: Estimate of the frames to be delivered, after start, end, stride and the limit; headers may lie.
        path: The file or folder; None for a glob.
        live: Frames arrive at their own pace, whether or not the consumer is ready.
        colour: Colours of the first video picture; None for pictures and browsers.
        left_out: Names of files in the folder or glob that are not read.
        notices: Remarks for the user on how the source is read, one line each.
    """

    name: str
    kind: SourceKind
    size_wh: tuple[int, int]
    codec: str
    pixel_aspect: float = 1.0
    average_fps: float | None = None
    duration_seconds: float | None = None
    num_frames: int | None = None
    path: Path | None = None
    live: bool = False
    colour: Colour | None = None
    left_out: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()


@dataclass(slots=True)
class SourceStats:
    """Counters that grow while frames are read. All but `frames` describe the source before stride.

    Attributes:
        frames: Frames delivered.
        backward_jumps: Timestamps smaller than the one before them.
        concealed_frames: Frames that the decoder concealed, or that may refer to lost or concealed ones.
        lost_frames: Frames that could not be decoded.
        reconnects: Number of times that a live source was reopened.
        stalls: Number of times that it sent nothing for too long.
    """

    frames: int = 0
    backward_jumps: int = 0
    concealed_frames: int = 0
    lost_frames: int = 0
    reconnects: int = 0
    stalls: int = 0


T = TypeVar("T")

# Times are rounded when they are written and when they are typed; a frame at 0.1 belongs to a start of 0.1.
_TOLERANCE_SECONDS = 1e-6


class Reading(BaseModel):
    """Range of frames read from a source, as records keep it; see `open_source` for the fields.

    Raises:
        InvalidSetting: A value is out of range, such as a stride of 0.
        NothingInRange: The end is not after the start.
    """

    # As in the records: a later version may add fields.
    model_config = ConfigDict(frozen=True, extra="allow")

    video_stream: int | None = None
    start_seconds: float | None = None
    end_seconds: float | None = None
    stride: int = 1
    max_frames: int | None = None

    def model_post_init(self, _: object) -> None:
        for name, seconds in (("start", self.start_seconds), ("end", self.end_seconds)):
            if seconds is not None and not (math.isfinite(seconds) and seconds >= 0):
                raise InvalidSetting(
                    f"{name} {seconds}: not a time", remedy="give seconds from the beginning, 0 or more"
                )
        for name, count in (("stride", self.stride), ("max-frames", self.max_frames)):
            if count is not None and count < 1:
                raise InvalidSetting(
                    f"{name} {count}: must be at least 1", remedy=f"give a whole number for {name}, 1 or more"
                )
        if self.end_seconds is not None and self.end_seconds <= (self.start_seconds or 0.0):
            raise NothingInRange(
                f"end {self.end_seconds:g} s is not after start {self.start_seconds or 0.0:g} s",
                remedy="give an end later than the start",
            )

    def select(self, timed: Iterable[tuple[float, T]]) -> Iterator[tuple[float, T]]:
        """Iterate over the items in this range, in order, from items with their time in seconds."""
        start = (self.start_seconds or 0.0) - _TOLERANCE_SECONDS
        end = math.inf if self.end_seconds is None else self.end_seconds - _TOLERANCE_SECONDS
        inside = takewhile(lambda each: each[0] < end, dropwhile(lambda each: each[0] < start, timed))
        stop = None if self.max_frames is None else (self.max_frames - 1) * self.stride + 1
        return islice(inside, 0, stop, self.stride)

    def expected(self, total: int | None, fps: float | None) -> int | None:
        """Return the approximate number of `total` frames at `fps` in this range; None if unknown."""
        count = math.inf if total is None else total
        if fps is None and (self.start_seconds or self.end_seconds is not None):
            count = math.inf
        elif fps is not None:
            end_frames = math.inf if self.end_seconds is None else self.end_seconds * fps
            count = max(0.0, min(count, end_frames) - (self.start_seconds or 0.0) * fps)
        count = min(count / self.stride, math.inf if self.max_frames is None else self.max_frames)
        return None if math.isinf(count) else math.ceil(count - 1e-3)

    def nothing(self, name: str, duration_seconds: float | None) -> NothingInRange:
        """Return the error for a source that has no frame in this range."""
        length = "of unknown length" if duration_seconds is None else f"{duration_seconds:.3f} s long"
        end = "" if self.end_seconds is None else f" and before {self.end_seconds:g} s"
        return NothingInRange(
            f"{name}: no frame at or after {self.start_seconds or 0.0:g} s{end}; the source is {length}",
            remedy="choose an earlier start or a later end",
        )


class Source:
    """Base of sources: reads the first frame on opening and the rest once, then closes itself.

    Reading the first frame early reports bad input before the caller makes any output.

    Attributes:
        info: Properties of the source.
        stats: Counters.
        reading: The range of frames that is read.
    """

    info: SourceInfo

    def __init__(self) -> None:
        self.stats = SourceStats()
        self.reading = Reading()
        self._made: Iterator[Frame] | None = None
        self._first: Frame | None = None

    def frames(self) -> Iterator[Frame]:
        """Yield upright frames in presentation order; one pass, after which the source is closed.

        Raises:
            SourceDamaged: Frames are lost or unreliable, or the end is missing; raised after all decodable frames.
            SourceTooLarge: A frame has more pixels than the limit.
        """
        if self._made is None or self._first is None:
            raise RuntimeError("the frames of this source were taken already, or it is closed; open it again")
        made, first = self._made, self._first
        self._made = self._first = None
        return self._deliver(chain([first], made))

    def _deliver(self, frames: Iterator[Frame]) -> Iterator[Frame]:
        try:
            for frame in frames:
                self.stats.frames += 1
                yield frame
        finally:
            self.close()

    def close(self) -> None:
        """Close files; safe to call again."""
        self._made = self._first = None
        self._release()

    def _release(self) -> None:
        """Close everything that the source holds open."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class Job:
    """Files to read and how; the other fields are as in `open_source`.

    Args:
        paths: The media file, or the pictures, at least one.
        name: Name of the source in records and messages.
        folder: The file or folder that was named; None for a glob.
        left_out: Files of the folder or glob that are not read.
    """

    paths: Sequence[Path]
    name: str
    folder: Path | None
    left_out: Sequence[Path]
    reading: Reading
    max_pixels: int
    untagged_matrix: Matrix
    stop_at_damage: bool


def too_large(name: str, size_wh: tuple[int, int], max_pixels: int, *, instead: str) -> SourceTooLarge:
    """Return the error for a picture of more than `max_pixels`; `instead` names an alternative to a higher limit."""
    width, height = size_wh
    return SourceTooLarge(
        f"{name}: {width}x{height} are {width * height} pixels, at most {max_pixels} are allowed",
        remedy=f"raise source.max_pixels or {instead}",
    )
