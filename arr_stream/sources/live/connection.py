"""What the kinds of live sources give to the one that reads and reopens them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from arr_stream.sources.base import SourceStats
from arr_stream.sources.live.interrupt import Interrupt
from arr_stream.types import ByteArray


@dataclass(frozen=True, slots=True, eq=False)
class Arrived:
    """One upright picture, just in.

    Args:
        rgb: `[H, W, 3]`, uint8.
        own_seconds: Its time as the source tells it; None where it does not.
        captured_seconds: When it came in, on the clock of `time.monotonic`.
        intra: Coded without reference to others; None: not known.
    """

    rgb: ByteArray
    own_seconds: float | None
    captured_seconds: float
    intra: bool | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """What a connection knows of its stream; see `SourceInfo` for the fields."""

    codec: str
    average_fps: float | None = None
    pixel_aspect: float = 1.0
    rotation_degrees: int = 0
    has_audio: bool = False
    video_streams: int = 1


class Connection(Protocol):
    """An open live source, good for one pass."""

    @property
    def facts(self) -> Facts: ...

    def pictures(self) -> Iterator[Arrived]:
        """Pictures as they come; ends where the source is over for good.

        Raises:
            SourceError: It broke off, stalled (`StreamSilent`), or gives what cannot be used.
        """
        ...

    def close(self) -> None:
        """Let go of it; only while no other thread reads."""
        ...


Opener = Callable[[Interrupt, SourceStats], Connection]
"""Opens a source once; its calls end early when the interrupt is set."""
