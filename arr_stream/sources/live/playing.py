"""Sources that play at their own speed: a file, once or in a loop, and synthetic pictures by FFmpeg.

An example of the latter is `lavfi:testsrc2=size=640x360:rate=30`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import av
import av.error

from arr_stream.config import Settings
from arr_stream.errors import ArrStreamError, NotAMediaFile, SourceDamaged
from arr_stream.sources import open_source
from arr_stream.sources.base import Source, SourceInfo, SourceStats, too_large
from arr_stream.sources.live.connection import Arrived, Interrupt, Pace
from arr_stream.sources.live.decoding import Decoding
from arr_stream.sources.live.spec import LiveSpec
from arr_stream.sources.media import reason

_FALLBACK_FPS = 30.0


class Playing:
    """Pictures of a file when they are due; with `loop`, it restarts at the end, for ever."""

    def __init__(self, opener: Callable[[], Source], *, loop: bool, interrupt: Interrupt, stats: SourceStats) -> None:
        self._opener, self._loop, self._interrupt, self._stats = opener, loop, interrupt, stats
        self._source = opener()

    @property
    def info(self) -> SourceInfo:
        return replace(self._source.info, path=None, duration_seconds=None, num_frames=None)

    def close(self) -> None:
        self._source.close()

    def pictures(self) -> Iterator[Arrived]:
        """Yield pictures; see `Connection.pictures`."""
        pace = Pace(self._interrupt)
        begins_at, last, step = 0.0, 0.0, 1 / (self._source.info.average_fps or _FALLBACK_FPS)
        while True:
            try:
                for frame in self._source.frames():
                    own_seconds = begins_at + frame.pts_seconds
                    pace.wait_until(own_seconds)
                    if self._interrupt.stopped:
                        return
                    last = own_seconds
                    yield Arrived(frame.rgb, own_seconds, time.monotonic())
            except SourceDamaged:
                if not self._loop:
                    raise
            finally:
                self._stats.concealed_frames += self._source.stats.concealed_frames
                self._stats.lost_frames += self._source.stats.lost_frames
            if not self._loop or self._interrupt.stopped:
                return
            begins_at = last + step
            self._source.close()
            self._source = self._opener()


def open_file(spec: LiveSpec, settings: Settings, interrupt: Interrupt, stats: SourceStats) -> Playing:
    """Open the file, to be played once or in a loop."""
    limits = settings.source
    opener = partial(
        open_source,
        spec.target,
        max_pixels=limits.max_pixels,
        untagged_matrix=limits.untagged_matrix,
        stop_at_damage=limits.stop_at_damage,
    )
    return Playing(opener, loop=spec.family == "loop", interrupt=interrupt, stats=stats)


_SOURCES = {"allrgb", "allyuv", "color", "colorchart", "colorspectrum", "gradients", "mandelbrot", "nullsrc"}
_SOURCES |= {"pal100bars", "pal75bars", "rgbtestsrc", "sierpinski", "smptebars", "smptehdbars", "testsrc", "testsrc2"}
_SOURCES |= {"yuvtestsrc", "zoneplate"}
"""Filters that generate pictures; those that read files or addresses are not included."""

_GRAPH = re.compile(r"(\w+)(?:=([\w.:=#@/+-]*))?")
_SIZE = re.compile(r"(\d+)x(\d+)")


def checked_graph(graph: str, name: str, max_pixels: int) -> str:
    """Return the graph unchanged, if it is one allowed filter with its options.

    Raises:
        NotAMediaFile: It is another filter, or more than one, or an option would be read from a file.
        SourceTooLarge: It asks for pictures of more than `max_pixels`.
    """
    found = _GRAPH.fullmatch(graph)
    if found is None or found[1] not in _SOURCES or re.search(r"[=:]/", graph):
        raise NotAMediaFile(
            f"{name}: this graph is not allowed", remedy=f"give one of {', '.join(sorted(_SOURCES))}, and its options"
        )
    for width, height in _SIZE.findall(graph):
        if int(width) * int(height) > max_pixels:
            raise too_large(name, (int(width), int(height)), max_pixels, instead="ask for less")
    return graph


def open_lavfi(spec: LiveSpec, settings: Settings, interrupt: Interrupt, stats: SourceStats) -> Decoding:
    """Open the graph.

    Raises:
        NotAMediaFile, SourceTooLarge: See `checked_graph`.
    """
    graph = checked_graph(spec.target, spec.name, settings.source.max_pixels)

    def problem(error: Exception) -> ArrStreamError:
        return NotAMediaFile(
            f"{spec.name}: FFmpeg cannot make this: {reason(error)}", remedy="try lavfi:testsrc2=size=640x360:rate=30"
        )

    try:
        container = av.open(graph, "r", format="lavfi", options={"protocol_whitelist": "none"})
    except (av.error.FFmpegError, OSError, ValueError) as exc:
        raise problem(exc) from exc
    return Decoding(
        container,
        name=spec.name,
        settings=settings,
        interrupt=interrupt,
        stats=stats,
        problem=problem,
        ends=lambda _: True,
        paced=True,
    )
