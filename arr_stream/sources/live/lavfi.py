"""Pictures that FFmpeg makes up: `lavfi:testsrc2=size=640x360:rate=30`."""

from __future__ import annotations

import re
from collections.abc import Callable

import av
import av.error

from arr_stream.config import Settings
from arr_stream.errors import ArrStreamError, NotAMediaFile, SourceTooLarge
from arr_stream.sources.base import SourceStats
from arr_stream.sources.container import reason
from arr_stream.sources.live.capture import asked_size
from arr_stream.sources.live.decoding import Decoding
from arr_stream.sources.live.interrupt import Interrupt
from arr_stream.sources.live.pacing import Pace
from arr_stream.sources.live.spec import LiveSpec

_SIZED = {"color", "colorchart", "gradients", "mandelbrot", "nullsrc", "pal100bars", "pal75bars", "rgbtestsrc"}
_SIZED |= {"sierpinski", "smptebars", "smptehdbars", "testsrc", "testsrc2", "yuvtestsrc", "zoneplate"}
SOURCES = _SIZED | {"allrgb", "allyuv", "colorspectrum"}
"""Filters that make pictures out of nothing; those that read files or addresses are not among them."""

FILTERS = {"boxblur", "crop", "drawbox", "drawgrid", "eq", "fade", "format", "fps", "gblur", "hflip", "hue", "negate"}
FILTERS |= {"noise", "null", "setpts", "setsar", "settb", "transpose", "trim", "vflip"}
"""Filters that may follow; none reads anything but its input, and none makes pictures larger."""

_SIZE = re.compile(r"(\d+)x(\d+)")


def checked_graph(graph: str, name: str, max_pixels: int) -> str:
    """The same graph, if every filter in it is harmless.

    Raises:
        NotAMediaFile: It holds a filter that is not allowed, or quotes, which could hide one.
        SourceTooLarge: It asks for pictures of more than `max_pixels`.
    """
    if "'" in graph or "\\" in graph:
        raise NotAMediaFile(f"{name}: quotes and backslashes are not taken in a graph", remedy="write it without")
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
            raise SourceTooLarge(
                f"{name}: {width}x{height} are more pixels than the {max_pixels} allowed",
                remedy="raise source.max_pixels or ask for less",
            )
    return graph


def with_wishes(graph: str, settings: Settings) -> str:
    """The graph with the size and rate of the settings, where its source does not name its own."""
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


def lavfi_opener(spec: LiveSpec, settings: Settings) -> Callable[[Interrupt, SourceStats], Decoding]:
    """What opens the graph.

    Raises:
        NotAMediaFile, SourceTooLarge: See `checked_graph`.
    """
    max_pixels = settings.source.max_pixels
    graph = checked_graph(with_wishes(spec.target, settings), spec.name, max_pixels)

    def problem(error: Exception) -> ArrStreamError:
        return NotAMediaFile(
            f"{spec.name}: FFmpeg cannot make this: {reason(error)}", remedy="try lavfi:testsrc2=size=640x360:rate=30"
        )

    def open_once(interrupt: Interrupt, stats: SourceStats) -> Decoding:
        try:
            container = av.open(graph, "r", format="lavfi", options={"protocol_whitelist": "none"})
        except (av.error.FFmpegError, OSError, ValueError) as exc:
            raise problem(exc) from exc
        try:
            return Decoding(
                container,
                name=spec.name,
                interrupt=interrupt,
                stats=stats,
                max_pixels=max_pixels,
                silent_seconds=settings.live.stall_seconds,
                problem=problem,
                ends=lambda _: True,
                pace=Pace(interrupt).wait_until,
            )
        except BaseException:
            container.close()
            raise

    return open_once
