"""Pictures of a live stream for its clients: drawn and compressed in an own thread, the newest frame only.

A frame is drawn only for waiting clients, and each view of it once, for all of them.
"""

from __future__ import annotations

import json
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import cv2

from arr_stream.consumer import total_ms
from arr_stream.draw.views import check_view, render
from arr_stream.errors import InvalidSetting
from arr_stream.patch_set import PatchSet
from arr_stream.plain_text import redact_url
from arr_stream.records.schema import frame_record
from arr_stream.types import ByteArray, Frame

MOST_UNSHOWN = 2
"""Most messages in flight to a client that has not yet acknowledged them."""

_MOST_VIEWS = 2
_LONGEST_SIDE_PX = 1280
_JPEG_QUALITY = 80
_JOIN_SECONDS = 2.0


@dataclass(frozen=True, slots=True, eq=False)
class Shown:
    """Processed frame for display, with the number of frames `dropped` so far and the `fps` processed.

    Each view is drawn once, on demand.
    """

    frame: Frame
    patches: PatchSet
    dropped: int
    fps: float
    _jpegs: dict[str, bytes] = field(default_factory=dict)

    @property
    def captured_seconds(self) -> float:
        """Capture time, on the clock of `time.monotonic`."""
        return self.frame.captured_seconds or 0.0

    def jpeg(self, view: str) -> bytes:
        if view not in self._jpegs:
            self._jpegs[view] = encode(render(view, self.frame, self.patches))
        return self._jpegs[view]


class Watching:
    """Subscription of one client to pictures, from `PictureRoom.watch`. Methods may be called from any thread.

    Attributes:
        error: Reason why no further pictures come; None without an error.
    """

    def __init__(
        self,
        room: PictureRoom,
        wake: Callable[[], None],
        views: Sequence[str],
        cells: bool,
        on_age: Callable[[float], None] | None,
    ) -> None:
        self._room = room
        self._wake = wake
        self._on_age = on_age
        self._views = checked_views(views)
        self._cells = cells
        self._sequence = 0
        self._under_way: deque[tuple[int, float]] = deque()
        self._message: bytes | None = None
        self._last: Shown | None = None
        self.error: str | None = None

    def show(self, views: Sequence[str] | None = None, cells: bool | None = None) -> None:
        """Change the views, or whether cells are included; a stalled stream shows its last frame again.

        Raises:
            InvalidSetting: An unknown view, none, or more than two.
        """
        if views is not None:
            self._views = checked_views(views)
        if cells is not None:
            self._cells = cells
        self._last = None
        self._room.stir()

    def next_message(self) -> bytes | None:
        """Return the message that is ready, once; None without one."""
        message, self._message = self._message, None
        return message

    def acknowledge(self, sequence: int) -> bool:
        """Record that the client has shown this message and all before; return False if it was not in flight."""
        captured_seconds = dict(tuple(self._under_way)).get(sequence)
        if captured_seconds is None:
            return False
        while self._under_way and self._under_way[0][0] <= sequence:
            self._under_way.popleft()
        if self._on_age is not None:
            self._on_age(time.monotonic() - captured_seconds)
        self._room.stir()
        return True

    def close(self) -> None:
        self._room.leave(self)

    def fail(self, error: str) -> None:
        """Report an error and close the subscription."""
        self.error = error
        self.close()
        self._wake()

    def waits_for(self, shown: Shown) -> bool:
        return self._message is None and self._last is not shown and len(self._under_way) < MOST_UNSHOWN

    def deliver(self, shown: Shown) -> None:
        """Prepare the message of a frame; called by the drawing thread."""
        # Set this first, so that a request during drawing is served next.
        self._last = shown
        jpegs = [(view, shown.jpeg(view)) for view in self._views]
        self._sequence += 1
        self._under_way.append((self._sequence, shown.captured_seconds))
        self._message = message(shown, jpegs, self._sequence, self._cells)
        self._wake()


class PictureRoom:
    """Drawing thread for a stream's newest frame, shared by all clients."""

    def __init__(self, name: str = "") -> None:
        self._watching: tuple[Watching, ...] = ()
        self._newest: Shown | None = None
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name=f"arr-stream-pictures-{name}", daemon=True)
        self._thread.start()

    def show(self, shown: Shown) -> None:
        """Set the newest frame; never blocks."""
        self._newest = shown
        self.stir()

    def watch(
        self,
        views: Sequence[str],
        wake: Callable[[], None],
        *,
        cells: bool = False,
        on_age: Callable[[float], None] | None = None,
    ) -> Watching:
        """Subscribe to pictures; the newest frame comes at once if there is one.

        Args:
            views: One or two views of each frame.
            wake: Called from the drawing thread when a message is ready; must not block.
            cells: Include the cells and their reasons with each picture.
            on_age: Called with the seconds from capture to display of each shown picture.

        Raises:
            InvalidSetting: An unknown view, none, or more than two.
        """
        watching = Watching(self, wake, views, cells, on_age)
        with self._changed:
            self._watching = (*self._watching, watching)
            self._changed.notify_all()
        return watching

    def leave(self, watching: Watching) -> None:
        with self._changed:
            self._watching = tuple(each for each in self._watching if each is not watching)

    def stir(self) -> None:
        """Wake the drawing thread, since a client may be ready."""
        with self._changed:
            self._changed.notify_all()

    def snapshot(self, view: str) -> bytes | None:
        """Return a JPEG of the newest frame, None before the first; raise `InvalidSetting` for an unknown view."""
        check_view(view)
        newest = self._newest
        return newest.jpeg(view) if newest is not None else None

    def close(self) -> None:
        """End the thread; safe to call again."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(_JOIN_SECONDS)

    def _ready(self) -> list[Watching]:
        newest = self._newest
        return [] if newest is None else [each for each in self._watching if each.waits_for(newest)]

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._ready())
                if self._closed:
                    return
                newest, ready = self._newest, self._ready()
            assert newest is not None
            for watching in ready:
                try:
                    watching.deliver(newest)
                except Exception as exc:
                    # A view that cannot be drawn must not affect the others.
                    watching.fail(f"{', '.join(watching._views)}: {type(exc).__name__}: {exc}")


def checked_views(views: Sequence[str]) -> tuple[str, ...]:
    """Return the views after a check.

    Raises:
        InvalidSetting: An unknown view, none, or more than two.
    """
    if not 1 <= len(views) <= _MOST_VIEWS:
        raise InvalidSetting(f"{len(views)} views", remedy="request one or two")
    return tuple(check_view(view) for view in views)


def encode(rgb: ByteArray, *, quality: int = _JPEG_QUALITY) -> bytes:
    """Encode a picture `[H, W, 3]` as JPEG, scaled down if a side is longer than 1280 pixels."""
    height, width = rgb.shape[:2]
    scale = _LONGEST_SIDE_PX / max(height, width)
    if scale < 1:
        size_wh = max(1, round(width * scale)), max(1, round(height * scale))
        rgb = cv2.resize(rgb, size_wh, interpolation=cv2.INTER_AREA)
    bgr = cv2.cvtColor(rgb, cv2.COLOR_RGB2BGR)
    done, jpeg = cv2.imencode(".jpg", bgr, [cv2.IMWRITE_JPEG_QUALITY, quality])
    if not done:
        raise ValueError(f"a picture of {width}x{height} does not become a JPEG")
    return jpeg.tobytes()


def message(shown: Shown, jpegs: Sequence[tuple[str, bytes]], sequence: int, cells: bool) -> bytes:
    """Return a binary message: 4-byte little-endian length, that many bytes of JSON, then each JPEG; see
    docs/api.md.
    """
    patches, age_seconds = shown.patches, time.monotonic() - shown.captured_seconds
    header = {
        "seq": sequence,
        "index": patches.index,
        "pts_seconds": round(patches.pts_seconds, 6),
        "captured_unix": round(time.time() - age_seconds, 4),
        "sent_age_ms": round(age_seconds * 1e3, 2),
        "size_wh": list(shown.frame.size_wh),
        "grid_hw": [patches.grid.rows, patches.grid.columns],
        "pictures": [{"view": view, "bytes": len(jpeg)} for view, jpeg in jpegs],
        "latency_ms": round(total_ms(patches.latency_ms), 3),
        "stages": {stage: round(float(ms), 3) for stage, ms in patches.latency_ms.items()},
        "tokens": patches.tokens,
        "confidence": round(patches.confidence, 4),
        "keyframe": patches.keyframe,
        "refresh_reason": patches.refresh_reason,
        "keyframe_age": patches.keyframe_age,
        "quality": patches.quality,
        "dropped": shown.dropped,
        "fps": round(shown.fps, 2),
        "query_scores": [round(float(score), 4) for score in patches.query_scores],
        "region": [round(share, 4) for share in patches.region] if patches.region is not None else None,
        "notices": [redact_url(notice) for notice in patches.notices],
    }
    if cells:
        record = frame_record(patches)
        header |= {"cells": record["cells"], "reasons": record["reasons"]}
    text = json.dumps(header, ensure_ascii=False).encode()
    return b"".join([struct.pack("<I", len(text)), text, *(jpeg for _, jpeg in jpegs)])
