"""The comparison: scored by the rules that coverage is judged by, at equal tokens, and summed up rightly."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arr_stream.config import Settings
from arr_stream.evaluation.coverage import oracle, pixels_by_cell, score_cells
from arr_stream.selection.allocation import Allocation
from arr_stream.types import Grid, IntArray
from benchmarks.comparison.compare import compare
from benchmarks.comparison.plot import plot_compare
from benchmarks.comparison.report import ORACLE, OURS, CompareReport, CompareRow, tables
from benchmarks.comparison.truth import KnownClip, Score, score_choices
from benchmarks.rivals import RULES
from benchmarks.rivals.boxes import FOLLOWERS, RANKINGS
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
    assert score.object <= oracle(mask, (grid.rows, grid.columns), int(fine.sum())) + 1e-6
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


def test_everyone_is_shown_the_same_clips_at_the_same_tokens(report: CompareReport) -> None:
    clips = {row.footage for row in report.rows}
    assert len(clips) == 3 and {row.camera for row in report.rows} == {"still", "panning", "shaking"}
    names = {rule.name for rule in RULES.values()}
    for clip in clips:
        for budget, tokens in (("10%", 6), ("12", 12)):
            rows = [row for row in report.rows if (row.footage, row.budget) == (clip, budget)]
            boxed = {f"{follower}, {ranking}" for follower in FOLLOWERS for ranking in RANKINGS}
            assert {row.method for row in rows} == names | boxed | {OURS, ORACLE}
            assert {row.asked for row in rows if row.method in boxed} == {"box"}
            assert {row.asked for row in rows if row.method == OURS} == {"no query", "box", "words"}
            assert sorted(row.seed for row in rows if row.method == "random") == [0, 1]
            for row in rows:
                # Rules that keep the first frame whole may need more than so few frames have to give.
                assert row.score.tokens <= max(tokens, row.cells / 8) + 1e-9
                assert (row.rule_ms is None) if row.method == ORACLE else row.rule_ms
                assert (row.before_ms > 0) == bool(row.needed)
            equal = [row for row in rows if row.method in (OURS, ORACLE, "uniform grid", "random", "frame difference")]
            assert {row.score.tokens for row in equal} == {tokens}


def _row(method: str, footage: str, share: float | None, **changes: Any) -> CompareRow:
    score = Score(share, share, None, share, share, 0.5, 0.2, 10.0, 8.0)
    row = CompareRow(footage, "davis", "still", 100, "10%", method, "", "no query", 0, score, 1.0, 0.0, "")
    return replace(row, **changes)


def test_rules_that_beat_ours_are_named_best_first() -> None:
    rows = [
        replace(row, budget=budget)
        for budget, ours in (("10%", 0.5), ("25%", 0.9))
        for row in (_row(OURS, "a", ours), _row("one", "a", 0.625), _row("two", "a", 0.75), _row("same", "a", 0.5))
    ]
    alone = tables(CompareReport(tuple(rows), {}))[0]
    assert alone.note.endswith("Ahead of ours at 10%: two by 0.250, one by 0.125.")


def test_the_oracle_is_the_best_of_every_frame(report: CompareReport) -> None:
    for clip in generated_footage(8, sceneries=("coffee",), size_wh=SMALL_WH):
        masks = [truth.object for truth in clip.truths()]
        shape = Grid.for_size(SMALL_WH).rows, Grid.for_size(SMALL_WH).columns
        for budget, tokens in (("10%", 6), ("12", 12)):
            rows = [row for row in report.rows if (row.footage, row.budget) == (clip.name, budget)]
            (best,) = [row.score for row in rows if row.method == ORACLE]
            shares = [oracle(mask, shape, tokens) for mask in masks[1:] if mask is not None and mask.any()]
            assert best.object == pytest.approx(np.mean(shares)) and best.object == best.moving
            equal = [row.score.object for row in rows if row.method in (OURS, "uniform grid", "frame difference")]
            assert best.object >= max(share for share in equal if share is not None) > 0
            assert best.detail is None and best.current is None and best.context is None


def test_pictures_are_drawn(report: CompareReport, tmp_path: Path) -> None:
    plot_compare(report, tmp_path / "new" / "compare.png")
    assert (tmp_path / "new" / "compare.png").stat().st_size > 10_000


def test_the_command(measure: Run, tmp_path: Path) -> None:
    write_sequence(tmp_path, "square", squares(5, step_px=6))
    plot = tmp_path / "plot.png"
    arguments = ["compare", tmp_path, "--kind", "davis", "--features", "pixels", "--seeds", 1]
    arguments += ["--set", "keyframes.text=none"]
    code, out, err = measure(*arguments, "--budget", "2", "--json", "--plot", plot)
    assert code == 0 and plot.is_file() and "wrote" in err
    printed = json.loads(out)
    assert printed["features"] == {"pixels": "pixels"}
    assert {row["footage"] for row in printed["rows"]} == {"square"}
    assert [table["title"] for table in printed["tables"]][-1] == "Cost"
    code, out, _ = measure(*arguments, "--budget", "2", "--max-frames", 3)
    assert code == 0 and "Coverage without any query" in out


def _wrong() -> Iterator[tuple[list[object], str]]:
    yield ["--features", "magic"], "use clip, pixels or qwen:FOLDER"
    yield ["--kind", "photos", "--features", "pixels"], "give a folder with text/icdar2015"
    yield ["--kind", "samples", "--samples", "nowhere", "--features", "pixels"], "--samples"
    yield ["nowhere", "--features", "pixels"], "no footage that is known here"


@pytest.mark.parametrize(("arguments", "said"), list(_wrong()))
def test_what_cannot_be_compared_is_said_in_a_line(measure: Run, arguments: list[object], said: str) -> None:
    code, out, err = measure("compare", *arguments)
    assert code != 0 and not out
    assert said in " ".join(err.split()) and "Traceback" not in err
