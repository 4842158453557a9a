"""Live sources: cameras, network streams, pictures that FFmpeg makes up, and files at their own speed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from arr_stream.sources.base import Source, SourceKind
from arr_stream.sources.live.cameras import Camera, list_cameras
from arr_stream.sources.live.spec import Family, LiveSpec, is_live_spec, parse_spec
from arr_stream.sources.live.state import OnState, SourceState

if TYPE_CHECKING:
    from arr_stream.config import Settings
    from arr_stream.sources.live.connection import Opener

__all__ = ["Camera", "OnState", "SourceState", "is_live_spec", "list_cameras", "open_live"]

_KINDS: dict[Family, SourceKind] = {
    "network": "network",
    "camera": "camera",
    "lavfi": "test",
    "loop": "loop",
    "file": "file",
}


def open_live(spec: str, settings: Settings, *, on_state: OnState | None = None) -> Source:
    """Open a live source and wait for its first picture.

    Its frames carry `captured_seconds`, their `pts_seconds` never decrease, their size may change. Network streams and
    cameras are opened again after a break or a stall, with pauses from `live.retry_seconds` up to
    `live.longest_retry_seconds`, and their frames go on; those of a plain file, or of a test picture of limited length,
    end. `close` may be called from another thread, and ends the frames at once.

    Args:
        spec: An address (`rtsp`, `rtsps`, `rtmp`, `http`, `https`, `udp`, `srt`), a camera (`/dev/video0`, `0`,
            `camera:0`, `camera:NAME`), `lavfi:GRAPH`, `loop:FILE`, or a file at its own speed.
        settings: `live` and `source.max_pixels` are used.
        on_state: Told how the source is doing, from the thread that reads.

    Raises:
        SourceError: One of its kinds, see `arr_stream.errors`; with the reason that there is no first picture.
        InvalidSetting: `live.size` means nothing.
    """
    from arr_stream.sources.live.source import LiveSource

    found = parse_spec(spec)
    return LiveSource(
        _opener(found, settings),
        name=found.name,
        kind=_KINDS[found.family],
        settings=settings,
        reopen=found.family in {"network", "camera"},
        on_state=on_state,
    )


def _opener(spec: LiveSpec, settings: Settings) -> Opener:
    if spec.family == "network":
        from arr_stream.sources.live.network import network_opener

        return network_opener(spec, settings)
    if spec.family == "camera":
        from arr_stream.sources.live.camera import camera_opener

        return camera_opener(spec, settings)
    if spec.family == "lavfi":
        from arr_stream.sources.live.lavfi import lavfi_opener

        return lavfi_opener(spec, settings)
    from arr_stream.sources.live.playing import playing_opener

    return playing_opener(spec, settings)
