"""Rules on how much co-located cells change from one frame to the next.

Frame difference; Efficient Video Sampling (Bagrov, Khvedchenia, Tymchenko et al., "Efficient Video Sampling: Pruning
Temporally Redundant Tokens for Faster VLM Inference", 2025, arXiv 2510.14624), as vLLM has it in
`vllm/multimodal/evs.py`; and Differential Token Drop of TimeChat-Online (Yao, Li, Wei et al., "TimeChat-Online: 80%
Visual Tokens are Naturally Redundant in Streaming Videos", 2025, arXiv 2504.17343), as its authors' `token_drop` has
it: against a threshold, or a share of every frame.
"""

from __future__ import annotations

from itertools import pairwise

import cv2
import numpy as np
import numpy.typing as npt

from arr_stream.selection.allocation import Allocation
from arr_stream.types import BoolArray, ByteArray, FloatArray
from benchmarks.rivals.base import PIXELS_A_CELL, Choose, Clip, Needs, Scores, kept_each, most_of
from benchmarks.rivals.spread import uniform

CosineArray = npt.NDArray[np.float64]

LEAST_NORM = 1e-8
"""Vectors shorter than this count as this long, as in torch's `cosine_similarity`."""

TIE_DECIMALS = 12
"""Cosines are rounded to this, so that cells which did not change at all are equal to the last bit."""

FIRST_FRAME = 255.0
"""Dissimilarity of the first frame's cells: more than any cosine can give, so that all are kept."""


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


def _change(clip: Clip, level: Needs) -> Scores:
    """`[T - 1, gh, gw]`, the higher the less alike."""
    return pixel_change(clip.rgb) if level == "pixels" else 1 - cosine_to_previous(clip.described)


def frame_difference(clip: Clip, tokens: int) -> list[Allocation]:
    """The cells whose lightness changed most since the frame before; exactly the budget on every frame.

    On the first frame, and where cells changed equally, they are evenly spread.
    """
    luma = np.stack([np.asarray(cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY), np.uint8) for picture in clip.rgb])
    return [uniform(clip.grid, tokens), *(most_of(change, tokens, clip.grid) for change in pixel_change(luma))]


def retained_tokens(cells: int, frames: int, pruning: float) -> int:
    """Return the number of a clip's cells that EVS keeps: the share rounded down, at least a whole frame.

    Args:
        cells: Number in a frame.
        frames: Number in the clip.
        pruning: Share to drop, in [0, 1).
    """
    return max(cells, int(cells * frames * (1 - pruning)))


def video_sampling(clip: Clip, tokens: int) -> list[Allocation]:
    """EVS as published.

    A cell's dissimilarity is 1 less the cosine of its feature with that of the same cell on the frame before. The first
    frame is kept whole, and of all later cells of the clip the most dissimilar, wherever they fall: a frame may get
    none. Ties go to the earlier frame, then to reading order. Its own rounding may leave one token of the clip unused.
    """
    later = _change(clip, "features")
    dissimilarity = np.concatenate([np.full_like(later, FIRST_FRAME, shape=(1, *later.shape[1:])), later])
    count = retained_tokens(clip.grid.cells, len(clip), 1 - tokens / clip.grid.cells)
    keep = np.zeros(dissimilarity.size, bool)
    keep[np.argsort(-dissimilarity.ravel(), kind="stable")[:count]] = True
    return kept_each(dissimilarity, keep.reshape(dissimilarity.shape))


def sampling_per_frame(clip: Clip, tokens: int) -> list[Allocation]:
    """Our variant of EVS for a stream: the same dissimilarity, the same number of cells on every frame.

    No later frame is needed, and none goes without. The first frame, and cells that are equally dissimilar, are evenly
    spread. Exactly the budget.
    """
    later = _change(clip, "features")
    return [uniform(clip.grid, tokens), *(most_of(frame, tokens, clip.grid) for frame in later)]


def differential_drop(level: Needs) -> Choose:
    """Cells are dropped that change less than a threshold; the first frame is kept whole.

    The change is the mean absolute difference of the cell's RGB in [0, 1] (`pixels`), or 1 less the cosine. The
    published threshold is fixed; this one comes nearest to the budget from below over the whole clip. Cells that change
    equally are kept or dropped together, so that tokens may be left over.
    """

    def choose(clip: Clip, tokens: int) -> list[Allocation]:
        later = _change(clip, level)
        falling, left = -np.sort(-later, axis=None), _left_for_later(tokens, clip)
        highest_dropped = float(falling[left]) if left < len(falling) else -np.inf
        return _with_first(clip, later, later > highest_dropped)

    return choose


def relative_drop(clip: Clip, tokens: int) -> list[Allocation]:
    """The authors' other mode: of every frame after the first the same share is dropped, the cells most like before.

    The share is set so that the clip meets the budget with its first frame whole, and nothing else of later frames is
    looked at. Rounded down on each frame; ties are dropped in reading order.
    """
    later = _change(clip, "features")
    dropped = clip.grid.cells - _left_for_later(tokens, clip) // max(len(later), 1)
    keep = np.ones((len(later), clip.grid.cells), bool)
    most_alike_first = np.argsort(later.reshape(keep.shape), axis=1, kind="stable")
    np.put_along_axis(keep, most_alike_first[:, :dropped], False, axis=1)
    return _with_first(clip, later, keep.reshape(later.shape))


def _left_for_later(tokens: int, clip: Clip) -> int:
    """Cells of the budget that the first frame leaves."""
    return max(0, tokens * len(clip) - clip.grid.cells)


def _with_first(clip: Clip, later: Scores, keep: BoolArray) -> list[Allocation]:
    whole = np.ones((clip.grid.rows, clip.grid.columns), bool)
    return kept_each([whole.astype(np.float32), *later], [whole, *keep])
