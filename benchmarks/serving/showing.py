"""One clip as each way sends it: whole, scaled down, or as chosen cells."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np
from PIL import Image

from arr_stream.types import ByteArray
from arr_stream.vlm.qwen3_vl.carrier import CarriedCells
from arr_stream.vlm.qwen3_vl.cells import Cells, cell_pictures
from arr_stream.vlm.qwen3_vl.prompt import time_text
from benchmarks.answers.pictures import scaled_wh

Parts = list[dict[str, Any]]
"""Of a message."""
FPS = 2.0
VIDEO_FLAGS = ("--media-io-kwargs", json.dumps({"video": {"fps": FPS, "num_frames": -1}}))
"""Of a server that takes videos as pictures one after another, two a second."""


def whole(frames: Sequence[ByteArray]) -> Parts:
    """The frames as a video, without loss; one alone as a picture."""
    if len(frames) == 1:
        return [picture(frames[0])]
    joined = ",".join(_png(frame) for frame in frames)
    return [{"type": "video_url", "video_url": {"url": f"data:video/jpeg;base64,{joined}"}}]


def scaled_down(frames: Sequence[ByteArray], tokens: int) -> Parts:
    """The same, each as large as so many cells."""
    size_wh = scaled_wh((frames[0].shape[1], frames[0].shape[0]), tokens)
    return whole([np.asarray(cv2.resize(frame, size_wh, interpolation=cv2.INTER_AREA), np.uint8) for frame in frames])


def cells(frames: Sequence[ByteArray], chosen: Sequence[Cells]) -> Parts:
    """Cells of each pair of frames with its time; of one alone without."""
    if len(frames) == 1:
        return [_carried(frames, chosen[0])]
    parts: Parts = []
    for number, pair in enumerate(chosen):
        parts.append({"type": "text", "text": time_text((2 * number + 0.5) / FPS)})
        parts.append(_carried(frames[2 * number : 2 * number + 2], pair))
    return parts


def picture(frame: ByteArray) -> dict[str, Any]:
    """Encode a frame as a lossless image part of a message."""
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{_png(frame)}"}}


def _carried(frames: Sequence[ByteArray], chosen: Cells) -> dict[str, Any]:
    pictures = np.stack([cell_pictures(frame, chosen) for frame in frames], axis=1)
    png = base64.b64encode(CarriedCells(chosen, pictures).png()).decode("ascii")
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{png}"}}


def _png(frame: ByteArray) -> str:
    data = io.BytesIO()
    Image.fromarray(frame).save(data, "PNG", compress_level=1)
    return base64.b64encode(data.getvalue()).decode("ascii")
