"""Ablation and keyframe interval: the same coverage as elsewhere, verdicts from figures, a knee where there is one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arr_stream.config import Settings
from arr_stream.errors import EvaluationDataError, InvalidSetting
from arr_stream.evaluation.coverage import evaluate_coverage, object_shares, oracle
from arr_stream.evaluation.davis import Sequence
from arr_stream.keyframes.clusters.slic import GridClusterer
from arr_stream.keyframes.generate import InStepKeyframes, KeyframeRequest, StandardGenerator
from arr_stream.patch_set import PatchSet
from arr_stream.pipeline import Pipeline
from arr_stream.relevance.query import RegionQuery
from arr_stream.types import Frame, Grid
from benchmarks.ablation import AGAIN, DEFAULT, PARTS, AblationRow, Kind, ablation_tables, chosen_parts, rows_of
from benchmarks.ablation_runs import (
    QUESTIONS,
    Made,
    Question,
    RememberedGenerator,
    Variant,
    run_in_turns,
    shown_cells,
    usual_footage,
)
from benchmarks.ablation_runs import Run as Measured
from benchmarks.interval import (
    IntervalReport,
    IntervalRow,
    costs,
    covered,
    evaluate_interval,
    interval_table,
    knee,
    plot_interval,
    worded,
)
from tests.conftest import Run
from tests.scenes import moving_square

PLAIN = Settings().with_values({"keyframes.text": "none", "keyframes.clusters": "grid", "keyframes.interval": 4})
ASKED = Question("region 25%", True, "25%")


def _square(count: int = 10) -> Sequence:
    frames = moving_square(count)
    masks = []
    for index in range(count):
        mask = np.zeros(frames[0].rgb.shape[:2], bool)
        mask[60 + index : 108 + index, 40 + 4 * index : 88 + 4 * index] = True
        masks.append(mask)
    return Sequence("square", Path("square"), lambda: frames, lambda: masks)


def test_shares_of_an_object() -> None:
    mask = np.zeros((64, 96), bool)
    mask[:40, :40] = True
    shares = object_shares(mask, Grid((96, 64), 2, 3))
    assert shares.ravel() * 1600 == pytest.approx([1024, 256, 0, 256, 64, 0])
    assert not object_shares(np.zeros((64, 96), bool), Grid((96, 64), 2, 3)).any()


@given(st.integers(33, 200), st.integers(33, 200), st.integers(0, 2**32 - 1))
def test_the_best_shares_are_the_oracle(width: int, height: int, seed: int) -> None:
    mask = np.random.default_rng(seed).random((height, width)) > 0.8
    mask[0, 0] = True
    grid = Grid.for_size((width, height))
    shares = np.sort(object_shares(mask, grid), axis=None)[::-1]
    assert shares.sum() == pytest.approx(1)
    assert shares[:3].sum() == pytest.approx(oracle(mask, (grid.rows, grid.columns), 3))


def test_coverage_and_context_are_those_of_eval_coverage() -> None:
    footage = _square()

    def patches(sequence: Sequence, region: tuple[float, float, float, float], budget: int) -> list[PatchSet]:
        settings = PLAIN.with_values({"selection.budget": budget})
        generator = StandardGenerator(GridClusterer(50))
        pipeline = Pipeline(settings, InStepKeyframes(generator), [RegionQuery(region)])
        return [pipeline.step(frame) for frame in sequence.frames()]

    grid = Grid.for_size(footage.frames()[0].size_wh)
    (ours, *_) = evaluate_coverage([footage], [grid.cells // 4], patches).rows
    (run,) = run_in_turns([footage], [Variant("same")], settings=PLAIN, questions=[ASKED])
    assert run.coverage == pytest.approx(ours.coverage)
    assert run.context == pytest.approx(ours.context)


def test_equal_settings_choose_alike_and_others_do_not() -> None:
    variants = [
        Variant("one"),
        Variant("two"),
        Variant("deaf", {"scoring.commitment": 0.0}),
        Variant("all new", {"selection.novelty": "off"}),
        Variant("no keyframes' parts", parts=("embedding",)),
    ]
    runs = {run.variant: run for run in run_in_turns([_square()], variants, settings=PLAIN, questions=[ASKED])}
    one = runs["one"]
    assert one.choice == runs["two"].choice == runs["all new"].choice == runs["no keyframes' parts"].choice
    assert one.choice != runs["deaf"].choice
    assert one.coverage > runs["deaf"].coverage
    assert runs["all new"].sent == 1 > one.sent
    assert 0 < one.coverage <= one.held <= 1
    assert 0 < one.kept <= 1
    assert one.keyframe_share == pytest.approx(3 / 10)
    assert runs["no keyframes' parts"].keyframe_ms < one.keyframe_ms


def test_each_part_is_made_once_and_booked_to_all() -> None:
    made: Made = {}
    inner = StandardGenerator(GridClusterer(50))
    frame = moving_square(1)[0]
    request = KeyframeRequest(frame, Grid.for_size(frame.size_wh))
    first, second, none = (RememberedGenerator(inner, made, parts) for parts in (("clusters",), ("clusters",), ()))
    one, two = first.jobs(request)["clusters"](), second.jobs(request)["clusters"]()
    assert one[0] is two[0]
    assert first.spent_ms == first.owed_ms == second.owed_ms > 0
    assert second.spent_ms == 0
    assert none.jobs(request) == {}


def test_cells_shown() -> None:
    pipeline = Pipeline(
        PLAIN.with_values({"selection.budget": "25%", "selection.context_share": 0.1}),
        InStepKeyframes(StandardGenerator(GridClusterer(9))),
    )
    patches = pipeline.step(moving_square(1)[0])
    fine, shown = shown_cells(patches)
    assert fine.sum() == (patches.level == 0).sum()
    assert (fine <= shown).all()
    assert (patches.level > 0).any() == (shown.sum() > fine.sum())


def test_an_absent_object_is_refused() -> None:
    footage = _square(3)
    gone = Sequence("gone", Path("gone"), footage.frames, lambda: [np.zeros_like(mask) for mask in footage.masks()])
    with pytest.raises(EvaluationDataError, match="not on the first frame"):
        run_in_turns([gone], [Variant("x")], settings=PLAIN)
    short = Sequence("short", Path("short"), footage.frames, lambda: footage.masks()[:2])
    with pytest.raises(EvaluationDataError, match="2 masks for 3 frames"):
        run_in_turns([short], [Variant("x")], settings=PLAIN)


def _runs(name: str, values: list[dict[str, float]], *, choice: int = 1, frame_ms: float = 2.0) -> list[Measured]:
    """One run a sequence and question, with some values changed."""
    usual = {"coverage": 0.5, "context": 0.3, "held": 0.6, "kept": 0.9, "sent": 0.4}
    return [
        Measured(
            variant=name,
            question=question.name,
            sequence=str(sequence),
            frame_ms=frame_ms,
            keyframe_ms=2.0,
            keyframe_share=0.1,
            choice=choice,
            **{**usual, **changed},
        )
        for sequence, changed in enumerate(values)
        for question in QUESTIONS
    ]


def _judged(kind: Kind, changed: list[dict[str, float]], *, choice: int = 2, frame_ms: float = 2.0) -> AblationRow:
    none: list[dict[str, float]] = [{} for _ in changed]
    runs = _runs(DEFAULT, none) + _runs(AGAIN, none) + _runs("x", changed, choice=choice, frame_ms=frame_ms)
    return rows_of(runs, [(DEFAULT, "default"), (AGAIN, "default"), ("x", kind)])[-1]


def test_verdicts_follow_from_the_figures() -> None:
    worse = [{"coverage": 0.4}, {"coverage": 0.42}, {"coverage": 0.41}]
    better = [{"coverage": 0.6}, {"coverage": 0.62}, {"coverage": 0.61}]
    both = [{"coverage": 0.6, "context": 0.1}, {"coverage": 0.61, "context": 0.12}]
    assert _judged("without", worse).verdict.startswith("earns its cost: region 10% -0.090")
    assert _judged("without", better).verdict.startswith("harms: region 10% +0.110")
    assert _judged("instead", better).verdict.startswith("better")
    assert _judged("instead", worse, frame_ms=1.0).verdict.startswith("worse")
    assert _judged("instead", worse, frame_ms=1.0).verdict.endswith("saves 50% a frame")
    assert _judged("without", both).verdict.startswith("a trade")
    assert _judged("without", [{}, {}]).verdict == "neutral"
    assert _judged("without", [{}, {}], choice=1).verdict == "changes no choice"
    assert _judged("without", [{}, {}], frame_ms=4.0).verdict == "neutral; costs 100% a frame"
    assert _judged("without", [{"sent": 1.0}, {"sent": 1.0}]).losses == (("new", 0.6),)


@pytest.mark.parametrize(("mean", "counts"), [(0.019, False), (0.021, True)])
def test_a_difference_counts_from_two_standard_errors(mean: float, counts: bool) -> None:
    # 0.02 apart, the standard error of the mean of two is 0.01.
    judged = _judged("without", [{"coverage": 0.5 - mean + apart} for apart in (-0.01, 0.01)])
    assert bool(judged.losses) == counts


def test_what_sequences_disagree_about_does_not_count() -> None:
    assert _judged("without", [{"coverage": 0.4}, {"coverage": 0.61}, {"coverage": 0.5}]).verdict == "neutral"


def test_times_are_ratios_and_the_default_is_one() -> None:
    row = _judged("without", [{}], frame_ms=1.0)
    assert row.frame_ratio == pytest.approx(0.5)
    assert row.amortised_ratio == pytest.approx(3 / 4)
    figures, verdicts = ablation_tables([row], "x")
    assert figures.rows[0][0] == verdicts.rows[0][0] == "without x"
    assert verdicts.rows[0][1:] == (row.frame_ratio, row.amortised_ratio, "neutral; saves 50% a frame")


def test_parts_are_named_and_can_be_set() -> None:
    names = [part.variant.name for part in PARTS]
    assert len(set(names)) == len(names)
    for part in chosen_parts(()):
        assert Settings().with_values(part.variant.values) != Settings() or part.variant.parts != Variant("x").parts
    assert [part.variant.name for part in chosen_parts(["text"])] == ["text"]
    with pytest.raises(InvalidSetting, match="choose from"):
        chosen_parts(["moon"])


def test_the_generated_clips_are_there_and_can_be_cut_short() -> None:
    footage = usual_footage(None, 3)
    assert [each.name for each in footage] == ["cut", "pan_zoom", "signs", "street"]
    assert len(footage[0].masks()) == len(footage[0].frames()) == 3
    assert [each.name for each, truth in worded(footage[1:3])] == ["signs"]


def test_knee_of_a_known_curve() -> None:
    assert knee([1, 2, 3, 4, 10], [0.0, 0.9, 0.95, 0.97, 1.0]) == 1
    assert knee([10, 4, 3, 2, 1], [1.0, 0.97, 0.95, 0.9, 0.0]) == 3
    # A dip along the way is no knee: 0.9 is to be had for 2.
    assert knee([1, 2, 3, 10], [0.0, 0.9, 0.2, 1.0]) == 1
    assert knee([1, 2, 3], [0.5, 0.5, 0.5]) is None
    assert knee([1, 2, 3], [0.0, 0.5, 1.0]) is None
    assert knee([2, 2], [0.0, 1.0]) is None


@given(
    st.lists(st.tuples(st.integers(1, 1000), st.integers(0, 100)), min_size=2, max_size=9, unique_by=lambda p: p[0]),
    st.sampled_from([0.5, 4.0]),
)
def test_units_do_not_move_the_knee(points: list[tuple[int, int]], factor: float) -> None:
    cost, quality = (list(column) for column in zip(*points, strict=True))
    assert knee(cost, quality) == knee([value * factor for value in cost], [value * factor for value in quality])


def test_costs_come_apart() -> None:
    runs = _runs("1", [{}, {}])
    assert costs(runs) == pytest.approx((2.0, 20.0))


def test_a_word_is_found_by_half() -> None:
    frame = Frame(0, 0.0, np.zeros((64, 128, 3), np.uint8))
    polygon = np.array([[20, 10], [99, 10], [99, 29], [20, 29]], float)
    mask = np.zeros((16, 32), np.float32)
    mask[:, :14] = 1
    assert not covered(mask, frame, polygon)
    mask[:, :17] = 1
    assert covered(mask, frame, polygon)
    assert not covered(mask, frame, polygon + 500)


def _row(interval: int, quality: float, ms: float, text: float | None = None) -> IntervalRow:
    return IntervalRow(interval, quality, quality, quality, quality, text, ms)


def test_report_and_plot(tmp_path: Path) -> None:
    rows = (_row(1, 0.9, 30.0, 0.9), _row(10, 0.89, 5.0, 0.89), _row(100, 0.5, 2.0, 0.5))
    report = IntervalReport(rows, usual=10, knee=10, longest=80)
    assert report.sufficient == 10
    assert rows[1].quality == pytest.approx(0.89)
    assert _row(1, 0.9, 1.0).quality == pytest.approx(0.9)
    remarks = [row[-1] for row in interval_table(report).rows]
    assert remarks == ["", "default, knee, longest within 0.02 of the best", ""]
    for text in (None, 0.5):
        shown = IntervalReport((_row(1, 0.9, 3.0, text), _row(2, 0.9, 2.0, text)), 1, None, 80)
        plot_interval(shown, tmp_path / "plot.png")
        assert (tmp_path / "plot.png").stat().st_size > 10_000


def test_one_interval_is_no_curve(measure: Run) -> None:
    with pytest.raises(ValueError, match="at least two"):
        evaluate_interval(intervals=[5])
    code, _, err = measure("interval", "--every", "5")
    assert code != 0
    assert "at least two" in err


@pytest.mark.slow
def test_interval_on_generated_clips(measure: Run, tmp_path: Path) -> None:
    plot = tmp_path / "plot.png"
    options = ("--every", 1, "--every", 6, "--frames", 8, "--clips", 1, "--plot", plot, "--json")
    code, out, _ = measure("interval", *options)
    assert code == 0
    rows = json.loads(out)["tables"][0]["rows"]
    assert [row[0] for row in rows] == [1, 6]
    assert all(0 <= value <= 1 for row in rows for value in row[1:7])
    assert rows[0][3] == 1 > rows[1][3]
    assert rows[0][7] > rows[1][7]
    assert plot.is_file()


@pytest.mark.slow
def test_ablation_on_generated_clips(measure: Run) -> None:
    code, out, _ = measure("ablation", "--frames", 6, "--only", "novelty", "--only", "coarse cells", "--json")
    assert code == 0
    figures, verdicts = json.loads(out)["tables"]
    rows = {row[0]: row for row in figures["rows"]}
    assert set(rows) == {row[0] for row in verdicts["rows"]} == {DEFAULT, AGAIN, "without novelty", "coarse cells"}
    assert rows["without novelty"][1:5] == rows[DEFAULT][1:5]
    assert rows["without novelty"][8] == 1
