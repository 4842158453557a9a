"""A detector of objects in one file, run on onnxruntime alone.

Its outputs are decoded to boxes and scores, by the shapes of common exports.

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
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

from arr_stream.errors import KeyframeFailed, WeightsInvalid
from arr_stream.keyframes.network import Network
from arr_stream.keyframes.objects import yolov3_tiny
from arr_stream.object_names import COCO
from arr_stream.types import ByteArray, FloatArray

MOST_SIDE_PX = 4096
STRIDE_PX = 32
LEAST_SCORE = 0.1
"""Least score of an object."""
MOST_OBJECTS = 100
_MOST_CANDIDATES = 1000
_OVERLAP = 0.45
"""Intersection over union of two boxes of a class above which the one with the lower score is dropped."""
LEAST_LARGE = 0.3
"""Least longer side of a large object, as a share of the frame's."""
_WITHIN = 0.85
"""Share of the smaller of two boxes of a class above which it lies within the other."""

Detections = tuple[FloatArray, FloatArray]
"""Boxes `[N, 4]`, left, top, right and bottom, normalised to [0, 1]; scores `[N, C]` in [0, 1]."""

_STRIDES_PX = 8, 16, 32


@dataclass(frozen=True, slots=True)
class Card:
    """Description of a detector, for facts that its file lacks.

    Args:
        labels: Names of its classes, in order; an empty name marks an unused class.
        sides_px: Long sides of its input, if that has no fixed size; it runs once at each, after the first for large
            objects only.
        raw: Its input is BGR in [0, 255], as YOLOX takes it, instead of RGB in [0, 1].
        anchors: For each output of a Darknet network, widths and heights in pixels of its anchors.
    """

    labels: tuple[str, ...] = COCO
    sides_px: tuple[int, ...] = (640,)
    raw: bool = False
    anchors: tuple[tuple[tuple[float, float], ...], ...] = ()


_GREY = 114
"""Grey level of the padding to a fixed size; YOLO detectors are trained with it."""


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """Detections in a picture, highest score first.

    Args:
        boxes_xyxy: `[N, 4]` float32, normalised to [0, 1].
        classes: `[N]` int, indices of its labels.
        scores: `[N]` float32 in [0, 1].
    """

    boxes_xyxy: FloatArray
    classes: npt.NDArray[np.intp]
    scores: FloatArray


class ObjectDetector:
    """Object detector on onnxruntime.

    Args:
        model: ONNX file, or the weights of YOLOv3-tiny if the card has anchors.
        card: Its description.
        threads: For onnxruntime; None for one a core.

    Raises:
        WeightsInvalid: The file is no detector, is damaged, or needs pictures that are too large.
    """

    def __init__(self, model: Path, card: Card, threads: int | None = None) -> None:
        self.path, self.card = model, card
        try:
            self._network = Network(yolov3_tiny.to_onnx(model) if card.anchors else model, threads)
        except (WeightsInvalid, MemoryError):
            raise
        except Exception as exc:  # onnxruntime has errors of its own, without a common class.
            line = " ".join(str(exc).split())[:200]
            raise WeightsInvalid(f"{model}: not a model for onnxruntime: {line}", remedy="give an ONNX file") from exc
        self._anchors = [np.array(each, np.float32) for each in card.anchors]
        names, shapes = zip(*self._network.inputs.items(), strict=True)
        shape = shapes[0]
        if len(shape) != 4 or shape[1] not in (3, "channels", None) or len(names) > 2:
            raise WeightsInvalid(
                f"{model}: its input is {list(shape)}, expected [1, 3, height, width]", remedy="give a detector"
            )
        self._fixed_wh = (shape[3], shape[2]) if isinstance(shape[2], int) and isinstance(shape[3], int) else None
        # Detectors of DETR's kind that decode their own boxes; they are trained on pictures stretched to a square.
        self._takes_size = len(names) == 2
        if self._fixed_wh is not None and max(self._fixed_wh) > MOST_SIDE_PX:
            raise WeightsInvalid(
                f"{model}: it needs pictures of {self._fixed_wh[0]}x{self._fixed_wh[1]} pixels",
                remedy=f"give one for pictures of at most {MOST_SIDE_PX} pixels a side",
            )

    def find(self, rgb: ByteArray) -> Found:
        """Return the objects in a picture `[H, W, 3]`.

        Raises:
            KeyframeFailed: The outputs are not finite.
            WeightsInvalid: They fit no supported detector, or another number of classes.
        """
        sides = self.card.sides_px if self._fixed_wh is None else (max(self._fixed_wh),)
        looks = [self._looked(rgb, side, LEAST_LARGE if at else 0.0) for at, side in enumerate(sides)]
        return _surest((np.concatenate([boxes for boxes, _ in looks]), np.concatenate([scores for _, scores in looks])))

    def _looked(self, rgb: ByteArray, side_px: int, least: float) -> Detections:
        """Return the detections at one size whose longer side is at least the share `least` of the frame's."""
        planes, share = self._planes(rgb, side_px)
        size_wh = planes.shape[3], planes.shape[2]
        inputs = (planes, np.array([size_wh], np.int64)) if self._takes_size else (planes,)
        outputs = self._network(*inputs)
        if not all(np.isfinite(output).all() for output in outputs):
            raise KeyframeFailed(f"objects: {self.path.name} gave numbers that are not finite")
        boxes, scores = detections(outputs, size_wh, len(self.card.labels), self._anchors)
        boxes = boxes / share
        large = (boxes[:, 2:] - boxes[:, :2]).max(1) >= least
        return boxes[large], scores[large]

    def _planes(self, rgb: ByteArray, side_px: int) -> tuple[FloatArray, FloatArray]:
        """Return `[1, 3, h, w]`, and the shares of its width and height, twice, that the picture takes."""
        height, width = rgb.shape[:2]
        canvas_wh = self._fixed_wh
        scale = side_px / max(width, height)
        if self._takes_size:
            wh = canvas_wh = canvas_wh or (side_px, side_px)
        elif canvas_wh is not None:
            scale = min(canvas_wh[0] / width, canvas_wh[1] / height)
            wh = max(1, round(width * scale)), max(1, round(height * scale))
        else:
            wh = canvas_wh = _strides(width * scale), _strides(height * scale)
        method = cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR
        canvas = np.full((canvas_wh[1], canvas_wh[0], 3), _GREY, np.uint8)
        canvas[: wh[1], : wh[0]] = cv2.resize(rgb, wh, interpolation=method)
        # Plane by plane: NumPy is slow where the last axis has three values.
        planes = np.stack(cv2.split(canvas)[:: -1 if self.card.raw else 1]).astype(np.float32)
        if not self.card.raw:
            planes *= np.float32(1 / 255)
        share = np.divide(wh * 2, canvas_wh * 2).astype(np.float32)
        return planes[None], share


def _strides(side: float) -> int:
    return max(1, round(side / STRIDE_PX)) * STRIDE_PX


def _surest(found: Detections) -> Found:
    """Return one box for each object."""
    boxes, scores = found
    best = scores.max(1)
    order = np.argsort(-best, kind="stable")[:_MOST_CANDIDATES]
    order = order[best[order] >= LEAST_SCORE]
    boxes, best, classes = boxes[order].clip(0, 1), best[order], scores[order].argmax(1)
    area = (boxes[:, 2:] > boxes[:, :2]).all(1)
    boxes, best, classes = boxes[area], best[area], classes[area]
    if not len(boxes):
        return Found(np.zeros((0, 4), np.float32), np.zeros(0, int), np.zeros(0, np.float32))
    rectangles = np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], 1)
    chosen = cv2.dnn.NMSBoxesBatched(
        rectangles.tolist(), best.tolist(), classes.tolist(), LEAST_SCORE, _OVERLAP, top_k=_MOST_CANDIDATES
    )
    kept = np.array(chosen, np.intp).reshape(-1)
    boxes, classes, best = boxes[kept], classes[kept], best[kept]
    best = _without_nested(boxes, classes, best)
    kept = np.argsort(-best, kind="stable")[: min(MOST_OBJECTS, np.count_nonzero(best))]
    return Found(boxes[kept], classes[kept], best[kept])


def _without_nested(boxes: FloatArray, classes: npt.NDArray[np.intp], scores: FloatArray) -> FloatArray:
    """Return scores, highest first, with 0 for one of two boxes of a class if one lies within the other.

    The larger box stays, with the higher score, unless its own is far lower: parts have higher scores than the whole.
    """
    corner = np.minimum(boxes[:, None, 2:], boxes[:, 2:]) - np.maximum(boxes[:, None, :2], boxes[:, :2])
    area = np.prod(boxes[:, 2:] - boxes[:, :2], 1)
    nested = np.prod(corner.clip(0), 2) > _WITHIN * np.minimum(area[:, None], area)
    scores = scores.copy()
    for surer, other in zip(*np.nonzero(np.triu(nested & (classes[:, None] == classes), 1)), strict=True):
        if scores[surer] and scores[other] >= scores[surer] / 2 and area[other] > area[surer]:
            scores[other], scores[surer] = scores[surer], 0
        elif scores[surer]:
            scores[other] = 0
    return scores


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
    for stride in _STRIDES_PX:
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
