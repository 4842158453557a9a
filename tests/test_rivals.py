"""Others' rules on clips small enough to work the answer out by hand, and what every rule promises."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arr_stream.errors import BudgetError
from arr_stream.evaluation.choices import uniform
from arr_stream.selection.allocation import Allocation
from arr_stream.types import Grid
from benchmarks.rivals import RULES, Clip, Rule
from benchmarks.rivals.base import PIXELS_A_CELL
from benchmarks.rivals.change import cosine_to_previous, pixel_change
from benchmarks.rivals.plain import random_rule

ROWS, COLUMNS = 4, 5
CELLS = ROWS * COLUMNS
GRID = Grid((160, 128), ROWS, COLUMNS)
EAST, NORTH = np.eye(2, dtype=np.float32)

FIXED = ["uniform", "random", "difference", "evs-per-frame", "dtd-relative"]
"""Rules that choose as many cells on every frame but perhaps the first."""
WHOLE_FIRST = ["evs", "dtd-pixel", "dtd-feature", "dtd-relative"]
EXACT = ["uniform", "random", "difference", "evs-per-frame", "vidcom2"]


def clip(features: npt.NDArray[Any], grey: npt.NDArray[Any] | None = None) -> Clip:
    """A clip of these features `[T, gh, gw, D]` and cells of these grey values `[T, gh, gw]`, black if not given."""
    frames, rows, columns = features.shape[:3]
    cells = np.zeros((frames, rows, columns), np.uint8) if grey is None else grey.astype(np.uint8)
    picture = np.ones((PIXELS_A_CELL, PIXELS_A_CELL), np.uint8)
    rgb = np.repeat(np.kron(cells, picture)[..., None], 3, axis=-1)
    return Clip(Grid((columns * 32, rows * 32), rows, columns), rgb, features.astype(np.float32))


def still(frames: int) -> npt.NDArray[np.float32]:
    """`[T, 4, 5, 2]`, one vector everywhere."""
    return np.broadcast_to(EAST, (frames, ROWS, COLUMNS, 2)).copy()


def random_clip(seed: int, frames: int = 5, rows: int = ROWS, columns: int = COLUMNS) -> Clip:
    draw = np.random.default_rng(seed)
    grey = draw.integers(0, 256, (frames, rows, columns))
    return clip(draw.normal(size=(frames, rows, columns, 8)), grey)


def places(cells: Allocation) -> set[tuple[int, int]]:
    return set(zip(cells.rows.tolist(), cells.columns.tolist(), strict=True))


def reading_order(count: int) -> set[tuple[int, int]]:
    """The first cells of a frame."""
    return {divmod(index, COLUMNS) for index in range(count)}


def counts(chosen: list[Allocation]) -> list[int]:
    return [len(cells) for cells in chosen]


ALL = reading_order(CELLS)


# ---- what is compared


def test_cosines_to_the_frame_before_are_the_formulas() -> None:
    turned = np.array([[EAST, 3 * EAST, EAST + NORTH, -EAST, NORTH, [3, 4], [0, 0]]], np.float32)
    features = np.stack([np.broadcast_to(EAST, turned.shape), turned])
    expected = [1, 1, 0.5**0.5, -1, 0, 0.6, 0]
    assert cosine_to_previous(features)[0, 0] == pytest.approx(expected, abs=1e-7)


def test_equal_vectors_of_any_kind_have_a_cosine_of_exactly_one() -> None:
    frame = np.random.default_rng(0).normal(size=(8, 9, 37)).astype(np.float32)
    assert (cosine_to_previous(np.stack([frame, frame])) == 1).all()


def test_pixel_change_is_the_mean_over_a_cells_own_pixels() -> None:
    rgb = np.zeros((2, 2 * PIXELS_A_CELL, 3 * PIXELS_A_CELL, 3), np.uint8)
    rgb[1, PIXELS_A_CELL:, :PIXELS_A_CELL] = 51
    rgb[1, 0, 2 * PIXELS_A_CELL, 1] = 255
    one_value = 1 / (PIXELS_A_CELL**2 * 3)
    np.testing.assert_allclose(pixel_change(rgb)[0], [[0, 0, one_value], [0.2, 0, 0]], rtol=1e-6)


# ---- Efficient Video Sampling


def test_evs_takes_the_changed_cell_and_then_ties_in_order() -> None:
    features = still(3)
    features[1:, 2, 3] = NORTH
    chosen = RULES["evs"].choose(clip(features), CELLS // 2)
    assert [places(cells) for cells in chosen] == [ALL, {(2, 3)} | reading_order(9), set()]
    assert (chosen[1].rows[0], chosen[1].columns[0], chosen[1].score[0]) == (2, 3, 1)


def test_evs_spends_what_the_first_frame_leaves_on_a_cut() -> None:
    features = still(4)
    features[2:] = NORTH
    chosen = RULES["evs"].choose(clip(features), CELLS // 2)
    assert [places(cells) for cells in chosen] == [ALL, set(), ALL, set()]


def test_evs_ranks_by_how_much_changed_over_the_whole_clip() -> None:
    features = still(3)
    features[1, 0, 0] = (3, 4)  # cosine 0.6, and again back to it
    features[2, 3, 4] = -EAST
    chosen = RULES["evs"].choose(clip(features), 8)  # 24 cells, of which 20 are the first frame's
    assert counts(chosen) == [CELLS, 2, 2]
    assert places(chosen[2]) == {(3, 4), (0, 0)} and (0, 0) in places(chosen[1])


def test_evs_keeps_a_whole_frame_even_where_the_budget_is_less() -> None:
    assert counts(RULES["evs"].choose(random_clip(0, frames=3), 2)) == [CELLS, 0, 0]


@pytest.mark.parametrize("name", ["evs", "evs-per-frame", "dtd-feature", "dtd-relative", "dtd-pixel", "difference"])
def test_under_a_panning_camera_what_keeps_its_place_is_what_is_dropped(name: str) -> None:
    """A texture that wanders through the frame changes everywhere; the one thing that is followed does not."""
    frames = 6
    draw = np.random.default_rng(3)
    texture = draw.normal(size=(ROWS, COLUMNS + frames, 16))
    shades = draw.integers(0, 256, (ROWS, COLUMNS + frames))
    features = np.stack([texture[:, at : at + COLUMNS] for at in range(frames)])
    grey = np.stack([shades[:, at : at + COLUMNS] for at in range(frames)])
    features[:, 1, 2], grey[:, 1, 2] = 1, 100
    chosen = RULES[name].choose(clip(features, grey), 15)
    assert all((1, 2) not in places(cells) for cells in chosen[1:])
    assert sum(counts(chosen[1:])) >= 5 * 13


def test_per_frame_sampling_gives_every_frame_its_most_changed_cells() -> None:
    features = still(3)
    features[1, 0, 0], features[1, 1, 1] = -EAST, NORTH
    features[2] = features[1]
    chosen = RULES["evs-per-frame"].choose(clip(features), 2)
    assert places(chosen[0]) == places(uniform(GRID, 2)) == places(chosen[2])
    assert places(chosen[1]) == {(0, 0), (1, 1)} and chosen[1].score.tolist() == [2, 1]


# ---- Differential Token Drop


@pytest.mark.parametrize("name", ["dtd-pixel", "dtd-feature"])
def test_dtd_drops_a_still_clip_but_for_its_first_frame(name: str) -> None:
    assert counts(RULES[name].choose(clip(still(4)), 12)) == [CELLS, 0, 0, 0]


def test_dtd_keeps_or_drops_equal_cells_together() -> None:
    features = still(2)
    features[1, 0, :3] = NORTH
    features[1, 3, 4] = -EAST
    rule = RULES["dtd-feature"]
    assert places(rule.choose(clip(features), 11)[1]) == {(3, 4)}  # room for 2, and 4 changed
    assert places(rule.choose(clip(features), 12)[1]) == {(0, 0), (0, 1), (0, 2), (3, 4)}
    assert places(rule.choose(clip(features), CELLS)[1]) == ALL


@given(seed=st.integers(0, 99), tokens=st.integers(5, CELLS))
@settings(max_examples=25, deadline=None)
def test_without_ties_dtd_at_a_budget_is_evs(seed: int, tokens: int) -> None:
    """Two papers, one ordering: only what they do with ties, and EVS's rounding, tells them apart."""
    given_clip = random_clip(seed)
    dropped, sampled = (RULES[name].choose(given_clip, tokens) for name in ("dtd-feature", "evs"))
    pairs = list(zip(dropped, sampled, strict=True))
    assert all(places(evs) <= places(dtd) for dtd, evs in pairs)
    assert sum(len(dtd) - len(evs) for dtd, evs in pairs) <= 1


def test_a_share_of_each_frame_drops_the_most_alike() -> None:
    features = still(3)
    features[1, 0, 0], features[2, 3, 3] = NORTH, -EAST
    chosen = RULES["dtd-relative"].choose(clip(features), 8)  # 4 left for two frames
    assert places(chosen[0]) == ALL and counts(chosen) == [CELLS, 2, 2]
    assert (0, 0) in places(chosen[1]) and places(chosen[2]) == {(0, 0), (3, 3)}


# ---- VidCom2


def odd_frame_clip(odd: int, frames: int = 4) -> Clip:
    """All cells alike but those of one frame; two louder channels say nothing and must not count."""
    features = np.zeros((frames, ROWS, COLUMNS, 4))
    features[..., 0] = 1
    features[odd, ..., :2] = (0, 1)
    features[..., 2:] = 3 * np.random.default_rng(0).choice([-1, 1], (frames, ROWS, COLUMNS, 2))
    return clip(features)


@pytest.mark.parametrize("odd", range(4))
def test_vidcom2_gives_the_odd_frame_what_the_softmax_says(odd: int) -> None:
    # Its share of the softmax is 1: 8 * (1 + 1 - 1/4) = 14, and 8 * (1 - 1/4) = 6 for the others.
    expected = [6] * 4
    expected[odd] = 14
    chosen = RULES["vidcom2"].choose(odd_frame_clip(odd), 8)
    assert counts(chosen) == expected
    assert places(chosen[(odd + 1) % 4]) == reading_order(6)


def test_vidcom2_keeps_the_cells_unlike_their_frame_and_the_video() -> None:
    features = np.zeros((3, ROWS, COLUMNS, 4))
    features[..., 0] = 1
    odd = [(1, 2), (3, 0), (0, 4)]
    for frame, place in zip(features, odd, strict=True):
        frame[place] = (0, 1, 0, 0)
    features[..., 2:] = 9 * np.random.default_rng(0).normal(size=(3, ROWS, COLUMNS, 2))
    chosen = RULES["vidcom2"].choose(clip(features), 2)
    assert counts(chosen) == [2, 2, 2]
    assert [(cells.rows[0], cells.columns[0]) for cells in chosen] == odd


def test_vidcom2_never_gives_a_frame_more_cells_than_it_has() -> None:
    chosen = RULES["vidcom2"].choose(odd_frame_clip(2), 15)
    assert len(chosen[2]) == CELLS and sum(counts(chosen)) == 60


# ---- the plain ones


def test_frame_difference_takes_the_cells_that_changed_most() -> None:
    grey = np.full((3, ROWS, COLUMNS), 90)
    grey[1:, 2, 1], grey[1:, 0, 4] = 130, 70
    chosen = RULES["difference"].choose(clip(still(3), grey), 2)
    assert list(zip(chosen[1].rows, chosen[1].columns, strict=True)) == [(2, 1), (0, 4)]
    assert places(chosen[0]) == places(chosen[2]) == places(uniform(GRID, 2))


def test_random_cells_differ_by_frame_and_by_seed() -> None:
    given_clip = random_clip(0)
    first, other = random_rule(0).choose(given_clip, 7), random_rule(1).choose(given_clip, 7)
    assert len({frozenset(places(cells)) for cells in first + other}) > 8


# ---- what all of them promise


def _blind(given_clip: Clip) -> Clip:
    return replace(given_clip, features=None)


def test_names_are_distinct() -> None:
    assert len({rule.name for rule in RULES.values()}) == len(RULES)


@pytest.mark.parametrize("name", RULES)
@given(
    shape=st.tuples(st.integers(1, 5), st.integers(1, 6), st.integers(1, 6)),
    share=st.floats(0, 1),
    seed=st.integers(0, 99),
    quiet=st.booleans(),
)
@settings(max_examples=30, deadline=None)
def test_budget_and_cells(name: str, shape: tuple[int, int, int], share: float, seed: int, quiet: bool) -> None:
    frames, rows, columns = shape
    given_clip = random_clip(seed, frames, rows, columns)
    if quiet:  # nothing moves, so that all is ties
        given_clip = replace(given_clip, rgb=given_clip.rgb[:1].repeat(frames, 0))
        given_clip = replace(given_clip, features=np.repeat(_features(given_clip)[:1], frames, 0))
    cells = rows * columns
    tokens = max(1, round(share * cells))
    rule = RULES[name]
    chosen = rule.choose(given_clip, tokens)
    total = sum(counts(chosen))
    assert len(chosen) == frames
    assert total <= (max(tokens * frames, cells) if name in WHOLE_FIRST else tokens * frames)
    if name in EXACT:
        assert total == tokens * frames
    if name == "evs":
        assert total >= max(tokens * frames - 1, cells)
    if name in WHOLE_FIRST:
        assert len(chosen[0]) == cells
    if name in FIXED:
        assert len(set(counts(chosen[1:]))) <= 1
    for allocation in chosen:
        assert len(places(allocation)) == len(allocation)
        assert all(0 <= row < rows and 0 <= column < columns for row, column in places(allocation))
        assert (np.diff(allocation.score) <= 0).all()
        assert name == "scaled" or not allocation.level.any()
        assert allocation.rows.dtype == allocation.columns.dtype == allocation.level.dtype == np.int32


def _features(given_clip: Clip) -> npt.NDArray[np.float32]:
    assert given_clip.features is not None
    return given_clip.features


def _same(first: list[Allocation], second: list[Allocation]) -> bool:
    return all(
        np.array_equal(getattr(a, part), getattr(b, part))
        for a, b in zip(first, second, strict=True)
        for part in ("rows", "columns", "level", "score")
    )


@pytest.mark.parametrize("name", RULES)
def test_the_same_clip_gives_the_same_cells(name: str) -> None:
    assert _same(RULES[name].choose(random_clip(4), 6), RULES[name].choose(random_clip(4), 6))


def _other_ending(given_clip: Clip, seen: int) -> Clip:
    """The same up to there, wholly different after."""
    other = random_clip(77)
    return replace(
        given_clip,
        rgb=np.concatenate([given_clip.rgb[:seen], other.rgb[seen:]]),
        features=np.concatenate([_features(given_clip)[:seen], _features(other)[seen:]]),
    )


@pytest.mark.parametrize("rule", [rule for rule in RULES.values() if rule.causal], ids=lambda rule: rule.name)
@pytest.mark.parametrize("seen", [1, 3])
def test_causal_rules_decide_without_later_frames(rule: Rule, seen: int) -> None:
    given_clip = random_clip(5)
    before, after = rule.choose(given_clip, 6), rule.choose(_other_ending(given_clip, seen), 6)
    assert _same(before[:seen], after[:seen])


@pytest.mark.parametrize("name", [name for name, rule in RULES.items() if not rule.causal])
def test_the_others_do_not(name: str) -> None:
    """A calm clip in which each cell changes a little, and the same with a loud ending."""
    draw = np.random.default_rng(6)
    features = np.ones((5, ROWS, COLUMNS, 8)) + draw.normal(size=(5, ROWS, COLUMNS, 8)) * 0.05
    calm = clip(features, 100 + draw.integers(0, 20, (5, ROWS, COLUMNS)))
    rule = RULES[name]
    before, after = rule.choose(calm, 8), rule.choose(_other_ending(calm, 3), 8)
    assert not _same(before[:3], after[:3])


@pytest.mark.parametrize("name", RULES)
def test_a_rule_says_what_it_needs(name: str) -> None:
    rule = RULES[name]
    given_clip = random_clip(2)
    if rule.needs == "features":
        with pytest.raises(ValueError, match="give make_clip a FeatureMaker"):
            rule.choose(_blind(given_clip), 6)
    else:
        assert _same(rule.choose(_blind(given_clip), 6), rule.choose(given_clip, 6))
    if rule.needs == "nothing":
        assert _same(rule.choose(random_clip(3), 6), rule.choose(given_clip, 6))


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("tokens", [0, -1, CELLS + 1])
def test_budgets_that_do_not_fit_are_refused(name: str, tokens: int) -> None:
    with pytest.raises(BudgetError, match=f"give 1 to {CELLS}"):
        RULES[name].choose(random_clip(0), tokens)


@pytest.mark.parametrize("name", RULES)
def test_one_frame_is_a_clip(name: str) -> None:
    chosen = RULES[name].choose(random_clip(0, frames=1), CELLS)
    assert counts(chosen) == [CELLS]
