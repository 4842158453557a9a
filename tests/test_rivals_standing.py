"""What a model still has of cells that were dropped."""

from __future__ import annotations

import numpy as np
import pytest

from arr_stream.selection.allocation import Allocation
from benchmarks.rivals import RULES
from benchmarks.rivals.standing import standing
from tests.test_rivals import clip, random_clip, still


def cells(*places: tuple[int, int], level: int = 0) -> Allocation:
    rows, columns = np.array(places or np.zeros((0, 2)), np.int32).T
    return Allocation(rows, columns, np.full_like(rows, level), np.ones(len(rows), np.float32))


def test_a_cell_stands_until_it_looks_different_and_again_when_it_is_back() -> None:
    grey = np.full((4, 4, 5), 100)
    grey[1, 1, 1], grey[2, 1, 1] = 110, 130  # 0.04 and 0.12 off
    kept = [cells((1, 1)), cells(), cells(), cells((0, 0))]
    seen = [
        set(zip(*(i.tolist() for i in np.nonzero(mask)), strict=True))
        for mask in standing(clip(still(4), grey), kept, 0.05)
    ]
    assert seen == [{(1, 1)}, {(1, 1)}, set(), {(1, 1), (0, 0)}]


def test_a_new_look_replaces_the_old_one() -> None:
    grey = np.full((3, 4, 5), 100)
    grey[1:, 1, 1] = 200
    masks = list(standing(clip(still(3), grey), [cells((1, 1)), cells((1, 1)), cells()], 0.0))
    assert [mask[1, 1] for mask in masks] == [True, True, True] and sum(int(mask.sum()) for mask in masks) == 3


def test_coarse_cells_do_not_stand() -> None:
    assert not any(mask.any() for mask in standing(random_clip(0), [cells((0, 0), level=1)] * 5, 1.0))


def test_of_a_still_clip_everything_stands_after_one_whole_frame() -> None:
    quiet = clip(still(4))
    for name in ("evs", "dtd-pixel", "dtd-feature"):
        assert all(mask.all() for mask in standing(quiet, RULES[name]().choose(quiet, 5), 0.0))


@pytest.mark.parametrize("name", ["evs", "vidcom2", "random", "difference"])
def test_where_all_changes_only_the_kept_cells_stand(name: str) -> None:
    features = np.random.default_rng(1).normal(size=(5, 4, 5, 8))
    busy = clip(features, np.broadcast_to(40 * np.arange(5)[:, None, None], (5, 4, 5)))
    chosen = RULES[name]().choose(busy, 6)
    for mask, kept in zip(standing(busy, chosen, 0.1), chosen, strict=True):
        expected = np.zeros((4, 5), bool)
        expected[kept.rows, kept.columns] = True
        assert (mask == expected).all()


def test_one_choice_a_frame() -> None:
    with pytest.raises(ValueError, match="2 choices for 5 frames"):
        list(standing(random_clip(0), [cells()] * 2, 0.1))
