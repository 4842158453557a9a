"""Small real detectors: networks whose weights are set by hand, so that they find coloured things."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from arr_stream.keyframes.objects.yolov3_tiny import constant, model, node
from arr_stream.types import ByteArray

BOX_PX = 96


def colour_detector(folder: Path, labels: tuple[str, str] = ("person", "dog")) -> Path:
    """Write a detector that finds a thing of the first class in each red cell of 32 px, of the second in each blue one.

    Its boxes are `BOX_PX` wide and centred on the cell. Its output has YOLOX's form: strides of 8, 16 and 32, of which
    only the last finds anything.
    """
    boxes = np.array([0.5, 0.5, *[math.log(BOX_PX / 32)] * 2], np.float32)
    #                       red  green blue
    kernels = np.array([[10, -20, 10], [10, 0, -10], [-10, 0, 10]], np.float32)[..., None, None]
    constants = [
        constant(np.zeros((4, 3, 1, 1), np.float32), "no kernels"),
        constant(boxes, "boxes"),
        constant(kernels, "kernels"),
        constant(np.array([-5, 0, 0], np.float32), "biases"),
        constant(np.full(3, -99, np.float32), "nothing"),
        constant(np.array([1, 7, -1], np.float32), "shape"),
    ]
    nodes, rows = [node("Cast", ["shape"], ["whole shape"], to=7)], []
    for side in (8, 16, 32):
        nodes += [
            node("MaxPool", ["images"], [f"cells{side}"], kernel_shape=[side] * 2, strides=[side] * 2),
            node("Conv", [f"cells{side}", "no kernels", "boxes"], [f"boxes{side}"]),
            node("Conv", [f"cells{side}", "kernels", "biases" if side == 32 else "nothing"], [f"sums{side}"]),
            node("Sigmoid", [f"sums{side}"], [f"scores{side}"]),
            node("Concat", [f"boxes{side}", f"scores{side}"], [f"planes{side}"], axis=1),
            node("Reshape", [f"planes{side}", "whole shape"], [f"flat{side}"]),
        ]
        rows.append(f"flat{side}")
    nodes += [node("Concat", rows, ["joined"], axis=2), node("Transpose", ["joined"], ["rows"], perm=[0, 2, 1])]
    path = folder / "colours.onnx"
    path.write_bytes(model(nodes, constants, {"images": (1, 3, 320, 320)}, ["rows"]))
    path.with_suffix(".txt").write_text("\n".join(labels))
    return path


def scene(things: dict[str, tuple[int, int]], size_wh: tuple[int, int] = (320, 320), side_px: int = 32) -> ByteArray:
    """Return grey ground with `red` or `blue` squares, by the place of their upper left corner in pixels."""
    rgb = np.full((size_wh[1], size_wh[0], 3), 110, np.uint8)
    for colour, (x, y) in things.items():
        rgb[y : y + side_px, x : x + side_px] = {"red": (255, 0, 0), "blue": (0, 0, 255)}[colour]
    return rgb
