"""Flow from the motion vectors that the decoder already has, at a fraction of the cost of a search.

An encoder chooses vectors that are cheap to code, not true: confidence is therefore always checked against the picture.
FFmpeg exports vectors for H.264 and for the MPEG family (MPEG-1, -2, -4, H.263), skipped blocks included; HEVC, VP8,
VP9 and AV1 export none.

What the vectors do not tell: which frame they point to. FFmpeg gives "past" or "future" only, while with B-frames or
several references the frame meant may be four away. One scale for all past vectors of a frame, and one for all
future vectors, is therefore chosen as the one that explains the picture best. Blocks of the same frame that refer to
another distance come out wrong, and the check against the picture lowers their confidence.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from arr_stream.errors import InvalidSetting, MotionVectorsUnavailable
from arr_stream.motion.flow import Flow, FlowInput, base_grid, photometric_check, raster_hw, to_raster
from arr_stream.types import ByteArray, FloatArray

# The smallest block that FFmpeg exports is 8x8.
_LATTICE_PX = 8
# A vector to a frame n frames back is n frames of motion; 2 stands for every other frame having been left out.
_PAST_SCALES = (1.0, 1 / 2, 1 / 3, 1 / 4, 2.0)
_FUTURE_SCALES = (-1.0, -1 / 2, -1 / 3, -2.0, -3.0)
# Another scale than the first must explain the picture better by this much: on near-still pictures all are alike.
_SCALE_GAIN = 0.97
# Trust before the check: a vector of the block's own; one to the future, reversed; a neighbour's; none in the frame.
_OWN, _REVERSED, _NEIGHBOUR, _NO_VECTORS = 1.0, 0.9, 0.3, 0.3


class CodecFlow:
    """Motion vectors of `Frame.motion_vectors`, brought to the flow's raster.

    Blocks without a vector (coded as intra) take their neighbours' with little trust. A frame without any (an intra
    frame, or one after a cut that the encoder did not mark) is taken as still, with little trust and none where the
    picture contradicts it.

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
        pictures = to_raster(previous.grey, hw), to_raster(present.grey, hw)
        vectors = present.frame.motion_vectors
        if vectors is None or len(vectors) == 0:
            self._refuse_unless_intra(present)
            offset_px = np.zeros((*hw, 2), np.float32)
            trust = np.full(hw, _NO_VECTORS, np.float32)
        else:
            self._seen_vectors = True
            offset_px, trust = _rasterise(vectors, present.frame.size_wh, pictures)
        confidence, residual = photometric_check(*pictures, offset_px)
        return Flow(offset_px, cv2.multiply(confidence, trust), residual, span_frames=1)

    def _refuse_unless_intra(self, present: FlowInput) -> None:
        """An inter frame may hold intra blocks alone (a cut), but only on a decoder that is known to export."""
        exports = self._seen_vectors or present.frame.motion_vectors is not None
        if not present.frame.intra and not exports:
            raise MotionVectorsUnavailable(
                f"frame {present.frame.index}: the decoder exports no motion vectors (H.264, H.263 and MPEG-1, -2, -4 do)",
                remedy="use --set motion.flow=dis",
            )


def _rasterise(
    vectors: npt.NDArray[Any], size_wh: tuple[int, int], pictures: tuple[ByteArray, ByteArray]
) -> tuple[FloatArray, FloatArray]:
    """Vectors as `[h, w, 2]` flow on the pictures' raster, with `[h, w]` trust from where each came from."""
    missing = {"source", "w", "h", "dst_x", "dst_y", "motion_x", "motion_y", "motion_scale"} - set(
        vectors.dtype.names or ()
    )
    if missing:
        raise ValueError(f"motion vectors lack the fields {sorted(missing)}")
    raster = (pictures[0].shape[0], pictures[0].shape[1])
    lattice_map = _lattice_map(size_wh, raster)
    scale_xy = raster[1] / size_wh[0], raster[0] / size_wh[1]
    past = vectors["source"] < 0
    offset, known = _to_lattice(vectors[past], size_wh, scale_xy)
    offset *= np.float32(_best_scale(offset, known, lattice_map, pictures, _PAST_SCALES))
    trust = known * np.float32(_OWN)
    if not past.all():
        ahead, ahead_known = _to_lattice(vectors[~past], size_wh, scale_xy)
        ahead *= np.float32(_best_scale(ahead, ahead_known, lattice_map, pictures, _FUTURE_SCALES))
        take = (known == 0) & (ahead_known > 0)
        offset[take] = ahead[take]
        trust[take] = _REVERSED
        known = np.maximum(known, ahead_known)
    trust[known == 0] = _NEIGHBOUR
    # The median of 3x3 removes single vectors that were cheap to code rather than true.
    smooth = cv2.merge([cv2.medianBlur(channel, 3) for channel in cv2.split(_fill(offset, known))])
    return _from_lattice(smooth, lattice_map), _from_lattice(trust, lattice_map)


def _to_lattice(
    vectors: npt.NDArray[Any], size_wh: tuple[int, int], scale_xy: tuple[float, float]
) -> tuple[FloatArray, FloatArray]:
    """Vectors on a lattice of 8 source pixels: `[rows, columns, 2]` in raster pixels, and 1 where there was one."""
    rows, columns = -(-size_wh[1] // _LATTICE_PX), -(-size_wh[0] // _LATTICE_PX)
    offset = np.zeros((rows, columns, 2), np.float32)
    known = np.zeros((rows, columns), np.float32)
    shape = vectors["h"].astype(np.int32) * 256 + vectors["w"]
    for code in np.unique(shape):
        group = vectors[shape == code]
        height, width = divmod(int(code), 256)
        # FFmpeg gives the middle of a block.
        top = (group["dst_y"].astype(np.int32) - height // 2 + _LATTICE_PX // 2) // _LATTICE_PX
        left = (group["dst_x"].astype(np.int32) - width // 2 + _LATTICE_PX // 2) // _LATTICE_PX
        step = np.maximum(group["motion_scale"], 1).astype(np.float32)
        values = np.stack([group["motion_x"] / step * scale_xy[0], group["motion_y"] / step * scale_xy[1]], axis=1)
        for down in range(max(1, height // _LATTICE_PX)):
            for across in range(max(1, width // _LATTICE_PX)):
                y, x = top + down, left + across
                fits = (y >= 0) & (y < rows) & (x >= 0) & (x < columns)
                offset[y[fits], x[fits]] = values[fits]
                known[y[fits], x[fits]] = 1.0
    return offset, known


def _best_scale(
    offset: FloatArray,
    known: FloatArray,
    lattice_map: FloatArray,
    pictures: tuple[ByteArray, ByteArray],
    scales: tuple[float, ...],
) -> float:
    """The scale under which the vectors explain the picture best, judged on every other row and column."""
    if not known.any():
        return scales[0]
    sparse = np.ascontiguousarray(lattice_map[::2, ::2])
    step_px = _from_lattice(offset, sparse)
    mask = cv2.compare(_from_lattice(known, sparse), 0.5, cv2.CMP_GT)
    base = np.ascontiguousarray(base_grid((pictures[0].shape[0], pictures[0].shape[1]))[::2, ::2])
    present = np.ascontiguousarray(pictures[1][::2, ::2])
    best, best_cost = scales[0], float("inf")
    for scale in scales:
        position = cv2.scaleAdd(step_px, scale, base)
        warped = cv2.remap(pictures[0], position, None, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
        cost = cv2.norm(warped, present, cv2.NORM_L1, mask)
        if cost < best_cost * (_SCALE_GAIN if best_cost < float("inf") else 1.0):
            best, best_cost = scale, cost
    return best


def _fill(offset: FloatArray, known: FloatArray) -> FloatArray:
    """Places without a vector take the mean of those around them, from as near as there are any."""
    reach = 3
    filled = offset
    weight = known
    while not weight.all() and weight.any():
        spread = cv2.blur(weight, (reach, reach), borderType=cv2.BORDER_CONSTANT)
        mean = cv2.blur(filled * weight[..., None], (reach, reach), borderType=cv2.BORDER_CONSTANT)
        new = (weight == 0) & (spread > 1e-6)
        filled = filled.copy()
        filled[new] = mean[new] / spread[new][:, None]
        weight = np.where(new, np.float32(1.0), weight)
        reach = reach * 2 + 1
    return filled


@lru_cache(maxsize=8)
def _lattice_map(size_wh: tuple[int, int], raster_hw: tuple[int, int]) -> FloatArray:
    """`[h, w, 2]`, where each pixel of the raster lies on the lattice; read-only."""
    positions = np.empty((*raster_hw, 2), np.float32)
    width, height = size_wh
    positions[..., 0] = (np.arange(raster_hw[1]) + 0.5) * (width / raster_hw[1] / _LATTICE_PX) - 0.5
    positions[..., 1] = ((np.arange(raster_hw[0]) + 0.5) * (height / raster_hw[0] / _LATTICE_PX) - 0.5)[:, None]
    positions.flags.writeable = False
    return positions


def _from_lattice(plane: FloatArray, lattice_map: FloatArray) -> FloatArray:
    brought: FloatArray = cv2.remap(plane, lattice_map, None, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    return brought
