"""Sources that play at their own speed: a file, once or in a loop, and synthetic pictures by FFmpeg.

An example of the latter is `lavfi:testsrc2=size=640x360:rate=30`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import partial

import av
import av.error

from arr_stream.config import Settings
from arr_stream.errors import ArrStreamError, NotAMediaFile, SourceDamaged
from arr_stream.sources import open_source
from arr_stream.sources.base import Source, SourceStats, too_large
from arr_stream.sources.live.connection import Arrived, Facts, Interrupt, Pace
from arr_stream.sources.live.decoding import Decoding
from arr_stream.sources.live.spec import LiveSpec, asked_size
from arr_stream.sources.media import reason

_FALLBACK_FPS = 30.0


class Playing:
    """Pictures of a file when they are due; with `loop`, it restarts at the end, for ever."""

    def __init__(self, opener: Callable[[], Source], *, loop: bool, interrupt: Interrupt, stats: SourceStats) -> None:
        self._opener, self._loop, self._interrupt, self._stats = opener, loop, interrupt, stats
        self._source = opener()

    @property
    def facts(self) -> Facts:
        return Facts(**{field.name: getattr(self._source.info, field.name) for field in fields(Facts)})

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


_SIZED = {"color", "colorchart", "gradients", "mandelbrot", "nullsrc", "pal100bars", "pal75bars", "rgbtestsrc"}
_SIZED |= {"sierpinski", "smptebars", "smptehdbars", "testsrc", "testsrc2", "yuvtestsrc", "zoneplate"}
SOURCES = _SIZED | {"allrgb", "allyuv", "colorspectrum"}
"""Filters that generate pictures; those that read files or addresses are not included."""

FILTERS = {"boxblur", "crop", "drawbox", "drawgrid", "eq", "fade", "format", "fps", "gblur", "hflip", "hue", "negate"}
FILTERS |= {"noise", "null", "setpts", "setsar", "settb", "transpose", "trim", "vflip"}
"""Filters that may follow; they read only their input, and do not enlarge pictures."""

_SIZE = re.compile(r"(\d+)x(\d+)")


def checked_graph(graph: str, name: str, max_pixels: int) -> str:
    """Return the graph unchanged, if every filter in it is allowed.

    Raises:
        NotAMediaFile: It holds a filter that is not allowed, or quotes, which could hide one.
        SourceTooLarge: It asks for pictures of more than `max_pixels`.
    """
    if "'" in graph or "\\" in graph:
        raise NotAMediaFile(f"{name}: quotes and backslashes are not allowed in a graph", remedy="remove them")
    for number, part in enumerate(re.split(r"[;,]", graph)):
        filter_name = re.split(r"[=@\[\s]", re.sub(r"^(\s*\[[^\]]*\])*\s*", "", part), maxsplit=1)[0]
        if filter_name not in SOURCES | FILTERS or (number == 0 and filter_name not in SOURCES):
            raise NotAMediaFile(
                f"{name}: the filter {filter_name!r} is not allowed here",
                remedy=f"begin with one of {', '.join(sorted(SOURCES))}",
            )
    if re.search(r"[=:]\s*/", graph):
        raise NotAMediaFile(f"{name}: options may not come from files", remedy="write the option's value")
    for width, height in _SIZE.findall(graph):
        if int(width) * int(height) > max_pixels:
            raise too_large(name, (int(width), int(height)), max_pixels, instead="ask for less")
    return graph


def with_wishes(graph: str, settings: Settings) -> str:
    """Return the graph with the size and rate of the settings, unless its source names its own."""
    source, comma, rest = graph.partition(",")
    filter_name, _, options = source.partition("=")
    if filter_name.strip() not in _SIZED:
        return graph
    size_wh, fps = asked_size(settings), settings.live.fps
    named = {option.partition("=")[0].strip() for option in options.split(":")} if options else set()
    wishes = []
    if size_wh is not None and not named & {"size", "s"}:
        wishes.append(f"size={size_wh[0]}x{size_wh[1]}")
    if fps and not named & {"rate", "r"}:
        wishes.append(f"rate={fps:g}")
    if not wishes:
        return graph
    return f"{filter_name}={':'.join([*([options] if options else []), *wishes])}{comma}{rest}"


def open_lavfi(spec: LiveSpec, settings: Settings, interrupt: Interrupt, stats: SourceStats) -> Decoding:
    """Open the graph.

    Raises:
        NotAMediaFile, SourceTooLarge: See `checked_graph`.
    """
    graph = checked_graph(with_wishes(spec.target, settings), spec.name, settings.source.max_pixels)

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
