"""How well do regions follow objects? The best that can be said of an object's mask in whole regions.

A region that straddles the object's border is lost to everything that comes after it: relevance is scored, carried and
chosen by region. So each region is taken in or left out, knowing the mask, and what is reached is a ceiling.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from arr_stream.evaluation.davis import Sequence as Footage
from arr_stream.evaluation.davis import check_mask
from arr_stream.evaluation.tables import Report, ResultTable
from arr_stream.keyframes.base import Clusterer, KeyframeInput, LazyClusters
from arr_stream.types import BoolArray, Clusters, Frame, Grid, IntArray


@dataclass(frozen=True, slots=True)
class ClusterRow:
    """One clusterer, means over the frames of all sequences.

    Args:
        name: Which.
        method: As it stands in `Clusters.method`.
        regions: Regions a frame.
        iou_best: IoU of the mask and the best union of regions there is.
        iou_majority: IoU of the mask and the union of the regions of which it covers at least half.
        accuracy: Share of all pixels on the right side when every region goes with its majority (achievable
            segmentation accuracy, Liu et al., "Entropy Rate Superpixel Segmentation", 2011).
        milliseconds: Median processor time of a frame.
    """

    name: str
    method: str
    regions: float
    iou_best: float
    iou_majority: float
    accuracy: float
    milliseconds: float


@dataclass(frozen=True, slots=True)
class ClustersReport(Report):
    """All rows."""

    rows: tuple[ClusterRow, ...]

    @property
    def tables(self) -> tuple[ResultTable, ...]:
        """All clusterers, one a row."""
        return (
            ResultTable(
                "Regions and objects: means over all frames",
                ("clusters", "regions", "best IoU", "IoU by majority", "pixels on the right side", "processor ms"),
                tuple(
                    (r.method, round(r.regions), r.iou_best, r.iou_majority, r.accuracy, round(r.milliseconds))
                    for r in self.rows
                ),
                "Times are medians of processor time on one thread, with the embedding where one is clustered.",
            ),
        )


def evaluate_clusters(
    sequences: Sequence[Footage],
    clusterers: Mapping[str, Clusterer],
    *,
    every: int = 20,
    progress: Callable[[str], None] = lambda _: None,
) -> ClustersReport:
    """Divide every Nth frame and compare with the object's mask.

    Args:
        sequences: Footage with masks.
        clusterers: What is compared, by name.
        every: Frames from one that is looked at to the next; frames without an object are left out.
        progress: Told which sequence comes next.

    Raises:
        EvaluationDataError: Masks that do not fit the frames.
    """
    scores: dict[str, list[tuple[float, ...]]] = {name: [] for name in clusterers}
    methods: dict[str, str] = {}
    for footage in sequences:
        progress(footage.name)
        for index, (frame, mask) in enumerate(zip(footage.frames(), footage.masks(), strict=True)):
            if index % every or not mask.any():
                continue
            check_mask(footage, index, mask, frame.size_wh)
            # One after the other on the same frame, so that a busy machine slows all of them alike.
            for name, clusterer in clusterers.items():
                clusters, milliseconds = _timed(clusterer, frame)
                methods[name] = clusters.method
                scores[name].append((clusters.count, *score_regions(clusters.labels, mask), milliseconds))
    return ClustersReport(
        tuple(_row(name, methods[name], np.array(values)) for name, values in scores.items() if values)
    )


def _row(name: str, method: str, scores: npt.NDArray[np.float64]) -> ClusterRow:
    regions, best, majority, accuracy, _ = scores.mean(axis=0).tolist()
    return ClusterRow(name, method, regions, best, majority, accuracy, float(np.median(scores[:, -1])))


def _timed(clusterer: Clusterer, frame: Frame) -> tuple[Clusters | LazyClusters, float]:
    picture = KeyframeInput(frame, Grid.for_size(frame.size_wh))
    # Every clusterer of a keyframe finds the reduced picture made, so none is charged for it.
    _ = picture.quarter_rgb
    started = time.process_time()
    clusters = clusterer.cluster(picture)
    return clusters, (time.process_time() - started) * 1e3


def score_regions(labels: IntArray, mask: BoolArray) -> tuple[float, float, float]:
    """How well whole regions can cover a mask.

    Args:
        labels: `[h, w]`, ids from 0.
        mask: `[H, W]`, not empty; labels are brought to its size by nearest sample.

    Returns:
        The best IoU of any union of regions, the IoU of the union of regions that are mostly mask, and the share of
        pixels on the right side with the latter.
    """
    rows = np.arange(mask.shape[0]) * labels.shape[0] // mask.shape[0]
    columns = np.arange(mask.shape[1]) * labels.shape[1] // mask.shape[1]
    full = labels[rows[:, None], columns].ravel()
    sizes = np.bincount(full)
    inside = np.bincount(full, weights=mask.ravel())
    share = inside / np.maximum(sizes, 1)
    # The best union is always one of "all regions whose share is at least so much": sorted, there are only n of them.
    order = np.argsort(-share, kind="stable")
    covered, spent = np.cumsum(inside[order]), np.cumsum(sizes[order])
    ious = covered / (mask.sum() + spent - covered)
    majority = share >= 0.5
    hit, wasted = inside[majority].sum(), (sizes - inside)[majority].sum()
    missed = mask.sum() - hit
    accuracy = 1.0 - (missed + wasted) / mask.size
    return float(ious.max()), float(hit / (mask.sum() + wasted)), float(accuracy)
