"""Generated frames to measure on: a camera that pans over a textured plane, and a red square that moves against it."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np

from arr_stream.relevance.query import ExampleQuery, Query, RegionQuery, parse_text
from arr_stream.types import ByteArray, Frame

_RED = (210, 40, 40)
_PAN_PX = 3
_NO_FILE = Path("square.png")


def panning_frames(size_wh: tuple[int, int], count: int) -> list[Frame]:
    """`count` frames of 30 a second."""
    width, height = size_wh
    plane = _plane((width + _PAN_PX * count, height))
    frames = []
    for index in range(count):
        rgb = np.ascontiguousarray(plane[:, _PAN_PX * index : _PAN_PX * index + width])
        x, y, w, h = square_xywh(size_wh, index)
        rgb[y : y + h, x : x + w] = np.clip(rgb[y : y + h, x : x + w] // 8 + np.array(_RED), 0, 255)
        frames.append(Frame(index, index / 30, rgb))
    return frames


def square_xywh(size_wh: tuple[int, int], index: int) -> tuple[int, int, int, int]:
    """Where the square is on a frame."""
    width, height = size_wh
    side = max(8, min(size_wh) // 6)
    span_x, span_y = max(1, width - side), max(1, height - side)
    return (width // 4 + 4 * index) % span_x, (height // 3 + 2 * index) % span_y, side, side


def usual_queries(frame: Frame) -> dict[str, tuple[Query, ...]]:
    """One of each kind, for the square on this frame, by what a table calls them."""
    x, y, w, h = square_xywh(frame.size_wh, frame.index)
    example = ExampleQuery(_NO_FILE, np.ascontiguousarray(frame.rgb[y : y + h, x : x + w]))
    region = RegionQuery((x, y, w, h), frame.pts_seconds)
    text = parse_text("red on the left")
    return {
        "nothing": (),
        "a text": (text,),
        "a region": (region,),
        "an example": (example,),
        "all three": (text, region, example),
    }


def _plane(size_wh: tuple[int, int]) -> ByteArray:
    """Detail at several scales, so that flow has something to hold on to everywhere."""
    width, height = size_wh
    rng = np.random.default_rng(0)
    total = np.zeros((height, width, 3), np.float32)
    for step, weight in ((64, 0.5), (16, 0.3), (4, 0.2)):
        coarse = rng.integers(0, 256, (height // step + 2, width // step + 2, 3)).astype(np.float32)
        total += weight * cv2.resize(coarse, size_wh, interpolation=cv2.INTER_CUBIC)
    return np.asarray(np.clip(total * 0.8 + 20, 0, 255), np.uint8)
