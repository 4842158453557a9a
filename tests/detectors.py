"""Small real detectors: Darknet networks whose weights are set by hand, so that they find coloured things."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from arr_stream.types import ByteArray

ANCHOR_PX = 96
_POOL = "[maxpool]\nsize=2\nstride=2\n"
_CFG = f"""
[net]
width=320
height=320
channels=3
{_POOL * 5}
[convolutional]
filters=7  # 5 and two classes
size=1
stride=1
pad=1
activation=linear

[yolo]
mask=0
anchors={ANCHOR_PX},{ANCHOR_PX}
classes=2
num=1
"""


def colour_detector(folder: Path, labels: tuple[str, str] = ("person", "dog")) -> Path:
    """Write a detector that finds a thing of the first class in each red cell of 32 px, of the second in each blue one.

    Its boxes are `ANCHOR_PX` wide and centred on the cell.
    """
    weights = folder / "colours.weights"
    #        x  y  w  h  object  first  second
    biases = [0, 0, 0, 0, -5, 0, 0]
    red = [0, 0, 0, 0, 10, 10, -10]
    green = [0, 0, 0, 0, -20, 0, 0]
    blue = [0, 0, 0, 0, 10, -10, 10]
    kernels = np.stack([red, green, blue], 1)
    content = np.concatenate([biases, kernels.ravel()]).astype(np.float32)
    weights.write_bytes(np.array([0, 2, 0, 0, 0], np.int32).tobytes() + content.tobytes())
    weights.with_suffix(".cfg").write_text(_CFG)
    weights.with_suffix(".json").write_text(f'{{"labels": ["{labels[0]}", "{labels[1]}"], "sides_px": [320]}}')
    return weights


def scene(things: dict[str, tuple[int, int]], size_wh: tuple[int, int] = (320, 320), side_px: int = 32) -> ByteArray:
    """Return grey ground with `red` or `blue` squares, by the place of their upper left corner in pixels."""
    rgb = np.full((size_wh[1], size_wh[0], 3), 110, np.uint8)
    for colour, (x, y) in things.items():
        rgb[y : y + side_px, x : x + side_px] = {"red": (255, 0, 0), "blue": (0, 0, 255)}[colour]
    return rgb
