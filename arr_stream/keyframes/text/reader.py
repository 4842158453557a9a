"""Text recognition of a line: a network on onnxruntime, with CTC decoding.

The network gives probabilities of all signs from left to right; the likeliest at each step, repetitions and the blank
between two signs left out, spell the line (Graves, Fernández, Gomez and Schmidhuber, "Connectionist Temporal
Classification", ICML 2006). The weights and the size of their input are those of RapidOCR.
"""

from __future__ import annotations

import math
from pathlib import Path

import cv2
import numpy as np

from arr_stream.keyframes.network import Network
from arr_stream.types import ByteArray

_HEIGHT_PX = 48
_LEAST_WIDTH_PX, _MOST_WIDTH_PX = 96, 2048
_BLANK = 0


class TextReader:
    """Reader of text lines.

    Args:
        model: ONNX file, `[1, 3, 48, w]` in [-1, 1] (blue first) to `[1, t, signs]` probabilities; its metadata spell
            the signs.
        threads: For onnxruntime; None for one a core.
    """

    def __init__(self, model: Path, threads: int | None = None) -> None:
        self._network = Network(model, threads)
        self._signs = np.array(["", *self._network.metadata["character"].split("\n"), " "])

    def read(self, line: ByteArray) -> tuple[str, float]:
        """Return the text of an upright line `[h, w, 3]` and its signs' mean probability; empty and 0 if none."""
        height, width = line.shape[:2]
        width_px = min(max(1, math.ceil(_HEIGHT_PX * width / height)), _MOST_WIDTH_PX)
        scaled = cv2.resize(line, (width_px, _HEIGHT_PX), interpolation=cv2.INTER_LINEAR)
        planes = cv2.dnn.blobFromImage(scaled, 2 / 255, mean=(127.5, 127.5, 127.5), swapRB=True)
        room = max(0, _LEAST_WIDTH_PX - width_px)
        probability = self._network(np.pad(planes, ((0, 0), (0, 0), (0, 0), (0, room))))[0][0]
        likeliest = probability.argmax(axis=1)
        signs = (likeliest != _BLANK) & (np.diff(likeliest, prepend=_BLANK) != 0)
        if not signs.any():
            return "", 0.0
        return "".join(self._signs[likeliest[signs]]).strip(), float(probability.max(axis=1)[signs].mean())
