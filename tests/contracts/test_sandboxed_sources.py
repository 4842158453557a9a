"""A sandboxed source gives bit for bit what the same source gives without."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import pytest

from arr_stream.config import SandboxSettings
from arr_stream.errors import ArrStreamError, SourceDamaged
from arr_stream.sources import SourceInfo, SourceStats, open_source
from arr_stream.types import Frame
from tests.contracts.test_sources import COUNT, MAKERS
from tests.media import moving_frames, write_audio, write_gif, write_images, write_video


def outcome(
    spec: Path | str, *, sandbox: bool, **options: object
) -> tuple[list[Frame], SourceInfo | None, SourceStats | None, ArrStreamError | None]:
    """Everything that a source gives."""
    frames: list[Frame] = []
    source = None
    try:
        opened = open_source(spec, sandbox=SandboxSettings() if sandbox else None, **options)  # type: ignore[arg-type]
        with opened as source:
            frames.extend(source.frames())
    except ArrStreamError as exc:
        return frames, source.info if source else None, source.stats if source else None, exc
    return frames, source.info, source.stats, None


def same(spec: Path | str, **options: object) -> tuple[int, ArrStreamError | None]:
    """Compare what both give; how many frames that was, and the error that ended them."""
    frames, info, stats, error = outcome(spec, sandbox=False, **options)
    others, other_info, other_stats, other_error = outcome(spec, sandbox=True, **options)
    assert (type(other_error), str(other_error)) == (type(error), str(error))
    if isinstance(error, SourceDamaged):
        assert isinstance(other_error, SourceDamaged)
        assert other_error.frames_read == error.frames_read
    assert other_stats == stats
    # Sound is the one thing that is left out.
    assert other_info == (None if info is None else replace(info, has_audio=False))
    assert len(others) == len(frames)
    for frame, other in zip(frames, others, strict=True):
        assert (other.index, other.pts_seconds) == (frame.index, frame.pts_seconds)
        np.testing.assert_array_equal(other.rgb, frame.rgb)
        assert other.rgb.flags.c_contiguous
    return len(frames), error


FRAMES = moving_frames(14)


def _turned(folder: Path) -> Path:
    return write_video(folder / "a.mov", FRAMES, rotation=90, mirror=True, audio=True)


def _uneven(folder: Path) -> Path:
    return write_video(folder / "a.mkv", FRAMES, pts=[index / 30 + (index % 3) / 100 for index in range(14)])


def _damaged(folder: Path) -> Path:
    """Packets overwritten in the middle."""
    path = write_video(folder / "a.mp4", moving_frames(40), options={"bf": "0", "g": "100", "slices": "1"})
    with av.open(str(path)) as container:
        packets = [(packet.pos, packet.size) for packet in container.demux(video=0) if packet.size]
    content = bytearray(path.read_bytes())
    content[packets[20][0] : sum(packets[20])] = b"\xff" * packets[20][1]
    path.write_bytes(content)
    return path


def _pictures(folder: Path) -> Path:
    write_images(folder / "pictures", FRAMES)
    (folder / "pictures" / "frame9.png").write_bytes((folder / "pictures" / "frame9.png").read_bytes()[:300])
    return folder / "pictures"


def _sizes(folder: Path) -> Path:
    write_images(folder / "sizes", FRAMES[:1])
    write_images(folder / "sizes", moving_frames(1, (320, 200)), stem="larger", suffix=".jpg")
    write_images(folder / "sizes", moving_frames(1, (32, 20)), stem="small", suffix=".webp")
    write_images(folder / "sizes", moving_frames(1, (64, 40)), stem="tiff", suffix=".tiff")
    return folder / "sizes"


def _garbage(folder: Path) -> Path:
    (folder / "a.mp4").write_bytes(bytes(5000))
    return folder / "a.mp4"


SOURCES: dict[str, tuple[Callable[[Path], Path], int, str | None]] = {
    "turned": (_turned, 14, None),
    "damaged": (_damaged, 20, "SourceDamaged"),
    "damaged-picture": (_pictures, 8, "SourceDamaged"),
    "sizes": (_sizes, 4, None),
    "garbage": (_garbage, 0, "NotAMediaFile"),
    "uneven": (_uneven, 14, None),
    "gif": (lambda folder: write_gif(folder / "a.gif", FRAMES), 14, None),
    "sound": (lambda folder: write_audio(folder / "a.m4a"), 0, "NoVideoStream"),
    "one-picture": (lambda folder: write_images(folder, FRAMES[:1]) / "frame1.png", 1, None),
}
_QUICK = ("turned", "damaged", "damaged-picture")


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[] if kind in _QUICK else [pytest.mark.slow]) for kind in SOURCES]
)
def test_everything_is_the_same(tmp_path: Path, kind: str) -> None:
    make, count, expected = SOURCES[kind]
    found, error = same(make(tmp_path))
    assert abs(found - count) <= 2 if kind == "damaged" else found == count
    assert (type(error).__name__ if error else None) == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", MAKERS)
def test_every_format_is_the_same(tmp_path: Path, name: str) -> None:
    assert same(MAKERS[name][0](tmp_path)) == (COUNT, None)


@pytest.mark.slow
def test_the_same_part_and_the_same_refusals(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", moving_frames(60), options={"g": "10"})
    assert same(path, start_seconds=1.2, stride=2, max_frames=5) == (5, None)
    assert type(same(path, start_seconds=9.0)[1]).__name__ == "NothingInRange"
    assert type(same(path, video_stream=3)[1]).__name__ == "NoVideoStream"
    assert type(same(path, max_pixels=100)[1]).__name__ == "SourceTooLarge"


@pytest.mark.slow
def test_too_many_streams_are_refused(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mkv", FRAMES[:2], more_videos=[FRAMES[:2]] * 3)
    assert same(path) == (2, None)
    with pytest.raises(ArrStreamError, match=r"4 streams, at most 3 are allowed; raise sandbox\.max_streams"):
        open_source(path, sandbox=SandboxSettings(max_streams=3))
