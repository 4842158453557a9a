"""How much co-located cells change from one frame to the next, and the plainest rule over it: frame difference."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import cv2
import numpy as np
import numpy.typing as npt

from arr_stream.selection.allocation import Allocation
from arr_stream.types import ByteArray, FloatArray
from benchmarks.cell_choices import uniform
from benchmarks.rivals.base import PIXELS_A_CELL, Clip, Needs, check_tokens, most_of

CosineArray = npt.NDArray[np.float64]

LEAST_NORM = 1e-8
"""Vectors shorter than this count as this long, as in torch's `cosine_similarity`."""

TIE_DECIMALS = 12
"""Cosines are rounded to this, so that cells which did not change at all are equal to the last bit."""


def cosine_to_previous(features: FloatArray) -> CosineArray:
    """`[T - 1, gh, gw]` cosine of each cell's vector with that of the same cell on the frame before.

    Args:
        features: `[T, gh, gw, D]`; a vector of zeros has a cosine of 0 with everything.
    """
    similarity = np.zeros((len(features) - 1, *features.shape[1:3]))
    before, before_norm = _with_norm(features[0])
    for index, frame in enumerate(features[1:]):
        now, now_norm = _with_norm(frame)
        similarity[index] = np.einsum("rcd,rcd->rc", before, now) / (before_norm * now_norm)
        before, before_norm = now, now_norm
    return similarity.round(TIE_DECIMALS)


def _with_norm(frame: FloatArray) -> tuple[CosineArray, CosineArray]:
    vectors = frame.astype(np.float64)
    return vectors, np.maximum(np.linalg.norm(vectors, axis=-1), LEAST_NORM)


def pixel_change(rgb: ByteArray) -> FloatArray:
    """`[T - 1, gh, gw]` mean absolute difference of each cell's pixels to the frame before, in [0, 1].

    Args:
        rgb: `[T, gh * 16, gw * 16]`, with or without channels.
    """
    rows, columns = rgb.shape[1] // PIXELS_A_CELL, rgb.shape[2] // PIXELS_A_CELL
    change = np.zeros((len(rgb) - 1, rows, columns), np.float32)
    for index, (before, now) in enumerate(pairwise(rgb)):
        tiles = np.asarray(cv2.absdiff(now, before)).reshape(rows, PIXELS_A_CELL, columns, -1)
        change[index] = tiles.mean(axis=(1, 3), dtype=np.float64) / 255
    return change


@dataclass(frozen=True, slots=True)
class FrameDifference:
    """The cells whose lightness changed most since the frame before; exactly the budget on every frame.

    On the first frame, and where cells changed equally, they are evenly spread.
    """

    name: str = "frame difference"
    needs: Needs = "pixels"
    causal: bool = True

    def choose(self, clip: Clip, tokens: int) -> list[Allocation]:
        """See `Rule`."""
        check_tokens(clip.grid, tokens)
        luma = np.stack([np.asarray(cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY), np.uint8) for picture in clip.rgb])
        later = [most_of(change, tokens, clip.grid) for change in pixel_change(luma)]
        return [uniform(clip.grid, tokens), *later]
