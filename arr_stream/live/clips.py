"""Short MP4 clips around alerts, from some seconds before to some seconds after.

The last seconds are kept as JPEGs, which saves memory. A clip is written from them one frame at a time, between other
work, so that the pictures before the alert do not delay those after it.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from arr_stream.config import Settings, VideoSettings
from arr_stream.draw.mp4 import Mp4Writer
from arr_stream.draw.overlay import centred
from arr_stream.errors import EncodingFailed, OutputError
from arr_stream.files import make_parent, partial_path, writing
from arr_stream.live.pictures import encode
from arr_stream.types import ByteArray

CLIP_NAME = re.compile(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d_[a-z0-9-]{1,40}_[a-z0-9-]{1,40}(?:_\d{1,3})?(\.partial)?\.mp4")
"""File names of clips; no other file is listed or deleted."""

DEFAULT_MOST_BYTES = 2_000_000_000
LONGEST_CLIP_SECONDS = 300.0
"""Longest clip, even if alerts keep following; the next alert then begins a new clip."""

_MOST_KEPT_BYTES = 64_000_000
_LONGEST_SIDE_PX = 1920
_JPEG_QUALITY = 92
_USUAL_STEP_SECONDS = 1 / 25
_FIRST_BYTES = 65_536
_LEFT_OVER_SECONDS = 3600.0
"""Age without a write after which a partial clip counts as left by a killed run."""


@dataclass(frozen=True, slots=True)
class ClipFile:
    """Finished clip in a folder: its name, its size, and the time it was finished."""

    name: str
    bytes: int
    made_unix: float


@dataclass(frozen=True, slots=True, eq=False)
class _Kept:
    pts_seconds: float
    jpeg: bytes


@dataclass(slots=True)
class _Recording:
    """Clip in progress.

    Attributes:
        first_seconds: Stream time of its first picture, which is 0 in the file.
        end_seconds: Stream time of its end.
        pending: Pictures not in the file yet; some may be later than the end, which can be extended.
    """

    writer: Mp4Writer
    first_seconds: float
    end_seconds: float
    pending: deque[_Kept]


class ClipRecorder:
    """Recorder that keeps the last seconds of one stream and writes clips; used by one thread.

    Args:
        folder: Folder of the clips; created with the first. File names begin with time and stream.
        before_seconds, after_seconds: Stream time that a clip shows around an alert.
        most_bytes: The oldest clips are deleted when all clips of the folder have more.
        settings: Quality of the video.
        on_finished: Called with the path of each clip when it is closed, and whether it can be played.
        on_notice: Called with a line when clips can no longer be written; once until one succeeds again.
    """

    def __init__(
        self,
        folder: Path,
        *,
        stream_name: str,
        before_seconds: float = 3.0,
        after_seconds: float = 3.0,
        most_bytes: int = DEFAULT_MOST_BYTES,
        settings: VideoSettings | None = None,
        on_finished: Callable[[Path, bool], None] = lambda path, whole: None,
        on_notice: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._folder = folder
        self._stream_name = stream_name
        self._before_seconds, self._after_seconds = before_seconds, after_seconds
        self._most_bytes = most_bytes
        self._settings = settings or Settings().video
        self._on_finished, self._on_notice = on_finished, on_notice
        self._past: deque[_Kept] = deque()
        self._past_bytes = 0
        self._recording: _Recording | None = None
        self._failing = False

    @property
    def recording(self) -> bool:
        """True while a clip is in progress."""
        return self._recording is not None

    @property
    def behind(self) -> bool:
        """True if `write_some` has work."""
        return self._recording is not None and bool(self._recording.pending)

    def add(self, pts_seconds: float, rgb: ByteArray) -> None:
        """Keep the next picture, `[H, W, 3]` uint8; larger ones than 1920 pixels are scaled down."""
        if self._past and pts_seconds < self._past[-1].pts_seconds:
            # The stream's time restarted.
            self.finish()
            self._forget(before_seconds=float("inf"))
        kept = _Kept(pts_seconds, encode(rgb, longest_px=_LONGEST_SIDE_PX, quality=_JPEG_QUALITY))
        self._past.append(kept)
        self._past_bytes += len(kept.jpeg)
        self._forget(before_seconds=pts_seconds - self._before_seconds)
        if (recording := self._recording) is not None:
            recording.pending.append(kept)
            while self.recording and sum(len(picture.jpeg) for picture in recording.pending) > _MOST_KEPT_BYTES:
                self.write_some()

    def start(self, pts_seconds: float, rule: str, made_unix: float) -> Path | None:
        """Record around this time, which must be that of the newest picture; a clip in progress is extended.

        Returns:
            The path that the finished clip will have; None if it cannot be written.
        """
        if (recording := self._recording) is not None:
            latest = recording.first_seconds + LONGEST_CLIP_SECONDS
            if pts_seconds <= latest:
                recording.end_seconds = min(max(recording.end_seconds, pts_seconds + self._after_seconds), latest)
                return recording.writer.path
            self.finish()
        if not self._past:
            return None
        try:
            make_parent(self._folder / "clip")
            delete_oldest(self._folder, self._most_bytes)
            path = self._free_path(rule, made_unix)
            writer = self._writer(path)
        except OutputError as exc:
            self._fail(exc)
            return None
        self._recording = _Recording(
            writer,
            first_seconds=self._past[0].pts_seconds,
            end_seconds=pts_seconds + self._after_seconds,
            pending=deque(self._past),
        )
        return path

    def write_some(self) -> None:
        """Write one pending picture, or finish a clip that has reached its end."""
        recording = self._recording
        if recording is None or not recording.pending:
            return
        if recording.pending[0].pts_seconds > recording.end_seconds:
            self._publish(recording)
            return
        kept = recording.pending.popleft()
        try:
            picture = _decoded(kept.jpeg)
            if picture.shape[1::-1] != recording.writer.size_wh:
                picture = centred(picture, recording.writer.size_wh)
            recording.writer.write(picture, kept.pts_seconds - recording.first_seconds)
        except OutputError as exc:
            self._give_up(recording, exc)

    def finish(self, *, most_seconds: float = float("inf")) -> None:
        """Finish a clip in progress, with as many of its pending pictures as time permits."""
        deadline = time.monotonic() + most_seconds
        while self.behind and time.monotonic() < deadline:
            self.write_some()
        if self._recording is not None:
            self._publish(self._recording)

    def _publish(self, recording: _Recording) -> None:
        self._recording = None
        try:
            recording.writer.finish()
            recording.writer.publish(force=False)
        except OutputError as exc:
            self._give_up(recording, exc)
            return
        self._failing = False
        self._on_finished(recording.writer.path, True)
        with contextlib.suppress(OutputError):
            delete_oldest(self._folder, self._most_bytes, keep=recording.writer.path)

    def _writer(self, path: Path) -> Mp4Writer:
        height, width = _decoded(self._past[-1].jpeg).shape[:2]
        times = [kept.pts_seconds for kept in self._past]
        steps = [later - earlier for earlier, later in itertools.pairwise(times) if later > earlier]
        step = statistics.median(steps) if steps else _USUAL_STEP_SECONDS
        try:
            return Mp4Writer(
                path, size_wh=(width, height), settings=self._settings, frame_seconds=max(step, 0.001), pixel_aspect=1.0
            )
        except OutputError:
            with contextlib.suppress(OSError):
                partial_path(path).unlink(missing_ok=True)
            raise

    def _free_path(self, rule: str, made_unix: float) -> Path:
        """Reserve a free name with an empty partial file: another stream may have the same name."""
        stamp = time.strftime("%Y-%m-%d_%H-%M-%S", time.localtime(made_unix))
        stem = f"{stamp}_{_slug(self._stream_name, 'stream')}_{_slug(rule, 'alert')}"
        names = [f"{stem}.mp4", *(f"{stem}_{number}.mp4" for number in range(2, 1000))]
        for path in (self._folder / name for name in names):
            if path.exists():
                continue
            with writing(path), contextlib.suppress(FileExistsError):
                _take(partial_path(path))
                return path
        raise EncodingFailed(f"{self._folder / names[0]}: no free name is left", remedy="look at what sets off alerts")

    def _give_up(self, recording: _Recording, exc: OutputError) -> None:
        """Save the playable part of a clip that cannot continue."""
        self._recording = None
        whole = False
        with contextlib.suppress(OutputError, OSError):
            whole = recording.writer.salvage(force=False)
        self._fail(exc)
        self._on_finished(recording.writer.path, whole)

    def _fail(self, exc: OutputError) -> None:
        if not self._failing:
            self._on_notice(f"clip not recorded: {exc}")
        self._failing = True

    def _forget(self, *, before_seconds: float) -> None:
        while self._past and (self._past[0].pts_seconds < before_seconds or self._past_bytes > _MOST_KEPT_BYTES):
            self._past_bytes -= len(self._past.popleft().jpeg)


def list_clips(folder: Path) -> list[ClipFile]:
    """Return the finished clips of a folder, the newest first; empty if the folder is missing."""
    return [ClipFile(path.name, size, made) for made, path, size in sorted(_clips(folder), reverse=True)]


def find_clip(folder: Path, name: str) -> Path | None:
    """Return a finished clip by its name; None for any other name."""
    match = CLIP_NAME.fullmatch(name)
    path = folder / name
    return path if match and not match.group(1) and path.is_file() and not path.is_symlink() else None


def delete_oldest(folder: Path, most_bytes: int, keep: Path | None = None) -> None:
    """Delete clips, the oldest first, until the remaining ones have at most `most_bytes`.

    Files with other names, folders and links stay; so do `keep`, and a clip in progress.

    Raises:
        OutputUnwritable: The folder cannot be listed, or a clip not be deleted.
    """
    with writing(folder):
        last = time.time() - _LEFT_OVER_SECONDS
        left_over = (clip for clip in _clips(folder, partial=True) if clip[0] < last)
        found = sorted([*_clips(folder), *left_over])
        total = sum(size for *_, size in found)
        for _, path, size in found:
            if total <= most_bytes:
                return
            if path != keep:
                path.unlink(missing_ok=True)
                total -= size


def _clips(folder: Path, *, partial: bool = False) -> Iterator[tuple[float, Path, int]]:
    """Yield time, path and size of the clips in a folder."""
    if not folder.is_dir():
        return
    for path in folder.iterdir():
        match = CLIP_NAME.fullmatch(path.name)
        if match is None or bool(match.group(1)) != partial or path.is_symlink() or not path.is_file():
            continue
        # Another stream may delete it at this moment.
        with contextlib.suppress(FileNotFoundError):
            status = path.stat()
            yield status.st_mtime, path, status.st_size


def _take(partial: Path) -> None:
    """Create a new file with space for the beginning of a clip.

    It runs before the encoder starts: an encoder that cannot write its first bytes never closes the file.
    """
    with partial.open("xb") as file:
        try:
            file.write(bytes(_FIRST_BYTES))
            file.flush()
        except OSError:
            partial.unlink(missing_ok=True)
            raise


def _slug(text: str, otherwise: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower())[:40].strip("-") or otherwise


def _decoded(jpeg: bytes) -> ByteArray:
    return np.asarray(cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR_RGB), dtype=np.uint8)
