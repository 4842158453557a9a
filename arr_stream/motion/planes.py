"""Channels 13 to 39: keyframe results and temporal state as planes of the texture, carried on access."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np
import numpy.typing as npt

from arr_stream.motion.flow import Flow, carry
from arr_stream.texture.array import DeferredPlane, LazyPlane, Plane
from arr_stream.texture.arrays import Array, as_float, as_index, at_least, constant, namespace, sums_by, zeros
from arr_stream.texture.layout import CHANNEL_INDEX, EMBEDDING
from arr_stream.types import DetectedObject

TEXT = CHANNEL_INDEX["text"]
HISTORY = EMBEDDING.stop


@dataclass(frozen=True, slots=True, eq=False)
class CarriedPlane:
    """Channels of an earlier frame, carried to this one on first access.

    Args:
        first: Index of the first channel.
        data: `[C, h, w]` on the earlier frame.
        flow: Backward flow to it.
        outside: Value of content from outside it; None continues the border.
    """

    first: int
    data: Array
    flow: Flow
    outside: float | None = None

    def made(self) -> Plane:
        return Plane(self.first, carry(self.data, self.flow, outside=self.outside))


def region_planes(
    labels: Callable[[], Array], flow: Flow, objects: Callable[[], Sequence[DetectedObject]] = tuple
) -> dict[int, LazyPlane]:
    """Return channels 13, 14, 15 and 17, which all follow from the regions' ids, carried once.

    A detected object is a region of its own, over the clusters that it covers.

    Args:
        labels: Gives `[h, w]` int32 ids on the earlier frame.
        flow: Backward flow to it.
        objects: Gives the objects on this frame; track n has the id h * w - n, modulo h * w / 2.
    """

    @cache
    def ids() -> Array:
        carried = carry(labels(), flow, nearest=True)
        hw = carried.shape[0], carried.shape[1]
        found = sorted(objects(), key=lambda each: each.score)
        if found:
            carried = carried + 0  # a frame without motion shares its ids with the keyframe
        for each in found:
            carried[each.samples(hw)] = hw[0] * hw[1] - 1 - (each.track - 1) % (hw[0] * hw[1] // 2)
        return carried

    def plane(name: str, make: Callable[[Array], Array]) -> DeferredPlane:
        return DeferredPlane(CHANNEL_INDEX[name], lambda: make(ids())[None])

    planes = (
        plane("cluster", lambda labels: labels),
        plane("centroid_distance", centroid_distance),
        plane("cluster_size", cluster_size),
        plane("boundary", boundaries),
    )
    return {each.first: each for each in planes}


def centroid_distance(labels: Array) -> Array:
    """Return `[h, w]`: distance of each place from its region's centroid, over the diagonal.

    Args:
        labels: `[h, w]` int32 ids, each below `h * w`; not necessarily without gaps.
    """
    hw, xp = (labels.shape[0], labels.shape[1]), namespace(labels)
    flat = labels.reshape(-1)
    sizes = at_least(sums_by(flat, None, hw[0] * hw[1]), 1)
    off_x, off_y = (
        places - (sums_by(flat, places, hw[0] * hw[1]) / sizes)[as_index(flat)]
        for places in (constant(labels, _places, hw, axis) for axis in (1, 0))
    )
    return as_float((xp.hypot(off_x, off_y) / math.hypot(*hw)).reshape(hw))


@lru_cache(maxsize=16)
def _places(hw: tuple[int, int], axis: int) -> npt.NDArray[np.float64]:
    """Return `[h * w]`: row (axis 0) or column of each place."""
    return np.divmod(np.arange(hw[0] * hw[1]), hw[1])[axis].astype(np.float64)


def cluster_size(labels: Array) -> Array:
    """Return `[h, w]`: share of the frame that each place's region covers."""
    count = labels.shape[0] * labels.shape[1]
    return as_float(sums_by(labels.reshape(-1), None, count) / count)[as_index(labels)]


def boundaries(labels: Array) -> Array:
    """Return `[h, w]`: 1 where a neighbour to the right or below belongs to another region."""
    edge = zeros(labels, (labels.shape[0], labels.shape[1]))
    edge[:, :-1] = as_float(labels[:, :-1] != labels[:, 1:])
    edge[:-1] = namespace(labels).maximum(edge[:-1], as_float(labels[:-1] != labels[1:]))
    return edge
