"""What every source gives: information, counters, and its frames in one pass."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Protocol, Self

from arr_stream.types import Frame

SourceKind = Literal["file", "images", "animation", "camera", "network", "test", "loop", "browser"]


@dataclass(frozen=True, slots=True)
class SourceInfo:
    """What is known of a source once its first frame is there.

    Args:
        name: What was given, for records and messages; never holds a password.
        kind: A media file, pictures in a folder or glob, an animation (GIF, APNG), or a live source: a camera, a
            network stream, a generated test picture, a file in a loop, or the camera or screen of a browser.
        size_wh: Width and height of the first upright frame, in pixels.
        pixel_aspect: Width of an upright pixel over its height; 1.0 where nothing is said.
        average_fps: Frames a second of the source, before stride; None where it is not known.
        duration_seconds: Length of the whole source; None where the container does not say.
        num_frames: Estimate of the frames to be delivered, after start, end, stride and the limit; headers may lie.
        codec: Name of the decoder, or of the picture format.
        has_audio: The container holds at least one audio stream.
        rotation_degrees: Clockwise turn, 0, 90, 180 or 270, that made the decoded frames upright.
        video_streams: How many video streams there are to choose from, cover art apart.
        path: The file or folder; None for a glob.
        start_offset_seconds: The container's own time of what is delivered as 0.0; subtract it from audio times.
        live: Frames come when they come, whether or not anybody is ready for them.
        decoder: Who decodes: `software` or a kind of hardware, and in brackets what `auto` tried in vain.
    """

    name: str
    kind: SourceKind
    size_wh: tuple[int, int]
    pixel_aspect: float
    average_fps: float | None
    duration_seconds: float | None
    num_frames: int | None
    codec: str
    has_audio: bool
    rotation_degrees: int
    video_streams: int
    path: Path | None
    start_offset_seconds: float = 0.0
    live: bool = False
    decoder: str = "software"


@dataclass(slots=True)
class SourceStats:
    """Counters that grow while frames are read. All but `frames` speak of the source before stride.

    Attributes:
        frames: Frames delivered.
        skipped: Frames passed over, by stride or before the start.
        backward_jumps: Timestamps smaller than the one before them.
        repeated_timestamps: Timestamps equal to the one before them.
        missing_timestamps: Frames without any.
        uneven_steps: Steps that differ by more than a tenth from the usual step.
        concealed_frames: Frames that the decoder marked as damaged and patched up.
        undecodable_packets: Packets before the first picture that could not be decoded.
        reconnects: Times that a live source was opened anew.
        stalls: Times that it sent nothing for too long.
    """

    frames: int = 0
    skipped: int = 0
    backward_jumps: int = 0
    repeated_timestamps: int = 0
    missing_timestamps: int = 0
    uneven_steps: int = 0
    concealed_frames: int = 0
    undecodable_packets: int = 0
    reconnects: int = 0
    stalls: int = 0


class Source(Protocol):
    """Where frames come from."""

    stats: SourceStats

    @property
    def info(self) -> SourceInfo:
        """What is known of it."""
        ...

    def frames(self) -> Iterator[Frame]:
        """Upright frames in presentation order; one pass, after which the source is closed.

        Raises:
            SourceDamaged: Decoding stopped part-way; everything before it was delivered.
            SourceTooLarge: A frame has more pixels than the limit.
        """
        ...

    def close(self) -> None:
        """Let go of files; safe to call again."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class OnePass:
    """The part that sources share: the first frame is read on opening, the rest once, and the source closes itself.

    Reading the first frame early lets whoever opens a source hear of bad input before making any output.
    """

    stats: SourceStats

    def __init__(self) -> None:
        self.stats = SourceStats()
        self._made: Iterator[Frame] | None = None
        self._first: Frame | None = None

    def frames(self) -> Iterator[Frame]:
        """Upright frames in presentation order; see `Source.frames`."""
        if self._made is None or self._first is None:
            raise RuntimeError("the frames of this source were taken already, or it is closed; open it again")
        made, first = self._made, self._first
        self._made = self._first = None
        return self._deliver(first, made)

    def _deliver(self, first: Frame, made: Iterator[Frame]) -> Iterator[Frame]:
        try:
            self.stats.frames += 1
            yield first
            del first
            for frame in made:
                self.stats.frames += 1
                yield frame
        finally:
            self.close()

    def close(self) -> None:
        """Let go of files; safe to call again."""
        self._made = self._first = None
        self._release()

    def _release(self) -> None:
        """Close whatever the source holds open."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
