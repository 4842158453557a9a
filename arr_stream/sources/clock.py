"""Times of pictures: from timestamps of a file, even disordered ones, or of a live source or its arrivals."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable, Iterator
from fractions import Fraction

from av.video.frame import VideoFrame

from arr_stream.sources.base import SourceStats

_FALLBACK_STEP_SECONDS = Fraction(1, 30)


class Clock:
    """Clock that gives each picture its time. Decoders output pictures in display order, so times never decrease.

    If a timestamp is smaller than the one before, it uses decoding times from here on, if those do increase. Else the
    source's clock has restarted: it continues one usual step after the last picture, with the new clock's steps. A
    picture without a timestamp comes one usual step after the one before.

    Args:
        tick_seconds: Length of a tick.
        fps: Frames a second according to the container, for the usual step until steps have been seen.
        stats: Counters to update.
        zero_ticks: The timestamp that is 0.0 s; None takes that of the first picture.
        by_dts: Use decoding times from the beginning: AVI stores no others.
    """

    def __init__(
        self,
        tick_seconds: Fraction,
        fps: float | None,
        stats: SourceStats,
        *,
        zero_ticks: int | None = None,
        by_dts: bool = False,
    ) -> None:
        self.zero_ticks = zero_ticks
        self._tick = tick_seconds
        self._stats = stats
        step_seconds = Fraction(1 / fps).limit_denominator(1_000_000) if fps else _FALLBACK_STEP_SECONDS
        self._first_step = float(step_seconds / tick_seconds)
        self._steps: deque[float] = deque(maxlen=31)
        self._by_dts = by_dts
        self._shift = 0.0
        self._last: float | None = None
        self._last_ticks: int | None = None

    def times(self, pictures: Iterable[VideoFrame]) -> Iterator[tuple[float, VideoFrame]]:
        """Yield each picture with its time in seconds from the first; times never decrease, no picture is dropped."""
        for picture in pictures:
            ticks = self._ticks_of(picture)
            if self.zero_ticks is None:
                self.zero_ticks = ticks or 0
            placed = self._placed(ticks)
            if self._last is not None and placed > self._last:
                self._steps.append(placed - self._last)
            self._last = placed
            yield placed * self._tick.numerator / self._tick.denominator, picture

    def _ticks_of(self, picture: VideoFrame) -> int | None:
        ticks = picture.dts if self._by_dts or picture.pts is None else picture.pts
        if ticks is not None and self._last_ticks is not None and ticks < self._last_ticks:
            self._stats.backward_jumps += 1
            if picture.dts is not None and picture.dts > self._last_ticks:
                self._by_dts, ticks = True, picture.dts
        if ticks is not None:
            self._last_ticks = ticks
        return ticks

    def _placed(self, ticks: int | None) -> float:
        last = self._last
        if ticks is None or self.zero_ticks is None:
            return 0 if last is None else last + self._usual_step()
        own = ticks - self.zero_ticks
        if last is None:
            return own
        if self._shift and own > last:
            self._shift = 0.0
        placed = own + self._shift
        if placed < last:
            placed = last + self._usual_step()
            self._shift = placed - own
        return placed

    def _usual_step(self) -> float:
        return statistics.median(self._steps) if self._steps else self._first_step


_JUMP_SECONDS = 1.0


class ArrivalClock:
    """Clock that places pictures on one time line, which starts at 0.0 and never goes back.

    It keeps the source's own steps, since arrival is uneven. It takes the source's clock to have changed, and places
    the picture by its arrival, if its time goes back, or runs ahead of the arrival, by more than a second in one step.
    """

    def __init__(self) -> None:
        self._last = 0.0
        self._last_arrival: float | None = None
        self.restart()

    def restart(self) -> None:
        """Restart for a new connection, whose times are unrelated to those before."""
        self._last_own: float | None = None
        self._shift = 0.0

    def place(self, own_seconds: float | None, arrival_seconds: float) -> float:
        """Return the time of the next picture.

        Args:
            own_seconds: The source's time, on any clock; None if the source gives none.
            arrival_seconds: Time of arrival, on a clock that never goes back.
        """
        passed = 0.0 if self._last_arrival is None else arrival_seconds - self._last_arrival
        step = None if own_seconds is None or self._last_own is None else own_seconds - self._last_own
        if own_seconds is not None and step is not None and -_JUMP_SECONDS <= step <= passed + _JUMP_SECONDS:
            self._last = max(own_seconds + self._shift, self._last)
        else:
            self._last += max(0.0, passed)
            if own_seconds is not None:
                self._shift = self._last - own_seconds
        if own_seconds is not None:
            self._last_own = own_seconds
        self._last_arrival = arrival_seconds
        return self._last
