"""Regions by merging: the two most similar neighbours become one, until the requested number is left.

Bottom-up merging over a region adjacency graph after Garrido, Salembier and Garcia, "Extensive operators in partition
lattices for image sequence analysis", 1998, and Uijlings et al., "Selective Search for Object Recognition", 2013. Two
neighbours are more similar,

- the closer their mean colours (CIE Lab) and textures (contrast, fineness, direction of gradients) are,
- the weaker the edge on their common border is,
- the smaller they are, so that specks merge first and a few large regions do not absorb all others.

With 50 regions on ten DAVIS sequences, the best union of regions has an IoU of 0.73 with the object's mask, against
0.67 with 62 of SLIC's; without the edges 0.70, without the textures 0.72. Histograms of colour beside the mean gained
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from arr_stream.keyframes.base import KeyframeInput
from arr_stream.keyframes.clusters.regions import DoubleArray, clusters_from_labels, shared_borders
from arr_stream.keyframes.clusters.slic import SkimageSlic
from arr_stream.types import ByteArray, Clusters, FloatArray, IntArray

FIRST_REGIONS = 500
"""Superpixels to start from, or twice the requested number, if that is more: with 300 the IoU is 0.71, 700 gain
nothing."""

SIZE_POWER = 0.4
"""Exponent of region sizes in the cost: 0 ignores them (one region takes nearly all, IoU 0.31), 0.5 is Ward's method
(0.72)."""

TEXTURE_WEIGHT = 0.5
EDGE_WEIGHT = 1.0

_EDGE_KNEE = 10.0
"""Lightness difference per pixel at which an edge has half of its full weight."""

_FINENESS_KNEE = 4.0


class MergeClusterer:
    """Clusterer that merges neighbours down to `count` connected regions, or fewer if there are fewer superpixels."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._superpixels = SkimageSlic(max(FIRST_REGIONS, 2 * count))

    def cluster(self, picture: KeyframeInput) -> Clusters:
        labels = self._superpixels.cluster(picture).labels
        owner = merged(region_graph(labels, picture.quarter_rgb), self.count)
        return clusters_from_labels(owner[labels], "merge")


@dataclass(frozen=True, slots=True, eq=False)
class RegionGraph:
    """Regions and the borders between them.

    Args:
        sizes: `[n]`, places in each region.
        looks: `[n, d]`, colour and texture summed over each region; distances between means are Euclidean.
        pairs: `[m, 2]` int32, regions that touch.
        lengths: `[m]` int32, places along each border.
        edges: `[m]`, strength of the edge in [0, 1] summed along each border.
    """

    sizes: DoubleArray
    looks: DoubleArray
    pairs: IntArray
    lengths: IntArray
    edges: DoubleArray


def region_graph(labels: IntArray, rgb: ByteArray) -> RegionGraph:
    """Return the graph of a label map `[h, w]`, ids from 0 without gaps, of a picture `[h, w, 3]` uint8."""
    planes, edge = _looks(rgb)
    flat = labels.ravel()
    sizes = np.bincount(flat).astype(np.float64)
    looks = np.stack([np.bincount(flat, plane.ravel()) for plane in planes], axis=1).astype(np.float64)
    return RegionGraph(sizes, looks, *shared_borders(labels, edge))


def _looks(rgb: ByteArray) -> tuple[list[FloatArray], FloatArray]:
    """Return seven planes of colour and texture, in about perceptual distances, and the edges in [0, 1]."""
    lab = cv2.cvtColor(rgb.astype(np.float32) / 255.0, cv2.COLOR_RGB2LAB)
    lightness, a, b = (np.ascontiguousarray(lab[:, :, row], dtype=np.float32) for row in range(3))
    gx = np.asarray(cv2.Scharr(lightness, cv2.CV_32F, 1, 0, scale=1 / 32), np.float32)
    gy = np.asarray(cv2.Scharr(lightness, cv2.CV_32F, 0, 1, scale=1 / 32), np.float32)
    xx, yy = gx * gx, gy * gy
    gradient: FloatArray = np.sqrt(xx + yy)
    edge = gradient / (gradient + _EDGE_KNEE)
    fineness = np.abs(lightness - cv2.GaussianBlur(lightness, (0, 0), 1.5))
    energy = xx + yy + 3.0 * _EDGE_KNEE
    texture = (edge, fineness / (fineness + _FINENESS_KNEE), xx / energy, yy / energy)
    colour = (lightness / 100.0, a / 60.0, b / 60.0)
    return [np.asarray(plane, np.float32) for plane in (*colour, *(TEXTURE_WEIGHT * t for t in texture))], edge


def merged(graph: RegionGraph, count: int) -> IntArray:
    """Return `[n]` int32: the final region of each, after merging the most similar neighbours down to `count`."""
    sizes, looks, total = graph.sizes.copy(), graph.looks.copy(), float(graph.sizes.sum())
    first, second = graph.pairs.T.copy()
    lengths, edges = graph.lengths.astype(np.float64), graph.edges.copy()
    costs, owner = np.full(len(first), np.inf), np.arange(len(sizes), dtype=np.int32)

    def compare(borders: npt.NDArray[np.integer]) -> None:
        """Set the dissimilarity of the regions at these borders."""
        a, b = first[borders], second[borders]
        apart = looks[a] / sizes[a, None] - looks[b] / sizes[b, None]
        smallness = (sizes[a] * sizes[b] / ((sizes[a] + sizes[b]) * total)) ** SIZE_POWER
        edge = EDGE_WEIGHT * (edges[borders] / lengths[borders])
        costs[borders] = (np.sqrt((apart * apart).sum(axis=1)) + edge) * smallness

    compare(np.arange(len(first)))
    for _ in range(len(sizes) - count):
        if not np.isfinite(costs).any():
            break
        best = costs.argmin()
        kept, gone = first[best], second[best]
        owner[owner == gone] = kept
        sizes[kept] += sizes[gone]
        looks[kept] += looks[gone]
        first[first == gone] = kept
        second[second == gone] = kept
        # A neighbour of both has two borders with the merged region, which become one.
        around = np.flatnonzero((first == kept) | (second == kept))
        others, at, same = np.unique(first[around] + second[around] - kept, return_index=True, return_inverse=True)
        left, apart = around[at], others != kept
        lengths[left], edges[left] = np.bincount(same, lengths[around]), np.bincount(same, edges[around])
        costs[around], first[around], second[around] = np.inf, -1, -1
        left, others = left[apart], others[apart]
        first[left], second[left] = np.minimum(others, kept), np.maximum(others, kept)
        compare(left)
    return owner
