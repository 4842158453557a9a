"""Generated frames to time things on: a pan over a busy wall, things that move against it, and words on some."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np

from arr_stream.relevance.query import ExampleQuery, Query, RegionQuery, parse_text
from arr_stream.types import ByteArray, Frame

FPS = 30
_PAN_PX = 2
_THINGS = 8
_RED = (210, 40, 40)
_NO_FILE = Path("square.png")


def panning(size_wh: tuple[int, int], count: int, *, seed: int = 0) -> Iterator[Frame]:
    """Frames of 30 a second; another wall in other colours for another seed.

    The camera never rests, so that hardly a cell stays as a model knows it: the dearest case for novelty.
    """
    width, height = size_wh
    draw = np.random.default_rng(seed)
    wall = _wall(width, height, draw)
    things = draw.uniform(0, 1, (_THINGS, 5))
    colours = draw.integers(0, 256, (_THINGS, 3)).tolist()
    for index in range(count):
        # To and fro, however long the clip is.
        shift = abs((index * _PAN_PX) % (2 * width) - width)
        rgb = np.ascontiguousarray(wall[:, shift : shift + width])
        for number, (thing, colour) in enumerate(zip(things.tolist(), colours, strict=True)):
            _draw(rgb, thing, colour, index, number)
        yield Frame(index, index / FPS, rgb)


def panning_frames(size_wh: tuple[int, int], count: int) -> list[Frame]:
    """The same with a red square that is in front of everything, and that can be asked for."""
    frames = list(panning(size_wh, count))
    for frame in frames:
        x, y, w, h = square_xywh(size_wh, frame.index)
        frame.rgb[y : y + h, x : x + w] = np.clip(frame.rgb[y : y + h, x : x + w] // 8 + np.array(_RED), 0, 255)
    return frames


def square_xywh(size_wh: tuple[int, int], index: int) -> tuple[int, int, int, int]:
    """Return the square's box on a frame."""
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


def _wall(width: int, height: int, draw: np.random.Generator) -> ByteArray:
    coarse = draw.integers(0, 256, (height // 24 + 2, width // 12 + 2, 3), np.uint8)
    smooth = cv2.resize(coarse, (2 * width, height), interpolation=cv2.INTER_CUBIC)
    grain = draw.integers(0, 24, (height, 2 * width, 1), np.uint8)
    # Its own colours for every seed, so that going from one scene to another is a cut.
    tinted = (smooth * draw.uniform(0.15, 1.0, 3)).astype(np.uint8)
    wall: ByteArray = cv2.add(tinted, np.repeat(grain, 3, axis=2))
    return wall


def _draw(rgb: ByteArray, thing: list[float], colour: list[int], index: int, number: int) -> None:
    height, width = rgb.shape[:2]
    x, y, speed_x, speed_y, size = thing
    side = max(8, int((0.06 + 0.1 * size) * min(width, height)))
    left = int((x * width + (speed_x - 0.5) * 12 * index) % max(1, width - side))
    top = int((y * height + (speed_y - 0.5) * 12 * index) % max(1, height - side))
    cv2.rectangle(rgb, (left, top), (left + side, top + side), colour, cv2.FILLED)
    if number % 4 == 0:
        ink = (255, 255, 255) if sum(colour) < 384 else (0, 0, 0)
        cv2.putText(rgb, f"EXIT {number}", (left, top + side // 2), cv2.FONT_HERSHEY_SIMPLEX, side / 130, ink, 2)
