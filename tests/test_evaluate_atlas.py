"""What pooled tokens can say, judged by hand-made frames."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from arr_stream.evaluation.davis import Sequence
from arr_stream.keyframes.clusters.slic import SkimageSlic
from arr_stream.types import Frame
from benchmarks.atlas import LAYOUTS, detail_kept, evaluate_atlas, object_iou


def test_golden_detail() -> None:
    looks = np.array([[[0, 2, 10, 12]]], np.float32)
    # Variance 4 x 26; two tokens of two cells leave 4 x 1 of it.
    assert detail_kept(looks, np.array([[0, 0, 1, 1]], np.int32)) == pytest.approx(1 - 4 / 104)
    assert detail_kept(looks, np.array([[0, 1, 2, 3]], np.int32)) == pytest.approx(1)
    assert detail_kept(looks, np.array([[0, 0, 0, 0]], np.int32)) == pytest.approx(0)
    # Two cells are not shown and count as the mean, 6.
    assert detail_kept(looks, np.array([[0, 1, -1, -1]], np.int32)) == pytest.approx(1 - (16 + 36) / 104)


def test_golden_object() -> None:
    covered = np.array([[1, 1, 0.5, 0]], np.float32)
    assert object_iou(covered, np.array([[0, 0, 1, 2]], np.int32)) == pytest.approx(2.5 / 3)
    assert object_iou(covered, np.array([[0, 0, 1, 1]], np.int32)) == pytest.approx(2 / 2.5)
    assert object_iou(covered, np.array([[0, 0, 0, 0]], np.int32)) == pytest.approx(2.5 / 4)
    assert object_iou(covered, np.array([[-1, -1, -1, 0]], np.int32)) == 0


def test_regions_that_follow_the_object_tell_it_apart_where_a_grid_cannot() -> None:
    rgb = np.full((384, 512, 3), 90, np.uint8)
    mask = np.zeros((384, 512), bool)
    mask[60:300, 70:330] = True
    rgb[mask] = (220, 40, 40)
    footage = Sequence("box", Path("box"), lambda: [Frame(0, 0.0, rgb)], lambda: [mask])
    report = evaluate_atlas([footage], {"slic": SkimageSlic(12)}, [16], 1)
    rows = report.rows
    iou = {row.layout: row.object_iou for row in rows}
    assert set(iou) == set(LAYOUTS)
    assert iou["by size"] > iou["even grid"] + 0.05
    assert len(report.tables[0].rows) == len(LAYOUTS)
    assert all(0 <= row.detail <= 1 for row in rows)
