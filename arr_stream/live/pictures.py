"""Pictures of a live stream for its clients: each view of a frame is drawn once, on demand, for all of them."""

from __future__ import annotations

import json
import struct
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import cv2

from arr_stream.consumer import total_ms
from arr_stream.draw.views import check_view, render
from arr_stream.errors import InvalidSetting
from arr_stream.patch_set import PatchSet
from arr_stream.plain_text import redact_url
from arr_stream.records.schema import frame_record
from arr_stream.types import ByteArray, Frame

_MOST_VIEWS = 2
_LONGEST_SIDE_PX = 1280
_JPEG_QUALITY = 80


@dataclass(frozen=True, slots=True, eq=False)
class Shown:
    """Processed frame for display, with the number of frames `dropped` so far and the `fps` processed."""

    frame: Frame
    patches: PatchSet
    dropped: int
    fps: float
    _jpegs: dict[str, bytes] = field(default_factory=dict)
    _drawing: threading.Lock = field(default_factory=threading.Lock)

    @property
    def captured_seconds(self) -> float:
        """Capture time, on the clock of `time.monotonic`."""
        return self.frame.captured_seconds or 0.0

    def jpeg(self, view: str) -> bytes:
        """Return a view as JPEG; callable from any thread."""
        with self._drawing:
            if view not in self._jpegs:
                self._jpegs[view] = encode(render(view, self.frame, self.patches))
            return self._jpegs[view]


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


def message(shown: Shown, views: Sequence[str], sequence: int, cells: bool) -> bytes:
    """Draw the views into a binary message: 4-byte little-endian length, so many bytes of JSON, then each JPEG.

    See docs/api.md; `cells` adds the cells and their reasons.
    """
    jpegs = [(view, shown.jpeg(view)) for view in views]
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
