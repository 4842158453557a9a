"""VidCom2: frames unlike the video get more tokens, and of each frame the cells least like it and the video are kept.

Liu, Wang, Ma and Zhang, "Video Compression Commander: Plug-and-Play Inference Acceleration for Video Large Language
Models", EMNLP 2025 (arXiv 2505.14454), as its authors' `vidcom2_compression` has it, brought to an exact number of
tokens as vLLM does in `vllm/multimodal/video_prune/vidcom2.py`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from arr_stream.selection.allocation import Allocation
from arr_stream.types import BoolArray, FloatArray, IntArray
from benchmarks.rivals.base import Clip, kept_each

Array = npt.NDArray[np.float64]

CHANNEL_SHARE = 0.5
WIDTHS = tuple(2.0**power for power in range(-3, 2))
"""Of the Gaussian kernels: `exp(-distance^2 / (2 * width))`."""
TEMPERATURE = 0.01
LEAST_NORM = 1e-12


def vidcom2(clip: Clip, tokens: int) -> list[Allocation]:
    """The rule as published, in its steps.

    1. Only the half of the channels that varies least over the clip's cells counts; each cell's vector is then brought
       to unit length.
    2. A cell's likeness to the video, and to its frame, is a sum of Gaussian kernels of its distance to the mean
       vector.
    3. A frame's uniqueness is its cells' mean likeness to the video, negative; a softmax over the frames moves the even
       share of tokens towards the unique ones. Each frame gets at least one and at most all of its cells.
    4. Of each frame the cells that are least like video and frame together are kept.
    5. What rounding left over or took too much is evened out over the clip, by the same likeness. This is vLLM's; the
       authors' code leaves the number where rounding puts it.

    Exactly the budget; ties in reading order.
    """
    to_video, to_frame = likeness(clip.described)
    both = to_video + to_frame
    counts = frame_tokens(-to_video.mean(axis=1), tokens, clip.grid.cells)
    keep = np.zeros(both.shape, bool)
    for frame, likeliest_last, count in zip(keep, np.argsort(both, axis=1, kind="stable"), counts, strict=True):
        frame[likeliest_last[:count]] = True
    even_out(keep, both, tokens * len(clip))
    shape = (len(clip), clip.grid.rows, clip.grid.columns)
    return kept_each((-both).reshape(shape), keep.reshape(shape))


def likeness(features: FloatArray) -> tuple[Array, Array]:
    """Return every cell's similarity to the video, and to its own frame.

    Args:
        features: `[T, gh, gw, D]`.

    Returns:
        Two of `[T, cells]`, each in (0, 5]: 5 is the mean vector itself.
    """
    channels = low_variance_channels(features)
    frames = features.reshape(len(features), -1, features.shape[-1])
    units = np.stack([_unit(frame[:, channels]) for frame in frames])
    frame_centres = units.mean(axis=1, dtype=np.float64)
    video_centre = frame_centres.mean(axis=0)
    to_video = np.stack([_gaussians(cells, video_centre) for cells in units])
    to_frame = np.stack([_gaussians(cells, centre) for cells, centre in zip(units, frame_centres, strict=True)])
    return to_video, to_frame


def low_variance_channels(features: FloatArray) -> npt.NDArray[np.int64]:
    """Indices of the half of the channels, rounded down but at least one, that varies least over all cells."""
    channels = features.shape[-1]
    mean = features.mean(axis=(0, 1, 2), dtype=np.float64)
    # Frame by frame, since a clip of features in double precision may not fit.
    variance = np.sum([((frame - mean) ** 2).sum(axis=(0, 1)) for frame in features], axis=0)
    return np.argsort(variance, kind="stable")[: max(1, int(channels * CHANNEL_SHARE))]


def _unit(vectors: FloatArray) -> FloatArray:
    norm = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    units: FloatArray = (vectors / np.maximum(norm, LEAST_NORM)).astype(np.float32)
    return units


def _gaussians(vectors: FloatArray, centre: Array) -> Array:
    squared = ((vectors - centre) ** 2).sum(axis=1)
    total: Array = np.sum([np.exp(-squared / (2 * width)) for width in WIDTHS], axis=0)
    return total


def frame_tokens(uniqueness: Array, tokens: int, cells: int) -> IntArray:
    """`[T]` cells that each frame may keep.

    Args:
        uniqueness: `[T]`, of each frame.
        tokens: Of the budget, a frame.
        cells: Of a frame.
    """
    raised = np.exp((uniqueness - uniqueness.max()) / TEMPERATURE)
    share = raised / raised.sum()
    ratio = np.minimum(tokens / cells * (1 + share - share.mean()), 1.0)
    counts: IntArray = np.clip(np.rint(ratio * cells), 1, cells).astype(np.int32)
    return counts


def even_out(keep: BoolArray, likeness: Array, wanted: int) -> None:
    """Change a mask in place until it has so many cells: the likest go first, the least like are added first."""
    excess = int(keep.sum()) - wanted
    pool = np.flatnonzero(keep if excess > 0 else ~keep)
    order = np.argsort((-1 if excess > 0 else 1) * likeness.ravel()[pool], kind="stable")
    keep.reshape(-1)[pool[order[: abs(excess)]]] = excess <= 0
