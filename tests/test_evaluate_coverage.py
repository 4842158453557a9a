"""Coverage: equal to the rules it is judged by, and a right sum of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from arr_stream.config import Settings
from arr_stream.evaluation import coverage
from arr_stream.evaluation.coverage import best_share, evaluate_coverage, pixels_by_cell, score_cells
from arr_stream.evaluation.footage import Footage, load_footage
from arr_stream.patch_set import PatchSet
from tests.choices import choose
from tests.test_evaluate_davis import squares, write_sequence


def _corner(rows: int = 64, columns: int = 96) -> np.ndarray:
    mask = np.zeros((rows, columns), bool)
    mask[0:40, 0:40] = True
    return mask


def test_golden_values() -> None:
    mask = _corner()
    fine = np.array([[0, 0, 32, 32], [32, 0, 64, 32]], np.float32)
    # 32x32 and 8x32 of the 40x40 px; two of the frame's six cells.
    assert score_cells(mask, fine, (32.0, 32.0)) == pytest.approx(((1024 + 256) / 1600, 2 / 6))
    coarse = np.array([[0, 0, 64, 64]], np.float32)
    assert score_cells(mask, coarse, (32.0, 32.0)) == pytest.approx((0.0, 4 / 6))
    assert score_cells(mask, np.zeros((0, 4), np.float32), (32.0, 32.0)) == (0.0, 0.0)
    assert [best_share(pixels_by_cell(mask, (2, 3)), k) for k in (0, 1, 2, 4, 6)] == pytest.approx([0, 0.64, 0.8, 1, 1])


def test_overlapping_cells_count_once() -> None:
    twice = np.array([[0, 0, 32, 32], [0, 0, 32, 32]], np.float32)
    assert score_cells(_corner(), twice, (32.0, 32.0)) == pytest.approx((0.64, 1 / 6))


def _column(sequence: Footage, budget: int, *, column: int) -> Iterator[PatchSet]:
    """Always the cells of one column."""
    for frame in sequence.frames():
        n = min(budget, 2)
        arrays = {
            "rows": np.arange(n, dtype=np.int32),
            "columns": np.full(n, column, np.int32),
            "level": np.zeros(n, np.int32),
            "score": np.ones(n, np.float32),
            "scorer": np.zeros(n, np.int32),
            "query": np.zeros(n, np.int32),
            "carried": np.zeros(n, bool),
            "fresh": np.ones(n, bool),
        }
        yield choose(frame, **arrays)


def test_rows_of_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    masks = squares(4, step_px=16)
    masks[2][:] = False
    write_sequence(tmp_path, "goes right", masks)
    (footage,) = load_footage(tmp_path)
    asked: list[object] = []

    def open_stream(source: Path, *, region: object, budget: str, settings: Settings) -> Iterator[PatchSet]:
        asked.extend([source, region, budget])
        return _column(footage, int(budget), column=0)

    monkeypatch.setattr(coverage, "open_stream", open_stream)
    report = evaluate_coverage([footage], ["2"], Settings())
    assert asked == [footage.source, (8.0, 20.0, 24.0, 24.0), "2"]
    # Frame 0 is the query's and frame 2 is empty: on frame 1 the square spans x 24-48, on frame 3 x 56-80.
    means = report.as_json()["mean_coverage"]["2"]
    assert means == {"arr-stream": pytest.approx(0.1667), "oracle": pytest.approx(0.6667)}
