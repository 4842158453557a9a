"""Live sources: cameras, network streams, synthetic pictures by FFmpeg, and files at their own speed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from arr_stream.config import Settings
from arr_stream.sources.base import Source, SourceKind, SourceStats
from arr_stream.sources.live.camera import Camera, list_cameras, open_camera
from arr_stream.sources.live.connection import Connection, Interrupt, OnState, SourceState
from arr_stream.sources.live.network import open_network
from arr_stream.sources.live.playing import open_file, open_lavfi
from arr_stream.sources.live.source import LiveSource
from arr_stream.sources.live.spec import Family, LiveSpec, is_live_spec, parse_spec

__all__ = ["Camera", "Interrupt", "OnState", "SourceState", "is_live_spec", "list_cameras", "open_live"]

_FAMILIES: dict[Family, tuple[SourceKind, Callable[[LiveSpec, Settings, Interrupt, SourceStats], Connection]]] = {
    "network": ("network", open_network),
    "camera": ("camera", open_camera),
    "lavfi": ("test", open_lavfi),
    "loop": ("loop", open_file),
    "file": ("file", open_file),
}


def open_live(
    spec: str, settings: Settings, *, on_state: OnState | None = None, interrupt: Interrupt | None = None
) -> Source:
    """Open a live source and wait for its first picture.

    Its frames carry `captured_seconds`, their `pts_seconds` never decrease, and their size may change. Network streams
    and cameras are reopened after a break or a stall, with growing pauses, and their frames continue; those of a plain
    file, or of a test picture of limited length, end. `close` may be called from another thread, and ends the frames at
    once.

    Args:
        spec: An address (`rtsp`, `rtsps`, `rtmp`, `http`, `https`, `udp`, `srt`), a camera (`/dev/video0`, `0`,
            `camera:0`, `camera:NAME`), `lavfi:GRAPH`, `loop:FILE`, or a file at its own speed.
        settings: `live` and `source` are used.
        on_state: Called with each change of the source's state, from the reading thread.
        interrupt: Ends the opening and the frames, when set from another thread.

    Raises:
        SourceError: One of its kinds, see `arr_stream.errors`; with the reason for a missing first picture.
    """
    found = parse_spec(spec)
    kind, open_once = _FAMILIES[found.family]
    return LiveSource(
        partial(open_once, found, settings),
        name=found.name,
        kind=kind,
        reopen=found.family in {"network", "camera"},
        on_state=on_state,
        interrupt=interrupt,
    )
