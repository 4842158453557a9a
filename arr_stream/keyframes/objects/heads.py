"""Decoding of detectors' outputs to boxes and scores, by the shapes of common exports.

| outputs, for a picture of w x h pixels | of |
|---|---|
| `[1, n * (5 + C), h/s, w/s]`, one for each stride, with anchors | Darknet |
| `[1, N, 5 + C]`, one row for each place | YOLOX |
| `[1, N, 5 + C]`, three rows for each place | YOLOv5, YOLOv7 |
| `[1, 4 + C, N]` | YOLOv8 and later |
| classes `[1, Q]`, boxes `[1, Q, 4]` in pixels and scores `[1, Q]` | RT-DETR and D-FINE with their own last step |
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from arr_stream.errors import WeightsInvalid
from arr_stream.types import FloatArray

Detections = tuple[FloatArray, FloatArray]
"""Boxes `[N, 4]`, left, top, right and bottom, normalised to [0, 1]; scores `[N, C]` in [0, 1]."""

_STRIDES = 8, 16, 32


def detections(
    outputs: Sequence[FloatArray], size_wh: tuple[int, int], classes: int, anchors: Sequence[FloatArray] = ()
) -> Detections:
    """Decode a detector's outputs.

    Args:
        outputs: As the model gave them, in any order.
        size_wh: Width and height of the picture that it saw.
        classes: Number of the classes, C.
        anchors: For each output of a Darknet network, `[n, 2]` in pixels.

    Raises:
        WeightsInvalid: They fit no supported detector.
    """
    if anchors:
        parts = [_darknet(output, size, size_wh) for output, size in zip(outputs, anchors, strict=True)]
        return np.concatenate([boxes for boxes, _ in parts]), np.concatenate([scores for _, scores in parts])
    found = _single(outputs[0], size_wh, classes) if len(outputs) == 1 else _decoded(outputs, size_wh, classes)
    if found is None:
        shapes = ", ".join(str(list(output.shape)) for output in outputs)
        raise WeightsInvalid(
            f"outputs {shapes} for {classes} classes are those of no detector that is known",
            remedy="name its classes in a text file beside it; docs/queries.md lists the kinds of detector",
        )
    return found


def _decoded(outputs: Sequence[FloatArray], size_wh: tuple[int, int], classes: int) -> Detections | None:
    by_rank = sorted(outputs, key=lambda output: (output.ndim, output.shape[-1]))
    if len(outputs) == 3 and [output.ndim for output in by_rank] == [2, 2, 3] and by_rank[2].shape[2] == 4:
        labels, scores = by_rank[:2] if np.issubdtype(by_rank[0].dtype, np.integer) else by_rank[1::-1]
        spread = np.zeros((labels.shape[1], classes), np.float32)
        known = labels[0].astype(int) < classes
        spread[np.flatnonzero(known), labels[0].astype(int)[known]] = scores[0][known]
        return by_rank[2][0] / _scale(size_wh), spread
    return None


def _single(output: FloatArray, size_wh: tuple[int, int], classes: int) -> Detections | None:
    if output.ndim != 3 or len(output) != 1:
        return None
    rows = output[0]
    if len(rows) == 4 + classes != rows.shape[1]:
        return _corners(rows[:4].T) / _scale(size_wh), rows[4:].T
    if rows.shape[1] == 5 + classes:
        places = _places(size_wh)
        boxes = rows[:, :4]
        if len(rows) == len(places):
            xy = (boxes[:, :2] + places[:, :2]) * places[:, 2:]
            boxes = np.concatenate([xy, np.exp(boxes[:, 2:]) * places[:, 2:]], 1)
        return _corners(boxes) / _scale(size_wh), rows[:, 4:5] * rows[:, 5:]
    return None


def _darknet(output: FloatArray, anchors: FloatArray, size_wh: tuple[int, int]) -> Detections:
    height, width = output.shape[2:]
    # [anchors, numbers, h, w]
    values = output.reshape(len(anchors), -1, height, width)
    y, x = np.mgrid[:height, :width].astype(np.float32)
    places = np.stack([x, y])
    centre = (_sigmoid(values[:, :2]) + places) / np.array([width, height], np.float32)[:, None, None]
    size = np.exp(values[:, 2:4]) * (anchors / np.array(size_wh, np.float32))[:, :, None, None]
    boxes = np.concatenate([centre, size], 1).transpose(0, 2, 3, 1).reshape(-1, 4)
    scores = _sigmoid(values[:, 4:5]) * _sigmoid(values[:, 5:])
    return _corners(boxes), scores.transpose(0, 2, 3, 1).reshape(len(boxes), -1)


def _places(size_wh: tuple[int, int]) -> FloatArray:
    """Return `[N, 3]`: column, row and stride of each place, the finest stride first."""
    width, height = size_wh
    places = []
    for stride in _STRIDES:
        y, x = np.mgrid[: -(-height // stride), : -(-width // stride)].reshape(2, -1)
        places.append(np.stack([x, y, np.full_like(x, stride)], 1).astype(np.float32))
    return np.concatenate(places)


def _scale(size_wh: tuple[int, int]) -> FloatArray:
    return np.array(size_wh * 2, np.float32)


def _corners(boxes: FloatArray) -> FloatArray:
    """Return left, top, right and bottom of boxes given by centre and size."""
    half = boxes[:, 2:4] / 2
    return np.concatenate([boxes[:, :2] - half, boxes[:, :2] + half], 1).astype(np.float32)


def _sigmoid(values: FloatArray) -> FloatArray:
    # Without overflow on either side.
    return np.float32(0.5) * (1 + np.tanh(values / 2, dtype=np.float32))
