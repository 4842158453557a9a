"""Channels 13 to 39: keyframe results and temporal state as planes of the texture, carried on access."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from arr_stream.motion.carry import carry
from arr_stream.motion.flow import Flow
from arr_stream.texture.array import LazyPlane, Plane
from arr_stream.texture.arrays import Array, as_float, as_index, at_least, constant, enlarged, namespace, sums_by, zeros
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


@dataclass(frozen=True, slots=True, eq=False)
class PreviousPlane:
    """Channels 34 and 35: relevance and saliency of the previous frame, carried on access.

    Args:
        relevance: `[gh, gw]` of that frame's cells.
        saliency: `[h, w]` of it, at an eighth of the texture's size.
        flow: To that frame.
    """

    relevance: Array
    saliency: Array
    flow: Flow

    def made(self) -> Plane:
        relevance = enlarged(self.relevance, self.saliency.shape[0] // self.relevance.shape[0])
        both = [carry(plane, self.flow, outside=0.0) for plane in (relevance, self.saliency)]
        return Plane(HISTORY, namespace(relevance).stack(both))


class RegionPlanes:
    """Channels 13, 14, 15 and 17, which all follow from the regions' ids, carried once.

    A detected object is a region of its own, over the clusters that it covers.

    Args:
        labels: Gives `[h, w]` int32 ids on the earlier frame.
        flow: Backward flow to it.
        objects: Gives the objects on this frame; one with track n has the id h * w - n.
    """

    def __init__(
        self, labels: Callable[[], Array], flow: Flow, objects: Callable[[], Sequence[DetectedObject]] = tuple
    ) -> None:
        self._labels, self._flow, self._objects = labels, flow, objects
        self._carried: Array | None = None

    @property
    def labels(self) -> Array:
        """Return the ids, `[h, w]` int32, on this frame."""
        if self._carried is None:
            labels = carry(self._labels(), self._flow, nearest=True)
            hw = labels.shape[0], labels.shape[1]
            objects = sorted(self._objects(), key=lambda each: each.score)
            if objects:
                labels = labels + 0  # a frame without motion shares its ids with the keyframe
            for each in objects:
                labels[each.samples(hw)] = hw[0] * hw[1] - each.track % (hw[0] * hw[1] // 2)
            self._carried = labels
        return self._carried

    @property
    def planes(self) -> dict[int, Plane | LazyPlane]:
        """Return the planes by channel."""
        return {CHANNEL_INDEX[name]: _RegionPlane(name, self, make) for name, make in _OF_REGIONS.items()}


@dataclass(frozen=True, slots=True, eq=False)
class _RegionPlane:
    name: str
    regions: RegionPlanes
    make: Callable[[Array], Array]

    def made(self) -> Plane:
        return Plane(CHANNEL_INDEX[self.name], self.make(self.regions.labels)[None])


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


_OF_REGIONS: dict[str, Callable[[Array], Array]] = {
    "cluster": lambda labels: labels,
    "centroid_distance": centroid_distance,
    "cluster_size": cluster_size,
    "boundary": boundaries,
}
