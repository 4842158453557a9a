"""Text by RapidOCR (PaddleOCR's models on onnxruntime), with the weights inside its wheel.

The detector is a segmentation network (Liao, Wan, Yao, Chen and Bai, "Real-time Scene Text Detection with
Differentiable Binarization", AAAI 2020); the reader gives probabilities of all signs from left to right, decoded by CTC
(Graves, Fernández, Gomez and Schmidhuber, "Connectionist Temporal Classification", ICML 2006). Thresholds and input
sizes are RapidOCR's. Its own pipeline gives the same boxes, but loads for two seconds, twenty times as long as the
network.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

from arr_stream.errors import BackendUnavailable
from arr_stream.keyframes.base import TEXT_READ, KeyframeInput, TextFinding, resized
from arr_stream.keyframes.network import Network
from arr_stream.keyframes.text.regions import believed, detect_wh, finding, region_of, straightened
from arr_stream.types import ByteArray, FloatArray, TextRegion

DETECT_SIDE_PX = 640
"""Long side of the detector's input. On the ten ICDAR photos, 640 px find 14 of 21 words in 0.09 s, 1280 px 16
in 0.37 s with half the precision."""

LEAST_SCORE = 0.3
"""Least mean probability of a box that is read."""

_TEXT_FROM = 0.3
"""Least probability of a pixel in a text kernel."""
_MOST_KERNELS = 1000
_LEAST_KERNEL_PX, _LEAST_BOX_PX = 3, 5
_GROWTH = 1.6
"""Growth of a kernel (shrunken text) to its box, in units of area over circumference."""
_LINE_PX = 10
"""Vertical distance of upper corners below which two consecutive boxes share a line."""

_HEIGHT_PX = 48
_LEAST_WIDTH_PX, _MOST_WIDTH_PX = 96, 2048
"""Size of the reader's input."""

_FAINTEST = 1e-3
"""Probability at or below which a place gives no hint."""
_NEAR = np.ones((25, 25), np.uint8)
_LEAST_CONTRAST = 6
"""Least difference, in grey levels, between the lightest and the darkest pixel near a place."""

_REMEDY = "run `pip install rapidocr onnxruntime`, or set keyframes.text=none"


class RapidOcrFinder:
    """Text finder that keeps only readable text. Models are loaded on first use.

    Args:
        threads: Threads for onnxruntime; None leaves the choice to it.

    Raises:
        BackendUnavailable: rapidocr or onnxruntime is missing, or the models are not inside the package.
    """

    name = "rapidocr"

    def __init__(self, *, threads: int | None = None) -> None:
        self._threads = threads
        self._models = {part: _model(part) for part in ("det", "rec")}
        if importlib.util.find_spec("onnxruntime") is None:
            raise BackendUnavailable("text rapidocr needs onnxruntime", remedy=_REMEDY)

    def find(self, picture: KeyframeInput) -> TextFinding:
        rgb = picture.frame.rgb
        regions, hints = self.search(rgb, DETECT_SIDE_PX)
        return finding(picture, self.read(rgb, regions), hints)

    def search(
        self, rgb: ByteArray, side_px: float, least_score: float = LEAST_SCORE
    ) -> tuple[list[TextRegion], FloatArray]:
        """Return the unread regions of a picture, and the text-likeness `[h, w]` of its places.

        Args:
            rgb: The picture.
            side_px: Its long side in the detector's input.
            least_score: Regions with a lower mean probability are dropped.
        """
        size_wh = detect_wh((rgb.shape[1], rgb.shape[0]), side_px)
        seen = resized(rgb, size_wh)
        probability = text_probability(_network(self._models["det"], self._threads), seen)
        found = boxes_of(probability, least_score)
        return [region_of(corners, size_wh, score) for corners, score in found], _hints_of(probability, seen)

    def read(self, rgb: ByteArray, regions: Iterable[TextRegion]) -> list[TextRegion]:
        """Return the readable regions with their words."""
        network = _network(self._models["rec"], self._threads)
        return believed((region, _read_line(network, straightened(rgb, region))) for region in regions)


# All finders of the process share the models, since loading takes longer than a detection.
@lru_cache(maxsize=4)
def _network(model: Path, threads: int | None) -> Network:
    return Network(model, threads)


def _model(part: str) -> Path:
    """Return the file of a part's weights inside the package, without importing the package."""
    package = importlib.util.find_spec("rapidocr")
    if package is None or package.origin is None:
        raise BackendUnavailable("text rapidocr needs rapidocr", remedy=_REMEDY)
    models = Path(package.origin).parent / "models"
    found = sorted(models.glob(f"*_{part}_*.onnx"))
    if not found:
        raise BackendUnavailable(
            f"text rapidocr: no {part} model in {models}", remedy="run `pip install --force-reinstall rapidocr`"
        )
    return found[0]


def text_probability(detector: Network, rgb: ByteArray) -> FloatArray:
    """Return `[h, w]` for a picture `[h, w, 3]` with sides that are multiples of 32."""
    probability: FloatArray = detector(_planes(rgb))[0][0, 0]
    return probability


def _planes(rgb: ByteArray) -> FloatArray:
    """Return the input of both networks: `[1, 3, h, w]` in [-1, 1], blue first."""
    return np.asarray(cv2.dnn.blobFromImage(rgb, 2 / 255, mean=(127.5, 127.5, 127.5), swapRB=True), np.float32)


def _hints_of(probability: FloatArray, rgb: ByteArray) -> FloatArray:
    """Return text-likeness in [0, `TEXT_READ`] from the order of magnitude of a detector's probability.

    Where the picture `rgb`, of the same size, is uniform, the result is the lowest for any probability.

    Text without a detected box is still mostly among the most probable places: of the legible words on the ten photos
    of ICDAR 2015, 3 of 21 are not found at 640 px, and those lie within the first 147 of 880 cells.
    """
    orders = np.log10(np.maximum(probability, _FAINTEST), dtype=np.float32)
    grey = cv2.cvtColor(rgb, cv2.COLOR_RGB2GRAY)
    contrast = cv2.morphologyEx(grey, cv2.MORPH_GRADIENT, _NEAR)
    orders[contrast < _LEAST_CONTRAST] = np.log10(_FAINTEST)
    return np.asarray(TEXT_READ * (1 - orders / np.log10(_FAINTEST, dtype=np.float32)), dtype=np.float32).clip(
        0, TEXT_READ
    )


def boxes_of(probability: FloatArray, least_score: float) -> list[tuple[FloatArray, float]]:
    """Return the corners `[4, 2]` of each box in pixels, clockwise from the upper left, and its mean probability.

    Args:
        probability: `[h, w]`.
        least_score: Boxes with a lower mean are dropped.

    Returns:
        Boxes from top to bottom, and from left to right on a line.
    """
    # Kernels that nearly touch are one.
    kernels = cv2.dilate((probability > _TEXT_FROM).astype(np.uint8), np.ones((2, 2), np.uint8))
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
    return _by_line(found)


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


def _read_line(reader: Network, line: ByteArray) -> tuple[str, float]:
    """Return the text of an upright line `[h, w, 3]` and its signs' mean probability; empty and 0 if none."""
    height, width = line.shape[:2]
    width_px = min(max(1, math.ceil(_HEIGHT_PX * width / height)), _MOST_WIDTH_PX)
    planes = _planes(np.asarray(cv2.resize(line, (width_px, _HEIGHT_PX), interpolation=cv2.INTER_LINEAR), np.uint8))
    room = max(0, _LEAST_WIDTH_PX - width_px)
    probability = reader(np.pad(planes, ((0, 0), (0, 0), (0, 0), (0, room))))[0][0]
    likeliest = probability.argmax(axis=1)
    # The first sign is the blank that separates repeated signs.
    signs = (likeliest != 0) & (np.diff(likeliest, prepend=0) != 0)
    if not signs.any():
        return "", 0.0
    return "".join(_alphabet(reader)[likeliest[signs]]).strip(), float(probability.max(axis=1)[signs].mean())


@lru_cache(maxsize=2)
def _alphabet(reader: Network) -> npt.NDArray[np.str_]:
    return np.array(["", *reader.metadata["character"].split("\n"), " "])
