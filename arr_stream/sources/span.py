"""Which frames of a source are wanted: start, end, stride and limit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from pydantic import BaseModel, ConfigDict

from arr_stream.errors import InvalidSetting, NothingInRange
from arr_stream.sources.base import SourceStats

T = TypeVar("T")

# Times are rounded when they are written and when they are typed; a frame at 0.1 belongs to a start of 0.1.
_TOLERANCE_SECONDS = 1e-6


class Reading(BaseModel):
    """Which frames of a source were read, as records keep it; see `arr_stream.open`."""

    # As in the records: a later version may say more.
    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False)

    video_stream: int | None = None
    start_seconds: float | None = None
    end_seconds: float | None = None
    stride: int = 1
    max_frames: int | None = None


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a source.

    Args:
        start_seconds: The first frame at or after this time.
        end_seconds: Frames before this time.
        stride: Every Nth frame, counted from the first one in the span.
        max_frames: At most so many frames.

    Raises:
        InvalidSetting: A value that means nothing, such as a stride of 0.
        NothingInRange: The end is not after the start.
    """

    start_seconds: float | None = None
    end_seconds: float | None = None
    stride: int = 1
    max_frames: int | None = None

    def __post_init__(self) -> None:
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

    def select(self, timed: Iterable[tuple[float, T]], stats: SourceStats) -> Iterator[tuple[float, T]]:
        """The wanted ones of things that come with their time in seconds, in order."""
        start = (self.start_seconds or 0.0) - _TOLERANCE_SECONDS
        end = math.inf if self.end_seconds is None else self.end_seconds - _TOLERANCE_SECONDS
        inside = taken = 0
        for seconds, item in timed:
            if seconds >= end:
                return
            if seconds < start:
                stats.skipped += 1
                continue
            inside += 1
            if (inside - 1) % self.stride:
                stats.skipped += 1
                continue
            yield seconds, item
            taken += 1
            if taken == self.max_frames:
                return

    def expected(self, total: int | None, fps: float | None) -> int | None:
        """About how many of `total` frames at `fps` are wanted; None where that cannot be known."""
        count = total
        if self.start_seconds or self.end_seconds is not None:
            if fps is None:
                return self.max_frames
            first = math.ceil((self.start_seconds or 0.0) * fps - 1e-3)
            last = math.inf if self.end_seconds is None else math.ceil(self.end_seconds * fps - 1e-3)
            last = min(last, math.inf if total is None else total)
            count = None if math.isinf(last) else max(0, int(last) - first)
        if count is None:
            return self.max_frames
        count = -(-count // self.stride)
        return count if self.max_frames is None else min(count, self.max_frames)

    def nothing(self, name: str, duration_seconds: float | None) -> NothingInRange:
        """The error for a source that has no frame in this span."""
        length = "of unknown length" if duration_seconds is None else f"{duration_seconds:.3f} s long"
        end = "" if self.end_seconds is None else f" and before {self.end_seconds:g} s"
        return NothingInRange(
            f"{name}: no frame at or after {self.start_seconds or 0.0:g} s{end}; the source is {length}",
            remedy="choose an earlier start or a later end",
        )
