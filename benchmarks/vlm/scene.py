"""What `bench vlm` looks at: made-up frames in which everything moves, and the cells chosen on them."""

from __future__ import annotations

from collections.abc import Iterator

import cv2
import numpy as np

from arr_stream.config import Settings
from arr_stream.keyframes.generate import InStepKeyframes, make_generator
from arr_stream.pipeline import Pipeline
from arr_stream.types import ByteArray, Frame, Grid
from arr_stream.vlm.qwen3_vl.cells import Cells

FRAMES_A_SECOND = 30
_PAN_PX = 2
_THINGS = 8


def frames(size_wh: tuple[int, int], count: int, *, seed: int = 0) -> Iterator[Frame]:
    """A pan over a busy wall with things that move across it and something written on some of them.

    The camera never rests, so that hardly a cell stays as the model knows it: the dearest case for novelty.
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
        yield Frame(index, index / FRAMES_A_SECOND, rgb)


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


def chosen_cells(settings: Settings, frame: Frame, tokens: int) -> Cells:
    """The cells that perception chooses on a first frame, coarse ones among them; every one where all are wanted."""
    grid = Grid.for_size(frame.size_wh, max_pixels=settings.grid.max_pixels)
    if tokens >= grid.cells:
        return Cells.whole((grid.rows, grid.columns))
    quick = settings.with_values({"selection.budget": str(tokens), "keyframes.text": "none"})
    patches = Pipeline(quick, InStepKeyframes(make_generator(quick))).step(frame)
    return Cells.chosen(patches)
