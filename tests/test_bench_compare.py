"""The comparison: scored by the rules that coverage is judged by, at equal tokens, and summed up rightly."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arr_stream.config import Settings
from arr_stream.evaluation.coverage import best_share, pixels_by_cell, score_cells
from arr_stream.selection.allocation import Allocation
from arr_stream.types import Grid, IntArray
from benchmarks.comparison.compare import compare
from benchmarks.comparison.report import CompareReport
from benchmarks.comparison.truth import KnownClip, score_choices
from benchmarks.rivals.features import Pixels
from benchmarks.scenes.photographs import generated_footage
from tests.conftest import Run
from tests.test_evaluate_davis import squares, write_sequence

SMALL_WH = (320, 192)
QUICK = Settings().with_values({"keyframes.text": "none"})


def _cells(places: list[tuple[int, int, int]]) -> Allocation:
    rows, columns, level = (np.array(axis, np.int32) for axis in zip(*places, strict=True)) if places else _nothing()
    return Allocation(rows, columns, level, np.ones(len(rows), np.float32))


def _nothing() -> tuple[IntArray, ...]:
    return tuple(np.zeros(0, np.int32) for _ in range(3))


def _known(masks: list[np.ndarray], eighth: np.ndarray | None = None) -> KnownClip:
    grid = Grid.for_size(masks[0].shape[::-1])
    shape = (len(masks), grid.rows * 4, grid.columns * 4)
    return KnownClip(
        grid=grid,
        camera="still",
        region_xywh=None,
        counts={"object": np.stack([pixels_by_cell(mask, (grid.rows, grid.columns)) for mask in masks])},
        cell_pixels=pixels_by_cell(np.ones_like(masks[0]), (grid.rows, grid.columns)),
        eighth_grey=eighth if eighth is not None else np.zeros(shape, np.uint8),
    )


@settings(max_examples=60, deadline=None)
@given(st.integers(20, 300), st.integers(20, 300), st.integers(0, 2**32 - 1))
def test_scored_as_coverage_is_scored_everywhere_else(width: int, height: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    mask = rng.random((height, width)) < rng.uniform(0.01, 0.9)
    mask[0, 0] = True
    known = _known([mask, mask])
    grid = known.grid
    count = int(rng.integers(1, grid.cells + 1))
    rows, columns = np.divmod(rng.permutation(grid.cells)[:count].astype(np.int32), np.int32(grid.columns))
    level = rng.integers(0, 3, count).astype(np.int32)
    # Small grids have cells nearly as coarse as fine: what counts as fine is told by size there.
    cells = Allocation(rows, columns, level, np.ones(count, np.float32))
    score = score_choices(known, [cells, cells])
    xyxy = grid.cells_xyxy(rows, columns, np.left_shift(1, level).astype(np.int32))
    fine = level == 0
    assert score.object == pytest.approx(score_cells(mask, xyxy[fine], grid.cell_px)[0], abs=1e-6)
    assert score.context == pytest.approx(score_cells(mask, xyxy, grid.cell_px)[1], abs=1e-6)
    assert score.object <= best_share(pixels_by_cell(mask, (grid.rows, grid.columns)), int(fine.sum())) + 1e-6
    assert score.tokens == count


def test_the_first_frame_is_paid_for_but_not_scored_and_frames_without_the_object_are_left_out() -> None:
    mask, empty = np.zeros((64, 64), bool), np.zeros((64, 64), bool)
    mask[:32, :32] = True
    known = _known([mask, mask, empty, mask])
    here, elsewhere = _cells([(0, 0, 0)]), _cells([(1, 1, 0)])
    score = score_choices(known, [_cells([(0, 0, 0), (0, 1, 0), (1, 0, 0)]), here, here, elsewhere])
    assert score.object == 0.5
    assert score.tokens == 1.5
    assert score.later_tokens == 1
    with pytest.raises(ValueError, match="3 choices for 4 frames"):
        score_choices(known, [here] * 3)


def test_what_was_shown_stays_current_until_it_changes() -> None:
    mask = np.zeros((32, 64), bool)
    mask[:, :32] = True
    eighth = np.zeros((5, 4, 8), np.uint8)
    eighth[3:, :, :4] = 200
    known = _known([mask] * 5, eighth)
    nothing, here = _cells([]), _cells([(0, 0, 0)])
    # Shown on the first frame, it is current on frames 1 and 2, changed on 3 and 4.
    assert score_choices(known, [here, nothing, nothing, nothing, nothing]).current == 0.5
    assert score_choices(known, [here, nothing, nothing, here, nothing]).current == 1
    assert score_choices(known, [here, nothing, nothing, here, nothing]).object == 0.25
    assert score_choices(known, [_cells([(0, 0, 2)]), *[nothing] * 4]).current == 0


@pytest.fixture(scope="module")
def report() -> CompareReport:
    footage = generated_footage(8, sceneries=("coffee",), size_wh=SMALL_WH)
    return compare(footage, ["10%", "12"], QUICK, {"pixels": Pixels()}, seeds=2)


def test_the_command(measure: Run, tmp_path: Path) -> None:
    write_sequence(tmp_path, "square", squares(5, step_px=6))
    arguments = ["compare", tmp_path, "--kind", "davis", "--features", "pixels", "--seeds", 1]
    arguments += ["--set", "keyframes.text=none"]
    code, out, err = measure(*arguments, "--budget", "2", "--json")
    assert code == 0, err
    printed = json.loads(out)
    assert printed["features"] == {"pixels": "pixels"}
    assert {row["footage"] for row in printed["rows"]} == {"square"}
    assert [table["title"] for table in printed["tables"]][-1] == "Cost"
    code, out, _ = measure(*arguments, "--budget", "2", "--max-frames", 3)
    assert code == 0 and "Coverage without any query" in out
