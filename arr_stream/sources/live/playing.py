"""A file at its own speed, once or in a loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from arr_stream.config import Settings
from arr_stream.errors import SourceDamaged
from arr_stream.sources import open_source
from arr_stream.sources.base import Source, SourceStats
from arr_stream.sources.live.connection import Arrived, Facts
from arr_stream.sources.live.interrupt import Interrupt
from arr_stream.sources.live.pacing import Pace
from arr_stream.sources.live.spec import LiveSpec

_FALLBACK_STEP_SECONDS = 1 / 30


class Playing:
    """The pictures of a file when they are due.

    Args:
        opener: Opens the file, each round anew.
        loop: Begin again at the end, for ever.
        interrupt: Ends waits.
        stats: Counters to keep.
    """

    def __init__(self, opener: Callable[[], Source], *, loop: bool, interrupt: Interrupt, stats: SourceStats) -> None:
        self._opener, self._loop, self._interrupt, self._stats = opener, loop, interrupt, stats
        self._source = opener()

    @property
    def facts(self) -> Facts:
        info = self._source.info
        return Facts(
            codec=info.codec,
            average_fps=info.average_fps,
            pixel_aspect=info.pixel_aspect,
            rotation_degrees=info.rotation_degrees,
            has_audio=info.has_audio,
            video_streams=info.video_streams,
        )

    def close(self) -> None:
        self._source.close()

    def pictures(self) -> Iterator[Arrived]:
        """See `Connection.pictures`."""
        pace = Pace(self._interrupt)
        begins_at, last, step = 0.0, 0.0, 1 / (self._source.info.average_fps or 1 / _FALLBACK_STEP_SECONDS)
        while True:
            try:
                for frame in self._source.frames():
                    own_seconds = begins_at + frame.pts_seconds
                    pace.wait_until(own_seconds)
                    if self._interrupt.stopped:
                        return
                    last = own_seconds
                    yield Arrived(frame.rgb, own_seconds, time.monotonic(), frame.intra)
            except SourceDamaged:
                if not self._loop:
                    raise
            self._stats.concealed_frames += self._source.stats.concealed_frames
            if not self._loop or self._interrupt.stopped:
                return
            begins_at = last + step
            self._source.close()
            self._source = self._opener()


def playing_opener(spec: LiveSpec, settings: Settings) -> Callable[[Interrupt, SourceStats], Playing]:
    """What opens the file."""

    def open_file() -> Source:
        return open_source(spec.target, max_pixels=settings.source.max_pixels)

    def open_once(interrupt: Interrupt, stats: SourceStats) -> Playing:
        return Playing(open_file, loop=spec.family == "loop", interrupt=interrupt, stats=stats)

    return open_once
