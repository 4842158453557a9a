"""Picture questions: true answers, fair choices of cells, and a comparison that counts what it should."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from arr_stream.config import Settings
from arr_stream.evaluation.answers import wilson
from arr_stream.evaluation.choices import random_cells, scaled, uniform
from arr_stream.keyframes.base import KeyframeInput
from arr_stream.keyframes.text.rapid import RapidOcrFinder
from arr_stream.relevance.words import folded
from arr_stream.selection.allocation import Allocation
from arr_stream.types import ByteArray, Frame, Grid
from benchmarks import cell_choices
from benchmarks.cell_choices import OurChoice, covered
from benchmarks.picture_questions import SIZE_WH, PictureQuestion, picture_questions, scene_questions
from benchmarks.questions import Mode, QuestionReport, Reply, compare, markdown, prompt
from benchmarks.scenes.shapes import COLOURS
from tests.conftest import Run
from tests.tiny_qwen import load_tiny, picture, tiny_qwen

__all__ = ["tiny_qwen"]

QUICK = Settings().with_values({"keyframes.text": "none", "keyframes.clusters": "grid"})


@pytest.fixture(scope="module")
def questions() -> tuple[PictureQuestion, ...]:
    return picture_questions()


def _of_kind(questions: Sequence[PictureQuestion], kind: str) -> list[PictureQuestion]:
    found = [asked for asked in questions if asked.kind == kind]
    assert found
    return found


def _middle(regions: ByteArray, number: int = 1) -> tuple[float, float]:
    ys, xs = np.nonzero(regions == number)
    return float(xs.mean()) / SIZE_WH[0], float(ys.mean()) / SIZE_WH[1]


def test_the_set_is_whole_and_the_same_every_time(questions: tuple[PictureQuestion, ...]) -> None:
    kinds = Counter(asked.kind for asked in questions)
    assert kinds == dict.fromkeys(("colour", "shape", "side", "count", "presence", "place"), 8) | {
        "word": 12,
        "photograph": 7,
    }
    assert len({asked.picture for asked in questions}) == 37
    assert len({(asked.picture, asked.question) for asked in questions}) == len(questions)
    for asked, again in zip(questions, islice(scene_questions(np.random.default_rng(0)), 5), strict=False):
        assert (asked.question, asked.options, asked.answer) == (again.question, again.options, again.answer)
        assert np.array_equal(asked.rgb, again.rgb) and np.array_equal(asked.regions, again.regions)
    for asked in questions:
        assert asked.rgb.shape == (SIZE_WH[1], SIZE_WH[0], 3)
        assert (asked.things > 0) == (asked.answer != "no")
        assert all(folded(asked.answer) not in folded(query).split() for query in asked.queries)
    assert next(scene_questions(np.random.default_rng(1))).question != questions[0].question


def test_answers_are_what_the_pixels_say(questions: tuple[PictureQuestion, ...]) -> None:
    for asked in _of_kind(questions, "colour"):
        # Things are painted with a slope of light, so their middle tone is compared.
        tone = np.median(asked.rgb[asked.regions == 1], axis=0)
        assert min(COLOURS, key=lambda name: float(np.abs(tone - COLOURS[name]).sum())) == asked.answer
    for asked in _of_kind(questions, "place"):
        x, y = _middle(asked.regions)
        assert asked.answer == f"{'top' if y < 0.5 else 'bottom'} {'left' if x < 0.5 else 'right'}"
    for asked in _of_kind(questions, "side"):
        assert asked.answer == ("left" if _middle(asked.regions, 1)[0] < _middle(asked.regions, 2)[0] else "right")
    for asked in _of_kind(questions, "count"):
        assert asked.answer == str(asked.things)


@pytest.mark.slow
def test_words_on_signs_can_be_read(questions: tuple[PictureQuestion, ...]) -> None:
    finder, asked_for = RapidOcrFinder(), _of_kind(questions, "word")
    read: dict[str, set[str]] = {}
    for asked in asked_for:
        if asked.picture not in read:
            frame = Frame(0, 0.0, asked.rgb)
            found = finder.find(KeyframeInput(frame, Grid.for_size(frame.size_wh)))
            said = [folded(region.text or "") for region in found.regions]
            # Rings and crosses are read as single signs.
            read[asked.picture] = {word for word in said if len(word) > 2}
    # The finder overlooks a small sign on a busy ground; what it reads is what is written.
    assert sum(folded(asked.answer) in read[asked.picture] for asked in asked_for) >= len(asked_for) - 1
    for picture_name, words in read.items():
        assert words <= {folded(asked.answer) for asked in asked_for if asked.picture == picture_name}


def test_a_question_without_its_answer_is_refused(questions: tuple[PictureQuestion, ...]) -> None:
    rgb, regions = questions[0].rgb, questions[0].regions
    with pytest.raises(ValueError, match="hold the answer"):
        PictureQuestion("p", rgb, "colour", "What colour?", ("red", "blue"), "green", (), regions)
    with pytest.raises(ValueError, match="regions"):
        PictureQuestion("p", rgb, "colour", "What colour?", ("red", "blue"), "red", (), regions[1:])


def _times_covered(cells: Allocation, grid: Grid) -> Any:
    times = np.zeros((grid.rows, grid.columns), int)
    for row, column, level in zip(cells.rows, cells.columns, cells.level, strict=True):
        times[row : row + (1 << level), column : column + (1 << level)] += 1
    return times


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 40), st.integers(1, 40), st.floats(0, 1), st.integers(0, 5))
def test_choices_keep_to_the_budget(rows: int, columns: int, share: float, seed: int) -> None:
    grid = Grid((columns * 32, rows * 32), rows, columns)
    tokens = max(1, round(share * grid.cells))
    for cells in (uniform(grid, tokens), random_cells(grid, tokens, seed)):
        assert len(cells) == tokens
        assert _times_covered(cells, grid).sum() == tokens
    coarse = scaled(grid, tokens)
    assert len(coarse) <= tokens
    times = _times_covered(coarse, grid)
    assert times.max() == 1
    if -(-rows // 4) * -(-columns // 4) <= tokens:
        # Everything is shown once, and what is left of the budget would not divide another cell.
        assert times.min() == 1 and len(coarse) > tokens - 3


def test_uniform_is_even_and_random_is_not() -> None:
    grid = Grid.for_size(SIZE_WH)

    def in_blocks(cells: Allocation) -> Any:
        return _times_covered(cells, grid).reshape(6, 4, 8, 4).sum(axis=(1, 3))

    assert (in_blocks(uniform(grid, grid.cells // 4)) == 4).all()
    assert (in_blocks(uniform(grid, grid.cells // 2)) == 8).all()
    assert in_blocks(random_cells(grid, grid.cells // 4)).std() > 1
    assert not np.array_equal(random_cells(grid, 9, 0).rows, random_cells(grid, 9, 1).rows)
    assert (scaled(grid, grid.cells // 4).level == 1).all()


def test_coverage_is_counted_thing_by_thing() -> None:
    regions = np.zeros((64, 128), np.uint8)
    regions[:32, :32] = 1
    regions[:64, 48:80] = 2
    cells = Allocation(*np.array([[0, 0], [0, 2], [0, 0]], np.int32), np.ones(2, np.float32))
    grid = Grid.for_size((128, 64))
    seen, shown = covered(regions, cells, grid)
    assert seen.tolist() == shown.tolist() == [1.0, 0.25]
    coarse = Allocation(*np.array([[0], [0], [1]], np.int32), np.ones(1, np.float32))
    seen, shown = covered(regions, coarse, grid)
    assert seen.tolist() == [0.0, 0.0] and shown.tolist() == [1.0, 0.5]
    assert covered(np.zeros_like(regions), cells, grid)[0].size == 0


def test_intervals_are_those_of_the_book() -> None:
    # Of 10 trials 5 hits; of 10 none: the closed forms, computed by hand.
    assert wilson(0.5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)
    assert wilson(0.0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert wilson(1.0, 10) == pytest.approx((0.7225, 1.0), abs=1e-4)


class Seer:
    """Answers rightly if, and only if, everything that must be seen is among the fine cells."""

    name = "seer"

    def __init__(self, questions: Sequence[PictureQuestion]) -> None:
        self._known = {(id(asked.rgb), prompt(asked)): asked for asked in questions}
        self.modes: Counter[str] = Counter()

    def answer(
        self, rgb: ByteArray, grid: Grid, cells: Allocation, mode: Mode, question: str, options: Sequence[str]
    ) -> Reply:
        self.modes[mode] += 1
        asked = self._known[id(rgb), question]
        right = bool((covered(asked.regions, cells, grid)[0] >= 0.9).all())
        said = asked.answer if right else next(option for option in options if option != asked.answer)
        return Reply(f"{asked.accepted[-1]}.".upper() if right else said, tuple(float(o == said) for o in options), 5.0)


def test_what_is_seen_decides_what_a_seer_answers(questions: tuple[PictureQuestion, ...]) -> None:
    some = [asked for asked in questions if asked.answer != "no"][::5]
    seer = Seer(some)
    report = compare(some, seer, QUICK, budgets=["100%", "25%"], seeds=2)
    assert seer.modes == dict.fromkeys(("sparse", "halo", "prune"), len(some) * (1 + 5))
    for row in report.rows():
        assert row.questions == len(some)
        assert row.accuracy == row.text_accuracy == row.whole
        assert row.accuracy is not None and row.low is not None and row.high is not None
        assert row.low <= row.accuracy <= row.high
    assert report.row("sparse", "all", "100%").accuracy == 1
    ours, chance = report.row("prune", "ours", "25%"), report.row("prune", "random", "25%")
    assert ours.accuracy is not None and chance.accuracy is not None and ours.accuracy > chance.accuracy + 0.5
    assert {outcome.picked for outcome in report.outcomes if not outcome.right}.isdisjoint({""})
    assert json.loads(json.dumps(report.as_json()))["model"] == "seer"
    table = markdown(report)
    assert "| sparse | all | 100% | 768 | 1.000 |" in table and "5 ms" in table
    _check_true_model(report)


def test_what_is_expected_of_a_true_model_is_not_true_of_one_that_says_the_first_option(
    questions: tuple[PictureQuestion, ...],
) -> None:
    class Blind(Seer):
        def answer(
            self, rgb: ByteArray, grid: Grid, cells: Allocation, mode: Mode, question: str, options: Sequence[str]
        ) -> Reply:
            return Reply(options[0], (1.0, *[0.0] * (len(options) - 1)), 1.0)

    some = questions[::6]
    report = compare(some, Blind(some), QUICK, budgets=["100%", "25%"], seeds=1)
    with pytest.raises(AssertionError):
        _check_true_model(report)


def test_without_a_model_our_cells_show_what_must_be_seen(questions: tuple[PictureQuestion, ...]) -> None:
    drawn = [asked for asked in questions if asked.kind in ("shape", "side", "place", "presence")][::2]
    report = compare(drawn, None, QUICK, budgets=["25%", "10%"], seeds=1)
    for budget in ("25%", "10%"):
        seen = {choice: report.row("", choice, budget).seen for choice in ("ours", "uniform", "random")}
        assert seen["ours"] is not None and seen["uniform"] is not None and seen["random"] is not None
        assert seen["ours"] > 0.8 > 0.4 > max(seen["uniform"], seen["random"])
    assert all(row.accuracy is None and row.text_accuracy is None for row in report.rows())
    assert "likeliest" not in markdown(report)


def test_generation_is_remembered_and_changes_nothing(
    questions: tuple[PictureQuestion, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    make = cell_choices.make_generator

    def counted(chosen: Settings) -> Any:
        generator = make(chosen)
        cluster = generator.clusterer.cluster  # type: ignore[union-attr]
        generator.clusterer.cluster = lambda frame: calls.append(1) or cluster(frame)  # type: ignore
        return generator

    monkeypatch.setattr(cell_choices, "make_generator", counted)
    asked = questions[0]
    shared = OurChoice(QUICK)
    twice = [shared.choose(asked.rgb, asked.queries, 77)[0] for _ in range(2)]
    fresh = OurChoice(QUICK).choose(asked.rgb, asked.queries, 77)[0]
    assert len(calls) == 2
    for cells in (*twice, fresh):
        assert np.array_equal(cells.rows, fresh.rows) and np.array_equal(cells.columns, fresh.columns)


def _answerer(folder: Path) -> Any:
    from arr_stream.config import ModelSettings, VlmSettings
    from arr_stream.vlm.qwen3_vl.loading import load
    from benchmarks.model_answers import ModelAnswerer

    torch.set_num_threads(1)
    return ModelAnswerer(load(VlmSettings(model=str(folder), device="cpu"), ModelSettings()))


def _stock_scores(folder: Path, rgb: ByteArray, question: str, options: Sequence[str]) -> list[float]:
    """Log likelihoods by the model's own forward pass over its own processor's input."""
    model, processor = load_tiny(folder)
    content = [{"type": "image", "image": rgb}, {"type": "text", "text": question}]
    said = [{"role": "user", "content": content}]
    words = processor.apply_chat_template(said, tokenize=False, add_generation_prompt=True)
    known = processor(text=[words], images=[rgb], return_tensors="pt")["input_ids"].shape[1]
    tokenizer, scores = processor.tokenizer, []
    ends = [tokenizer.convert_tokens_to_ids(name) for name in ("<|im_end|>", "<|endoftext|>")]
    for option in options:
        inputs = processor(text=[words + option], images=[rgb], return_tensors="pt")
        with torch.inference_mode():
            chances = model(**inputs).logits[0].log_softmax(dim=-1)
        ids = inputs["input_ids"][0]
        total = sum(float(chances[at - 1, ids[at]]) for at in range(known, len(ids)))
        scores.append(total + float(chances[-1, ends].logsumexp(dim=0)))
    return scores


def test_likelihoods_are_those_of_the_stock_model(tiny_qwen: Path) -> None:
    answerer = _answerer(tiny_qwen)
    rgb = picture(320, 256)
    grid = Grid.for_size((320, 256))
    options, question = ("red", "top left", "not blue at all"), "What colour is the star?"
    expected = _stock_scores(tiny_qwen, rgb, question, options)
    modes: list[Mode] = ["sparse", "prune", "halo"]
    for mode in modes:
        reply = answerer.answer(rgb, grid, uniform(grid, grid.cells), mode, question, options)
        assert reply.scores == pytest.approx(expected, abs=2e-3)


def test_a_model_answers_the_same_again_and_otherwise_from_other_cells(
    tiny_qwen: Path, questions: tuple[PictureQuestion, ...]
) -> None:
    answerer = _answerer(tiny_qwen)
    asked = questions[0]
    grid = Grid.for_size(SIZE_WH)
    cells = uniform(grid, 60)
    first, again = (answerer.answer(asked.rgb, grid, cells, "sparse", prompt(asked), asked.options) for _ in range(2))
    other = answerer.answer(asked.rgb, grid, random_cells(grid, 60), "sparse", prompt(asked), asked.options)
    halo = answerer.answer(asked.rgb, grid, cells, "halo", prompt(asked), asked.options)
    assert (first.scores, first.text) == (again.scores, again.text)
    assert np.abs(np.subtract(first.scores, other.scores)).max() > 1e-3
    assert np.abs(np.subtract(first.scores, halo.scores)).max() > 1e-4


def test_the_command_asks_a_model(measure: Run, tiny_qwen: Path, tmp_path: Path) -> None:
    table = tmp_path / "new" / "table.md"
    few = ("--every", 23, "--budget", "10%", "--mode", "sparse", "--seeds", 1, "--set", "keyframes.text=none")
    code, said, errors = measure("questions", "--model", tiny_qwen, *few, "-o", table)
    assert code == 0, errors
    assert said == table.read_text(encoding="utf-8")
    assert "3 questions, chance" in said
    assert {"ours", "uniform", "random", "scaled"} <= {
        line.split(" | ")[1] for line in said.splitlines() if "10%" in line
    }
    code, _, errors = measure("questions", "--model", tiny_qwen, *few, "-o", table)
    assert code == 20 and "exists" in errors


def test_the_command_needs_no_model_to_tell_coverage(measure: Run) -> None:
    few = ("--every", 23, "--budget", "10%", "--choice", "ours", "--set", "keyframes.text=none", "--no-photographs")
    code, said, errors = measure("questions", "--no-model", *few, "--json")
    assert code == 0, errors
    report = json.loads(said)
    assert report["model"] is None and [row["choice"] for row in report["rows"]] == ["ours"]
    assert len(report["outcomes"]) == 3


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ((), 51, "either a model or --no-model"),
        (("--no-model", "--model", "x"), 51, "either a model or --no-model"),
        (("--no-model", "--mode", "dense"), 51, "--mode 'dense' is not known"),
        (("--no-model", "--choice", "best"), 51, "--choice 'best' is not known"),
        (("--no-model", "--budget", "0%", "--set", "keyframes.text=none"), 40, "budget '0%'"),
    ],
)
def test_the_command_refuses(measure: Run, arguments: tuple[str, ...], code: int, said: str) -> None:
    got, _, errors = measure("questions", *arguments)
    assert got == code
    assert said in errors and len(errors.strip().splitlines()) == 1


@pytest.mark.weights
@pytest.mark.timeout(0)
def test_a_true_model_answers_from_our_cells(questions: tuple[PictureQuestion, ...], tmp_path: Path) -> None:
    folder = os.environ.get("ARR_STREAM_QWEN")
    if not folder:
        pytest.skip("set ARR_STREAM_QWEN to a folder with Qwen3-VL's weights, such as Qwen3-VL-2B-Instruct")
    from arr_stream.config import ModelSettings, VlmSettings
    from arr_stream.vlm.qwen3_vl.loading import load
    from benchmarks.model_answers import ModelAnswerer

    answerer = ModelAnswerer(load(VlmSettings(model=folder), ModelSettings()))
    report = compare(questions, answerer, Settings())
    table = Path(os.environ.get("ARR_STREAM_QWEN_TABLE") or tmp_path / "questions.md")
    table.write_text(markdown(report), encoding="utf-8")
    _check_true_model(report)


def _check_true_model(report: QuestionReport) -> None:
    for mode in ("sparse", "halo", "prune"):
        whole = report.row(mode, "all", "100%")
        assert whole.low is not None and whole.low > report.chance + 0.2
        ours, chance = report.row(mode, "ours", "25%"), report.row(mode, "random", "25%")
        assert ours.accuracy is not None and chance.accuracy is not None
        assert ours.accuracy >= chance.accuracy
