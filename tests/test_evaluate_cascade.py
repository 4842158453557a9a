"""Scoring regions first: as few places as promised, and hardly anything lost."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from arr_stream.evaluation.davis import Sequence
from arr_stream.keyframes.clusters.slic import SkimageSlic
from arr_stream.types import ByteArray, FloatArray
from benchmarks.cascade import CascadeCase, CascadeRow, covered_share, evaluate_cascade, footage_cases, generated_cases
from tests.scenes import moving_square


def _rows(cases: list[CascadeCase], budgets: list[int], level: int) -> dict[tuple[str, int], CascadeRow]:
    report = evaluate_cascade(cases, budgets, SkimageSlic(50), level=level)
    assert len(report.as_json()["rows"]) == len(report.rows)
    return {(row.kind, row.tokens): row for row in report.rows}


def test_an_eighth_of_4096_places_finds_what_is_asked_for() -> None:
    rows = _rows(list(generated_cases(4, side_px=1024, seed=3)), [40, 101, 273], level=4)
    for tokens in (40, 101, 273):
        row = rows["generated, colour word", tokens]
        assert (row.pictures, row.places) == (4, 4096)
        assert row.saving >= 8
        assert row.coverage_all > 0.4
        assert row.lost <= 0.02


def test_the_loss_is_seen_where_there_is_one() -> None:
    """A relevance that points away from the object, and nothing else to go by, must lose it."""

    def elsewhere(picture: ByteArray) -> FloatArray:
        relevance = np.zeros(picture.shape[:2], np.float32)
        relevance[: relevance.shape[0] // 2] = 1
        relevance[-1, -1] = 1e-4
        return relevance

    rgb = np.full((1024, 1024, 3), 128, np.uint8)
    mask = np.zeros((1024, 1024), bool)
    mask[600:, 600:] = True
    row = _rows([CascadeCase("plain", rgb, mask, elsewhere)], [1024], level=5)["plain", 1024]
    assert row.coverage_all == row.coverage_cascade == 1
    row = _rows([CascadeCase("plain", rgb, mask, elsewhere)], [40], level=5)["plain", 40]
    assert row.coverage_all == 0
    assert row.scored_most == 128


def test_coverage_counts_pixels_of_the_object() -> None:
    mask = np.zeros((64, 96), bool)
    mask[:40, :40] = True
    assert covered_share(mask, (2, 3), np.array([0, 1])) == pytest.approx((1024 + 256) / 1600)
    assert covered_share(mask, (2, 3), np.array([5])) == 0


def test_footage_is_asked_for_by_its_first_picture() -> None:
    frames = moving_square(4)
    masks = []
    for index in range(4):
        mask = np.zeros(frames[0].rgb.shape[:2], bool)
        mask[60 + index : 108 + index, 40 + 4 * index : 88 + 4 * index] = True
        masks.append(mask)
    footage = Sequence("square", Path("square"), lambda: frames, lambda: masks)
    cases = list(footage_cases([footage], 2, side_px=512))
    assert [case.kind for case in cases] == ["footage, example picture", "footage, no query"] * 2
    row = _rows(cases, [20], level=5)["footage, example picture", 20]
    assert row.coverage_all > 0.5
    assert row.coverage_cascade > 0.5
