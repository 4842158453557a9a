"""The ceiling that regions put on an object's mask."""

from __future__ import annotations

from itertools import chain, combinations
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from arr_stream.errors import EvaluationDataError
from arr_stream.evaluation.davis import Sequence
from arr_stream.keyframes.base import KeyframeInput
from arr_stream.keyframes.clusters.regions import clusters_from_labels
from arr_stream.keyframes.clusters.slic import GridClusterer
from arr_stream.types import BoolArray, Clusters, Frame
from benchmarks.clusters import evaluate_clusters, score_regions

HW = (6, 7)


@settings(deadline=None)
@given(arrays(np.int32, HW, elements=st.integers(0, 4)), arrays(np.bool_, HW).filter(lambda mask: bool(mask.any())))
def test_no_union_of_regions_is_better(labels: npt.NDArray[np.int32], mask: BoolArray) -> None:
    ids = np.unique(labels)
    unions = chain.from_iterable(combinations(ids, n) for n in range(len(ids) + 1))
    ious = [(mask & np.isin(labels, union)).sum() / (mask | np.isin(labels, union)).sum() for union in unions]
    best, majority, accuracy = score_regions(labels, mask)
    assert best == pytest.approx(max(ious))
    assert majority <= best + 1e-9
    mostly = np.isin(labels, [i for i in ids if mask[labels == i].mean() >= 0.5])
    assert accuracy == pytest.approx((mostly == mask).mean())


class Truth:
    """Divides as the object itself does."""

    def __init__(self, mask: BoolArray) -> None:
        self.mask = mask

    def cluster(self, picture: KeyframeInput) -> Clusters:
        return clusters_from_labels(self.mask.astype(np.int32), "truth")


def footage(masks: list[BoolArray]) -> Sequence:
    frames = [Frame(i, i / 25, np.full((64, 96, 3), i, np.uint8)) for i in range(len(masks))]
    return Sequence("made", Path("made"), lambda: frames, lambda: masks)


def test_every_nth_frame_with_an_object_is_scored() -> None:
    mask = np.zeros((64, 96), np.bool_)
    mask[8:40, 16:48] = True
    empty = np.zeros_like(mask)
    report = evaluate_clusters(
        [footage([mask, empty, empty, mask])], {"truth": Truth(mask), "grid": GridClusterer(6)}, every=2
    )
    truth, grid = report.rows
    assert (truth.regions, truth.iou_best, truth.iou_majority, truth.accuracy) == (2.0, 1.0, 1.0, 1.0)
    assert (grid.name, grid.method, grid.regions) == ("grid", "grid", 6.0)
    assert 0.0 < grid.iou_best < 0.9
    assert [row[:2] for row in report.tables[0].rows] == [("truth", 2), ("grid", 6)]


def test_masks_of_another_size_are_refused() -> None:
    with pytest.raises(EvaluationDataError, match="mask 0 has 10x8 px, its frame 96x64"):
        evaluate_clusters([footage([np.ones((8, 10), np.bool_)])], {"grid": GridClusterer(6)})


def test_footage_without_any_object_gives_no_rows() -> None:
    assert evaluate_clusters([footage([np.zeros((64, 96), np.bool_)])], {"grid": GridClusterer(6)}).rows == ()
