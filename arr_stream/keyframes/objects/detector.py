"""A detector of objects in one file, run on onnxruntime alone.

The file is an ONNX model or Darknet weights. A card, a JSON file of the same name beside it, adds missing information;
every field is optional:

    {"labels": ["person", "bicycle"], "sides_px": [640], "scale": 0.00392, "mean": [0, 0, 0], "bgr": false,
     "licence": "Apache-2.0", "source": "https://..."}

Without labels the classes are the 80 of COCO, in their order.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import cv2
import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from arr_stream.errors import KeyframeFailed, WeightsInvalid
from arr_stream.keyframes.network import Network
from arr_stream.keyframes.objects import darknet
from arr_stream.keyframes.objects.heads import Detections, detections
from arr_stream.object_names import COCO, canonical
from arr_stream.types import ByteArray, FloatArray
from arr_stream.weights import check_sha256

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

Byte = Annotated[float, Field(ge=-1e4, le=1e4)]


class Card(BaseModel):
    """Description of a detector, for facts that its file lacks.

    Args:
        labels: Names of its classes, in order; an empty name marks an unused class.
        sides_px: Long sides of its input, if that has no fixed size; it runs once at each, after the first for large
            objects only.
        scale, mean: Its input is `(values - mean) * scale`, of values in [0, 255]; numbers for red, green and blue.
        bgr: Its input has blue first.
        stretched: Its input is stretched to a square, as for detectors of DETR's kind, instead of padded.
        anchors: For each output of a Darknet network, widths and heights in pixels of its anchors; by default those of
            its own file.
        licence, source, sha256: Licence, source and hash of the weights; the hash is checked before use.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    labels: tuple[str, ...] = Field(COCO, min_length=1)
    sides_px: tuple[Annotated[int, Field(ge=STRIDE_PX, le=MOST_SIDE_PX)], ...] = Field((640,), min_length=1)
    scale: float | tuple[float, float, float] = 1 / 255
    mean: tuple[Byte, Byte, Byte] = (0, 0, 0)
    bgr: bool = False
    stretched: bool = False
    anchors: tuple[tuple[tuple[float, float], ...], ...] = ()
    licence: str = ""
    source: str = ""
    sha256: str = ""

    @property
    def classes(self) -> tuple[str, ...]:
        """Labels, with COCO's names if COCO has them."""
        return tuple(map(canonical, self.labels))


def card_of(model: Path) -> Card:
    """Return the card beside a detector's file, or the usual one.

    Raises:
        WeightsInvalid: The card cannot be read, or a field is wrong.
    """
    beside = model.with_suffix(".json")
    if not beside.is_file():
        return Card()
    try:
        return Card.model_validate_json(beside.read_bytes())
    except (OSError, ValidationError) as exc:
        fault = exc.errors()[0] if isinstance(exc, ValidationError) else None
        what = f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" if fault else str(exc)
        raise WeightsInvalid(f"{beside}: {what}", remedy="docs/queries.md shows what a card holds") from exc


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
        model: ONNX file, or Darknet weights with the `.cfg` beside them.
        card: Its description.
        threads: For onnxruntime; None for one a core.

    Raises:
        WeightsInvalid: The file is no detector, is damaged, or needs pictures that are too large.
    """

    def __init__(self, model: Path, card: Card, threads: int | None = None) -> None:
        self.path, self.card, self.labels = model, card, card.classes
        if card.sha256:
            check_sha256(model, card.sha256)
        try:
            content = darknet.to_onnx(model.with_suffix(".cfg"), model) if model.suffix == ".weights" else model
            self._network = Network(content, threads)
        except (WeightsInvalid, MemoryError):
            raise
        except Exception as exc:  # onnxruntime has errors of its own, without a common class.
            line = " ".join(str(exc).split())[:200]
            raise WeightsInvalid(f"{model}: not a model for onnxruntime: {line}", remedy="give an ONNX file") from exc
        anchors = card.anchors or json.loads(self._network.metadata.get(darknet.ANCHORS, "[]"))
        self._anchors = [np.array(each, np.float32) for each in anchors]
        names, shapes = zip(*self._network.inputs.items(), strict=True)
        shape = shapes[0]
        if len(shape) != 4 or shape[1] not in (3, "channels", None) or len(names) > 2:
            raise WeightsInvalid(
                f"{model}: its input is {list(shape)}, expected [1, 3, height, width]", remedy="give a detector"
            )
        self._fixed_wh = (shape[3], shape[2]) if isinstance(shape[2], int) and isinstance(shape[3], int) else None
        self._told_size = len(names) == 2
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
        inputs = (planes, np.array([size_wh], np.int64)) if self._told_size else (planes,)
        outputs = self._network(*inputs)
        if not all(np.isfinite(output).all() for output in outputs):
            raise KeyframeFailed(f"objects: {self.path.name} gave numbers that are not finite")
        boxes, scores = detections(outputs, size_wh, len(self.labels), self._anchors)
        boxes = boxes / share
        large = (boxes[:, 2:] - boxes[:, :2]).max(1) >= least
        return boxes[large], scores[large]

    def _planes(self, rgb: ByteArray, side_px: int) -> tuple[FloatArray, FloatArray]:
        """Return `[1, 3, h, w]`, and the shares of its width and height, twice, that the picture takes."""
        height, width = rgb.shape[:2]
        canvas_wh = self._fixed_wh
        scale = side_px / max(width, height)
        if self.card.stretched:
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
        planes = np.stack(cv2.split(canvas)).astype(np.float32)
        planes -= np.array(self.card.mean, np.float32).reshape(-1, 1, 1)
        planes *= np.array(self.card.scale, np.float32).reshape(-1, 1, 1)
        share = np.divide(wh * 2, canvas_wh * 2).astype(np.float32)
        return np.ascontiguousarray(planes[::-1] if self.card.bgr else planes)[None], share


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
