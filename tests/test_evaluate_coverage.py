"""Coverage: equal to the rules it is judged by, and a right sum of them."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arr_stream.errors import EvaluationDataError
from arr_stream.evaluation.coverage import METHODS, evaluate_coverage, oracle, score_cells
from arr_stream.evaluation.davis import Sequence, load_sequences
from arr_stream.patch_set import PatchSet
from arr_stream.types import Grid
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
    assert [oracle(mask, (2, 3), k) for k in (0, 1, 2, 4, 6)] == pytest.approx([0, 0.64, 0.8, 1, 1])


def test_overlapping_cells_count_once() -> None:
    twice = np.array([[0, 0, 32, 32], [0, 0, 32, 32]], np.float32)
    assert score_cells(_corner(), twice, (32.0, 32.0)) == pytest.approx((0.64, 1 / 6))


def _judge() -> ModuleType:
    script = Path(os.environ.get("ARR_STREAM_DATA", "missing")).parent / "eval" / "coverage.py"
    if not script.is_file():
        pytest.skip("ARR_STREAM_DATA has no eval/coverage.py beside it")
    spec = importlib.util.spec_from_file_location("reference_coverage", script)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.data
@settings(max_examples=60, deadline=None)
@given(st.integers(20, 300), st.integers(20, 300), st.integers(0, 2**32 - 1))
def test_equal_to_the_script_that_scores_records(width: int, height: int, seed: int) -> None:
    judge, rng = _judge(), np.random.default_rng(seed)
    mask = rng.random((height, width)) < rng.uniform(0.01, 0.9)
    mask[0, 0] = True
    grid = Grid.for_size((width, height))
    count = int(rng.integers(1, grid.cells + 1))
    rows, columns = np.divmod(rng.permutation(grid.cells)[:count].astype(np.int32), np.int32(grid.columns))
    cells = grid.cells_xyxy(rows, columns, 2 ** rng.integers(0, 3, count).astype(np.int32))
    cell_w, cell_h = grid.cell_px
    as_recorded = cells.tolist()
    fine = [c for c in as_recorded if c[2] - c[0] <= 1.01 * cell_w + 1 and c[3] - c[1] <= 1.01 * cell_h + 1]
    expected = judge.fraction(mask, fine), judge.fraction(np.ones_like(mask), as_recorded)
    assert score_cells(mask, cells, grid.cell_px) == pytest.approx(expected, abs=1e-12)
    shape = grid.rows, grid.columns
    assert oracle(mask, shape, count) == pytest.approx(judge.oracle(mask, list(shape), count), abs=1e-12)


@given(st.integers(0, 2**32 - 1), st.integers(1, 5))
def test_no_choice_of_fine_cells_beats_the_oracle(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    mask = rng.random((64, 96)) < 0.3
    mask[5, 5] = True
    grid = Grid.for_size((96, 64))
    rows, columns = np.divmod(rng.permutation(6)[:count].astype(np.int32), np.int32(3))
    cells = grid.cells_xyxy(rows, columns, np.ones(count, np.int32))
    assert score_cells(mask, cells, grid.cell_px)[0] <= oracle(mask, (2, 3), count) + 1e-9


def _column(sequence: Sequence, budget: int, *, column: int) -> Iterator[PatchSet]:
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


def test_rows_of_a_report(tmp_path: Path) -> None:
    masks = squares(4, step_px=16)
    masks[2][:] = False
    write_sequence(tmp_path, "goes right", masks)
    asked: list[tuple[tuple[float, float, float, float], int]] = []

    def open_patches(sequence: Sequence, region: tuple[float, float, float, float], budget: int) -> Iterable[PatchSet]:
        asked.append((region, budget))
        return _column(sequence, budget, column=0)

    report = evaluate_coverage(load_sequences(tmp_path), [2], open_patches)
    assert asked == [((8.0, 20.0, 24.0, 24.0), 2)]
    assert [row.method for row in report.rows] == list(METHODS)
    # Frame 0 is the query's and frame 2 is empty: on frame 1 the square spans x 24-48, on frame 3 x 56-80.
    assert report.mean("arr-stream", 2) == pytest.approx((8 / 24 + 0) / 2)
    assert report.mean("oracle", 2) == pytest.approx((16 / 24 + 16 / 24) / 2)
    assert report.mean("first box held still", 2) == pytest.approx((8 / 24 + 0) / 2)
    assert report.mean("centre", 2) == pytest.approx((16 / 24 + 8 / 24) / 2)
    assert report.as_json()["mean_coverage"]["2"]["oracle"] == pytest.approx(0.6667)


@pytest.mark.parametrize(("missing", "said"), [("frames", "no frame of index 1"), ("masks", "no mask of index 2")])
def test_frames_and_masks_must_pair(tmp_path: Path, missing: str, said: str) -> None:
    write_sequence(tmp_path, "a", squares(3 if missing == "masks" else 2))
    (footage,) = load_sequences(tmp_path)
    if missing == "masks":
        footage = Sequence(footage.name, footage.source, footage.frames, lambda: squares(2))
    shown = 1 if missing == "frames" else 3

    def open_patches(sequence: Sequence, _: tuple[float, float, float, float], budget: int) -> Iterable[PatchSet]:
        return list(_column(sequence, budget, column=0))[:shown]

    with pytest.raises(EvaluationDataError, match=said):
        evaluate_coverage([footage], [2], open_patches)


def test_an_object_that_never_shows_again_is_refused(tmp_path: Path) -> None:
    masks = squares(3)
    masks[1][:] = masks[2][:] = False
    write_sequence(tmp_path, "gone", masks)
    with pytest.raises(EvaluationDataError, match="gone: the object is not on the first frame and a later one"):
        evaluate_coverage(load_sequences(tmp_path), [2], lambda s, _, b: _column(s, b, column=0))
