"""Text detector: a segmentation network and its boxes, on onnxruntime.

After Liao, Wan, Yao, Chen and Bai, "Real-time Scene Text Detection with Differentiable Binarization" (AAAI 2020), with
the weights and the thresholds of RapidOCR. RapidOCR's own pipeline finds the same boxes, but loads for two
seconds, twenty times as long as the network.
"""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

from arr_stream.keyframes.network import Network
from arr_stream.types import ByteArray, FloatArray

_TEXT_FROM = 0.3
"""Least probability of a pixel in a text kernel."""
_MOST_KERNELS = 1000
_LEAST_KERNEL_PX, _LEAST_BOX_PX = 3, 5
_GROWTH = 1.6
"""Growth of a kernel (shrunken text) to its box, in units of area over circumference."""
_LINE_PX = 10
"""Vertical distance of upper corners below which two consecutive boxes share a line."""
_JOINED = np.ones((2, 2), np.uint8)


class TextDetector:
    """Detector of text probability; `boxes_of` derives the boxes of lines.

    Args:
        model: ONNX file, `[1, 3, h, w]` in [-1, 1] (blue first) to `[1, 1, h, w]` probabilities.
        threads: For onnxruntime; None for one a core.
    """

    def __init__(self, model: Path, threads: int | None = None) -> None:
        self._network = Network(model, threads)

    def probability(self, rgb: ByteArray) -> FloatArray:
        """Return `[h, w]` for a picture `[h, w, 3]` with sides that are multiples of 32."""
        planes = cv2.dnn.blobFromImage(rgb, 2 / 255, mean=(127.5, 127.5, 127.5), swapRB=True)
        plane: FloatArray = self._network(planes)[0][0, 0]
        return plane


def boxes_of(probability: FloatArray, least_score: float) -> list[tuple[FloatArray, float]]:
    """Return the corners `[4, 2]` of each box in pixels, clockwise from the upper left, and its mean probability.

    Args:
        probability: `[h, w]`.
        least_score: Boxes with a lower mean are dropped.

    Returns:
        Boxes from top to bottom, and from left to right on a line.
    """
    return _by_line(_boxes(probability, least_score))


def _boxes(probability: FloatArray, least_score: float) -> list[tuple[FloatArray, float]]:
    # Kernels that nearly touch are one.
    kernels = cv2.dilate((probability > _TEXT_FROM).astype(np.uint8), _JOINED)
    outlines, _ = cv2.findContours(kernels, cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)
    found = []
    for outline in outlines[:_MOST_KERNELS]:
        centre, (across, down), angle = cv2.minAreaRect(outline)
        if min(across, down) < _LEAST_KERNEL_PX:
            continue
        score = _mean_within(probability, cv2.boxPoints((centre, (across, down), angle)))
        if score < least_score:
            continue
        grown = 2 * _GROWTH * across * down / (2 * (across + down))
        if min(across, down) + grown < _LEAST_BOX_PX:
            continue
        found.append((_corners((centre, (across + grown, down + grown), angle), probability.shape), score))
    return found


def _mean_within(probability: FloatArray, corners: FloatArray) -> float:
    """Return the mean probability inside a quadrilateral."""
    height, width = probability.shape
    low = np.clip(np.floor(corners.min(axis=0)).astype(int), 0, (width - 1, height - 1))
    high = np.clip(np.ceil(corners.max(axis=0)).astype(int), 0, (width - 1, height - 1)) + 1
    part = probability[low[1] : high[1], low[0] : high[0]]
    mask = np.zeros(part.shape, np.uint8)
    cv2.fillPoly(mask, [(corners - low).astype(np.int32)], 1)
    return float(cv2.mean(part, mask)[0])


def _corners(box: tuple[tuple[float, float], tuple[float, float], float], hw: tuple[int, ...]) -> FloatArray:
    """Return `[4, 2]`, clockwise from the upper left corner, clipped to the picture."""
    corners = cv2.boxPoints(box).clip(0, (hw[1] - 1, hw[0] - 1))
    left, right = np.split(corners[np.argsort(corners[:, 0], kind="stable")], 2)
    (upper_left, lower_left), (upper_right, lower_right) = (
        side[np.argsort(side[:, 1], kind="stable")] for side in (left, right)
    )
    return np.stack([upper_left, upper_right, lower_right, lower_left]).astype(np.float32)


def _by_line(boxes: list[tuple[FloatArray, float]]) -> list[tuple[FloatArray, float]]:
    if not boxes:
        return []
    x, y = np.array([corners[0] for corners, _ in boxes]).T
    downwards = np.argsort(y, kind="stable")
    line: npt.NDArray[np.int64] = np.cumsum(np.diff(y[downwards], prepend=y[downwards[0]]) >= _LINE_PX)
    return [boxes[index] for index in downwards[np.lexsort((x[downwards], line))]]
