"""Flow from the motion vectors that the decoder already has, at a fraction of the cost of a search.

An encoder chooses vectors that are cheap to code, not true: confidence is therefore always checked against the picture.
FFmpeg exports vectors for H.264 and for the MPEG family (MPEG-1, -2, -4, H.263), skipped blocks included; HEVC, VP8,
VP9 and AV1 export none.

What the vectors do not tell: which frame they point to. FFmpeg gives "past" or "future" only, while with B-frames or
several references the frame meant may be four away. One scale for all past vectors of a frame, and one for all
future vectors, is therefore chosen as the one that explains the picture best. Blocks of the same frame that refer to
another distance come out wrong, and the check against the picture lowers their confidence. "Direct" blocks in B-frames
of MPEG-4 FFmpeg exports as vectors of zero: where a whole frame is said to be still and the picture clearly is not, no
place of it is trusted much.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from arr_stream.errors import InvalidSetting, MotionVectorsUnavailable
from arr_stream.motion.flow import Flow, FlowInput, base_grid, checked_flow, raster_hw
from arr_stream.types import ByteArray, FloatArray

# The smallest block that FFmpeg exports is 8x8.
_LATTICE_PX = 8
_FIELDS = frozenset({"source", "w", "h", "dst_x", "dst_y", "motion_x", "motion_y", "motion_scale"})
# A vector to a frame n frames back is n frames of motion; 2 stands for every other frame having been left out.
_PAST_SCALES = (1.0, 1 / 2, 1 / 3, 1 / 4, 2.0)
_FUTURE_SCALES = (-1.0, -1 / 2, -1 / 3, -2.0, -3.0)
# Another scale than the first must explain the picture better by this much: on near-still pictures all are alike.
_SCALE_GAIN = 0.97
_JUDGED_PLACES = 3000
# Trust before the check: a vector of the block's own; one to the future, reversed; a neighbour's; none in the frame.
_OWN, _REVERSED, _NEIGHBOUR, _NO_VECTORS = 1.0, 0.9, 0.3, 0.3
# A still picture leaves less than this unexplained on average.
_STILL_RESIDUAL = 0.1


class CodecFlow:
    """Motion vectors of `Frame.motion_vectors`, brought to the flow's raster.

    Blocks without a vector (coded as intra) take their neighbours' with little trust. A frame without any (an intra
    frame, one after a cut that the encoder did not mark, the last of an MPEG-2 or -4 file with B-frames) is taken as
    still, with little trust and none where the picture contradicts it.

    Args:
        raster_divisor: Flow is returned on the grey picture's size divided by this; 2 is a quarter of the texture.

    Raises:
        InvalidSetting: A divisor below 1.
    """

    def __init__(self, *, raster_divisor: int = 2) -> None:
        if raster_divisor < 1:
            raise InvalidSetting(f"raster_divisor={raster_divisor} is below 1", remedy="use a whole number from 1 on")
        self._divisor = raster_divisor
        self._seen_vectors = False

    def estimate(self, previous: FlowInput, present: FlowInput) -> Flow:
        """Backward flow on the raster, with photometric confidence.

        Raises:
            MotionVectorsUnavailable: An inter frame without vectors, before any frame had some.
            ValueError: The grey pictures differ in size, or the vectors lack a field.
        """
        if previous.grey.shape != present.grey.shape:
            raise ValueError(f"grey pictures differ in size: {previous.grey.shape} and {present.grey.shape}")
        hw = raster_hw(present.grey, self._divisor)
        pictures = previous.reduced(hw), present.reduced(hw)
        vectors = present.frame.motion_vectors
        if vectors is None or len(vectors) == 0:
            self._refuse_unless_intra(present)
            offset_px = np.zeros((*hw, 2), np.float32)
            trust = np.full(hw, _NO_VECTORS, np.float32)
        else:
            self._seen_vectors = True
            offset_px, trust = _rasterise(vectors, present.frame.size_wh, pictures)
        flow = checked_flow(*pictures, offset_px)
        if not offset_px.any() and float(flow.residual.mean()) > _STILL_RESIDUAL:
            trust = np.minimum(trust, np.float32(_NO_VECTORS))
        return replace(flow, confidence=cv2.multiply(flow.confidence, trust))

    def _refuse_unless_intra(self, present: FlowInput) -> None:
        """An inter frame may hold intra blocks alone (a cut), but only on a decoder that is known to export."""
        exports = self._seen_vectors or present.frame.motion_vectors is not None
        if not present.frame.intra and not exports:
            raise MotionVectorsUnavailable(
                f"frame {present.frame.index}: the decoder exports no motion vectors (H.264, H.263, MPEG-1, -2, -4 do)",
                remedy="use --set motion.flow=dis",
            )


def _rasterise(
    vectors: npt.NDArray[Any], size_wh: tuple[int, int], pictures: tuple[ByteArray, ByteArray]
) -> tuple[FloatArray, FloatArray]:
    """Vectors as `[h, w, 2]` flow on the pictures' raster, with `[h, w]` trust from where each came from."""
    missing = _FIELDS - set(vectors.dtype.names or ())
    if missing:
        raise ValueError(f"motion vectors lack the fields {sorted(missing)}")
    raster = (pictures[0].shape[0], pictures[0].shape[1])
    offset, known = _to_lattice(vectors, size_wh, (raster[1] / size_wh[0], raster[0] / size_wh[1]))
    judge = _Judge(pictures, size_wh)
    past, ahead = offset
    past *= np.float32(judge.best_scale(past, known[0], _PAST_SCALES))
    take = known[1] > known[0]
    if take.any():
        ahead *= np.float32(judge.best_scale(ahead, known[1], _FUTURE_SCALES))
        cv2.copyTo(ahead, take.view(np.uint8), past)
    have = np.maximum(known[0], known[1])
    # Sums of products of zeros and ones, because choosing by boolean masks costs more than all the rest.
    trust = _NEIGHBOUR + (_REVERSED - _NEIGHBOUR) * have + (_OWN - _REVERSED) * known[0]
    # The median of 3x3 removes single vectors that were cheap to code rather than true.
    smooth = cv2.merge([cv2.medianBlur(channel, 3) for channel in cv2.split(_fill(past, have))])
    lattice_map = _lattice_map(size_wh, raster, 1)
    return _from_lattice(smooth, lattice_map), _from_lattice(trust, lattice_map)


def _to_lattice(
    vectors: npt.NDArray[Any], size_wh: tuple[int, int], raster_per_source_xy: tuple[float, float]
) -> tuple[FloatArray, FloatArray]:
    """Vectors on a lattice of 8 source pixels, past and future apart.

    Returns:
        `[2, rows, columns, 2]` in pixels of the raster, and `[2, rows, columns]`, 1 where there was one.
    """
    rows, columns = -(-size_wh[1] // _LATTICE_PX), -(-size_wh[0] // _LATTICE_PX)
    heights, widths = vectors["h"].astype(np.int32), vectors["w"].astype(np.int32)
    # A margin takes what blocks at the right and lower border have outside the frame.
    margin = max(1, int(max(heights.max(), widths.max())) // _LATTICE_PX)
    shape = (2, rows + margin, columns + margin)
    # FFmpeg gives the middle of a block.
    top = np.clip((vectors["dst_y"] - heights // 2 + _LATTICE_PX // 2) // _LATTICE_PX, 0, rows - 1)
    left = np.clip((vectors["dst_x"] - widths // 2 + _LATTICE_PX // 2) // _LATTICE_PX, 0, columns - 1)
    corner = ((vectors["source"] > 0) * shape[1] + top) * shape[2] + left
    # One complex number is one store where two floats would be two.
    values = np.empty(len(vectors), np.complex64)
    parts = np.maximum(vectors["motion_scale"], 1).astype(np.float32)
    values.real = vectors["motion_x"] * np.float32(raster_per_source_xy[0]) / parts
    values.imag = vectors["motion_y"] * np.float32(raster_per_source_xy[1]) / parts
    lattice = np.zeros(shape, np.complex64)
    known = np.zeros(shape, np.float32)
    block = heights * 256 + widths
    for code in np.unique(block):
        group = np.flatnonzero(block == code)
        height, width = divmod(int(code), 256)
        for down in range(max(1, height // _LATTICE_PX)):
            for across in range(max(1, width // _LATTICE_PX)):
                place = corner[group] + (down * shape[2] + across)
                lattice.ravel()[place] = values[group]
                known.ravel()[place] = 1.0
    offset = lattice.view(np.float32).reshape(*shape, 2)[:, :rows, :columns]
    return np.ascontiguousarray(offset), np.ascontiguousarray(known[:, :rows, :columns])


class _Judge:
    """Finds how many frames vectors span, by which scale explains the picture best at some thousands of places."""

    def __init__(self, pictures: tuple[ByteArray, ByteArray], size_wh: tuple[int, int]) -> None:
        self._previous = pictures[0]
        raster = (pictures[0].shape[0], pictures[0].shape[1])
        step = max(1, round(math.sqrt(raster[0] * raster[1] / _JUDGED_PLACES)))
        self._base, self._lattice_map = _sparse_grid(raster, step), _lattice_map(size_wh, raster, step)
        self._present = np.ascontiguousarray(pictures[1][::step, ::step])

    def best_scale(self, offset: FloatArray, known: FloatArray, scales: tuple[float, ...]) -> float:
        """The best of `scales` for the vectors `[rows, columns, 2]` where `known`; the first if all are alike."""
        if not offset.any():
            return scales[0]
        offset_px = _from_lattice(offset, self._lattice_map)
        mask = cv2.compare(_from_lattice(known, self._lattice_map), 0.5, cv2.CMP_GT)
        best, best_cost = scales[0], math.inf
        for scale in scales:
            position = cv2.scaleAdd(offset_px, scale, self._base)
            warped = cv2.remap(self._previous, position, None, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
            cost = cv2.norm(warped, self._present, cv2.NORM_L1, mask)
            if cost < best_cost * _SCALE_GAIN:
                best, best_cost = scale, cost
        return best


def _fill(offset: FloatArray, known: FloatArray) -> FloatArray:
    """Places without a vector take the mean of those around them, from as near as there are any."""
    reach = 3
    while known.any() and not known.all():
        spread = cv2.blur(known, (reach, reach), borderType=cv2.BORDER_CONSTANT)
        # Places that are not known hold zero, so that the sum counts the others only.
        total = cv2.blur(offset, (reach, reach), borderType=cv2.BORDER_CONSTANT)
        rows, columns = np.nonzero((known == 0) & (spread > 1e-6))
        offset[rows, columns] = total[rows, columns] / spread[rows, columns, None]
        known[rows, columns] = 1.0
        reach = reach * 2 + 1
    return offset


@lru_cache(maxsize=16)
def _lattice_map(size_wh: tuple[int, int], raster_hw: tuple[int, int], step: int) -> FloatArray:
    """Where each `step`-th pixel of the raster lies on the lattice, `[h, w, 2]`; read-only."""
    width, height = size_wh
    to_lattice = np.array([width / raster_hw[1] / _LATTICE_PX, height / raster_hw[0] / _LATTICE_PX])
    positions: FloatArray = ((_sparse_grid(raster_hw, step) + 0.5) * to_lattice - 0.5).astype(np.float32)
    positions.flags.writeable = False
    return positions


@lru_cache(maxsize=16)
def _sparse_grid(raster_hw: tuple[int, int], step: int) -> FloatArray:
    """`(x, y)` of every `step`-th pixel of the raster, `[h, w, 2]`; read-only."""
    grid = base_grid(raster_hw)[::step, ::step].copy()
    grid.flags.writeable = False
    return grid


def _from_lattice(plane: FloatArray, lattice_map: FloatArray) -> FloatArray:
    brought: FloatArray = cv2.remap(plane, lattice_map, None, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    return brought
