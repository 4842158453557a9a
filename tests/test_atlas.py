"""The atlas: from any regions to tokens, exactly as many as were paid for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arr_stream.selection.allocation import allocate_tokens
from arr_stream.selection.atlas import QUOTAS, build_atlas, canonical, divide

GRIDS = st.tuples(st.integers(1, 24), st.integers(1, 24))
SEEDS = st.integers(0, 2**32 - 1)


def _scene(hw: tuple[int, int], seed: int, regions: int | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Random regions, in pieces, of random relevance and saliency."""
    rng = np.random.default_rng(seed)
    most = regions or int(rng.integers(1, hw[0] * hw[1] + 1))
    labels = rng.integers(0, most, hw).astype(np.int32)
    return labels, rng.random(hw, np.float32), rng.random(hw, np.float32)


@pytest.mark.parametrize("allocation", QUOTAS)
@given(GRIDS, SEEDS, st.floats(0, 1))
@settings(deadline=None, max_examples=40)
def test_tokens_belong_to_one_region_each(allocation: str, hw: tuple[int, int], seed: int, share: float) -> None:
    atlas = build_atlas(*_scene(hw, seed))
    budget = max(1, int(share * hw[0] * hw[1]))
    tokens = atlas.tokens(allocation, budget)
    flat = tokens.token_of_cell.ravel()
    shown = flat[flat >= 0]
    assert np.unique(shown).tolist() == list(range(budget)) == list(range(len(tokens.region)))
    np.testing.assert_array_equal(atlas.regions.member[flat >= 0], tokens.region[shown])


@given(GRIDS, SEEDS, st.floats(0, 1))
@settings(deadline=None, max_examples=40)
def test_with_one_region_a_cell_the_atlas_is_topk(hw: tuple[int, int], seed: int, share: float) -> None:
    rng = np.random.default_rng(seed)
    relevance, saliency = rng.random((2, *hw), np.float32)
    labels = np.arange(hw[0] * hw[1], dtype=np.int32).reshape(hw)
    atlas = build_atlas(labels, relevance, saliency)
    budget = max(1, int(share * labels.size))
    score = atlas.importance.reshape(hw)
    best = allocate_tokens(score, np.ones(hw, bool), budget, 0)
    expected = set((best.rows * hw[1] + best.columns).tolist())
    for allocation in QUOTAS:
        chosen = atlas.tokens(allocation, budget)
        assert set(np.flatnonzero(chosen.token_of_cell >= 0).tolist()) == expected


def test_pooling_takes_means_of_own_cells() -> None:
    atlas = build_atlas(*_scene((9, 13), 0, 12))
    features = np.random.default_rng(0).random((7, 9, 13), np.float32)
    tokens = atlas.tokens("proportional", 40)
    pooled = tokens.pool(features)
    assert pooled.shape == (40, 7)
    for number in range(40):
        np.testing.assert_allclose(pooled[number], features[:, tokens.token_of_cell == number].mean(axis=1), rtol=1e-5)


def test_tiers_give_fifteen_five_and_one() -> None:
    labels = np.arange(10, dtype=np.int32).reshape(2, 5).repeat(5, axis=0).repeat(5, axis=1)
    relevance = (1 - labels / 10).astype(np.float32)
    atlas = build_atlas(labels, relevance, np.zeros_like(relevance))
    assert np.bincount(atlas.tokens("tiers", 50).region).tolist() == [15, 15, 5, 5, 5, 1, 1, 1, 1, 1]


@given(GRIDS, SEEDS)
@settings(deadline=None, max_examples=80)
def test_the_canonical_form_has_one_shape(hw: tuple[int, int], seed: int) -> None:
    scene = _scene(hw, seed)
    form, cells = canonical(*scene), hw[0] * hw[1]
    count = 273 if cells >= 273 else max(min(cells, 3), cells // 3 * 3)
    np.testing.assert_array_equal(form.region, np.arange(count) // 3)
    assert np.unique(form.token_of_cell).tolist() == list(range(count)), "every cell is in a token"
    importance = build_atlas(form.region[form.token_of_cell], *scene[1:]).importance
    assert (np.diff(importance) <= 0).all()
    np.testing.assert_array_equal(canonical(*scene).token_of_cell, form.token_of_cell)


@given(GRIDS, SEEDS, st.integers(1, 100), st.integers(1, 4))
@settings(deadline=None, max_examples=80)
def test_division_gives_as_many_regions_as_can_have_their_share(
    hw: tuple[int, int], seed: int, count: int, each: int
) -> None:
    atlas = build_atlas(*_scene(hw, seed))
    member = atlas.regions.member.reshape(hw)
    sizes = np.bincount(divide(member, atlas.importance, count, each).ravel())
    cells = hw[0] * hw[1]
    assert len(sizes) == min(count, max(1, cells // each))
    assert sizes.min() >= min(each, cells)
