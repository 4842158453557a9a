"""Where something is written: a segmentation network with its boxes, run on onnxruntime alone.

After Liao, Wan, Yao, Chen and Bai, "Real-time Scene Text Detection with Differentiable Binarization" (AAAI 2020), with
the weights and the thresholds of RapidOCR. RapidOCR's own pipeline finds the same boxes, but takes two seconds to be
loaded, twenty times as long as the network.
"""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

from arr_stream.processes import usable_cores
from arr_stream.types import ByteArray, FloatArray

# onnxruntime reports each session to its maker, unless this is set before it is loaded.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

_TEXT_FROM = 0.3
"""Probability from which a place belongs to a kernel of text."""
_MOST_KERNELS = 1000
_LEAST_KERNEL_PX, _LEAST_BOX_PX = 3, 5
_GROWTH = 1.6
"""A kernel is text shrunk on all sides; its box grows by so many times area over circumference."""
_LINE_PX = 10
"""Boxes whose upper corners are less apart than this, from one to the next below, stand on one line."""
_JOINED = np.ones((2, 2), np.uint8)


class TextDetector:
    """Finds boxes around lines of text.

    Args:
        model: ONNX file, `[1, 3, h, w]` in [-1, 1] (blue first) to `[1, 1, h, w]` probabilities.
        threads: For onnxruntime; None for one a core.
    """

    def __init__(self, model: Path, threads: int | None = None) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        # It counts the caller's thread, which `_run` leaves idle.
        options.intra_op_num_threads = (threads or usable_cores()) + 1
        options.add_session_config_entry("session.set_denormal_as_zero", "1")
        # Threads that wait by spinning take their cores from the frames.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        # A process's first session sets that for the thread that makes it, too: here, one that ends.
        with ThreadPoolExecutor(1) as thread:
            self._session = thread.submit(
                onnxruntime.InferenceSession, str(model), options, providers=["CPUExecutionProvider"]
            ).result()
        self._input = self._session.get_inputs()[0].name

    def boxes(self, rgb: ByteArray, least_score: float) -> list[tuple[FloatArray, float]]:
        """Corners `[4, 2]` of each box in pixels, from the upper left one clockwise, with its mean probability.

        Args:
            rgb: `[h, w, 3]`, both sides multiples of 32.
            least_score: Boxes below it do not count.

        Returns:
            Line by line from above, each from the left.
        """
        planes = cv2.dnn.blobFromImage(rgb, 2 / 255, mean=(127.5, 127.5, 127.5), swapRB=True)
        return _by_line(_boxes(self._run(planes)[0, 0], least_score))

    def _run(self, planes: FloatArray) -> FloatArray:
        """The network's output, made by onnxruntime's own threads.

        Much of what the last layers multiply is so small that a processor takes 50 times as long over it as over other
        numbers, unless it may call it zero: a state of each thread, which onnxruntime sets for its own.
        """
        outcome: Future[FloatArray] = Future()

        def tell(outputs: list[FloatArray], _: object, error: str) -> None:
            if error:
                outcome.set_exception(RuntimeError(error))
            else:
                outcome.set_result(outputs[0])

        self._session.run_async(None, {self._input: planes}, tell, None)
        try:
            return outcome.result()
        finally:
            # Whoever is interrupted must not leave the interpreter while a thread comes back to it.
            wait([outcome])


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
    """Mean of the probabilities inside a quadrilateral."""
    height, width = probability.shape
    low = np.clip(np.floor(corners.min(axis=0)).astype(int), 0, (width - 1, height - 1))
    high = np.clip(np.ceil(corners.max(axis=0)).astype(int), 0, (width - 1, height - 1)) + 1
    part = probability[low[1] : high[1], low[0] : high[0]]
    mask = np.zeros(part.shape, np.uint8)
    cv2.fillPoly(mask, [(corners - low).astype(np.int32)], 1)
    return float(cv2.mean(part, mask)[0])


def _corners(box: tuple[tuple[float, float], tuple[float, float], float], hw: tuple[int, ...]) -> FloatArray:
    """`[4, 2]` from the upper left one clockwise, within the picture."""
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
