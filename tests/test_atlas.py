"""The atlas: from any regions to tokens, exactly as many as were paid for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arr_stream.selection.allocation import allocate_tokens
from arr_stream.selection.atlas import AtlasTokens, SemanticAtlas, build_atlas, canonical, divide
from arr_stream.selection.strategies import QUOTAS
from arr_stream.types import Grid

GRIDS = st.tuples(st.integers(1, 24), st.integers(1, 24))
SEEDS = st.integers(0, 2**32 - 1)


def _grid(hw: tuple[int, int]) -> Grid:
    return Grid((hw[1] * 32, hw[0] * 32), *hw)


def _atlas(hw: tuple[int, int], seed: int, regions: int | None = None) -> SemanticAtlas:
    """Random regions, in pieces, of random relevance and saliency."""
    rng = np.random.default_rng(seed)
    most = regions or int(rng.integers(1, hw[0] * hw[1] + 1))
    labels = rng.integers(0, most, hw).astype(np.int32)
    return build_atlas(labels, _grid(hw), relevance=rng.random(hw, np.float32), saliency=rng.random(hw, np.float32))


def _check(tokens: AtlasTokens, member: np.ndarray) -> None:
    """Every token has cells, all of its own region."""
    flat = tokens.token_of_cell.ravel()
    shown = flat[flat >= 0]
    assert np.unique(shown).tolist() == list(range(tokens.count))
    np.testing.assert_array_equal(member.ravel()[flat >= 0], tokens.region[shown])
    assert flat[tokens.cells].tolist() == list(range(tokens.count))


@pytest.mark.parametrize("allocation", QUOTAS)
@given(GRIDS, SEEDS, st.floats(0, 1))
@settings(deadline=None, max_examples=40)
def test_tokens_belong_to_one_region_each(allocation: str, hw: tuple[int, int], seed: int, share: float) -> None:
    atlas = _atlas(hw, seed)
    budget = max(1, int(share * hw[0] * hw[1]))
    tokens = atlas.tokens(allocation, budget)
    _check(tokens, atlas.member)
    assert tokens.count == budget


@given(GRIDS, SEEDS, st.floats(0, 1))
@settings(deadline=None, max_examples=40)
def test_with_one_region_a_cell_the_atlas_is_topk(hw: tuple[int, int], seed: int, share: float) -> None:
    rng = np.random.default_rng(seed)
    relevance, saliency = rng.random((2, *hw), np.float32)
    labels = np.arange(hw[0] * hw[1], dtype=np.int32).reshape(hw)
    atlas = build_atlas(labels, _grid(hw), relevance=relevance, saliency=saliency)
    budget = max(1, int(share * labels.size))
    score = atlas.importance.reshape(hw)
    best = allocate_tokens(score, np.ones(hw, bool), budget, 0)
    expected = set((best.rows * hw[1] + best.columns).tolist())
    for allocation in QUOTAS:
        chosen = atlas.tokens(allocation, budget)
        assert set(chosen.cells.tolist()) == expected
    features = rng.random((5, *hw), np.float32)
    np.testing.assert_allclose(chosen.pool(features), features.reshape(5, -1)[:, chosen.cells].T, rtol=1e-6)


def test_pooling_takes_means_of_own_cells() -> None:
    rng = np.random.default_rng(0)
    atlas, features = _atlas((9, 13), 0, 12), rng.random((7, 9, 13), np.float32)
    tokens = atlas.tokens("proportional", 40)
    pooled = tokens.pool(features)
    assert pooled.shape == (40, 7)
    for number in range(40):
        np.testing.assert_allclose(pooled[number], features[:, tokens.token_of_cell == number].mean(axis=1), rtol=1e-5)
    with pytest.raises(ValueError, match=r"features must be \[D, 9, 13\]"):
        tokens.pool(features[:, :8])


def test_tiers_give_fifteen_five_and_one() -> None:
    labels = np.arange(10, dtype=np.int32).reshape(2, 5).repeat(5, axis=0).repeat(5, axis=1)
    relevance = (1 - labels / 10).astype(np.float32)
    atlas = build_atlas(labels, _grid((10, 25)), relevance=relevance)
    assert np.bincount(atlas.tokens("tiers", 50).region).tolist() == [15, 15, 5, 5, 5, 1, 1, 1, 1, 1]


@given(GRIDS, SEEDS)
@settings(deadline=None, max_examples=80)
def test_the_canonical_form_has_one_shape(hw: tuple[int, int], seed: int) -> None:
    atlas = _atlas(hw, seed)
    form = canonical(atlas)
    cells = hw[0] * hw[1]
    assert form.cells.shape == form.valid.shape == (91, 3)
    assert int(form.valid.sum()) == (273 if cells >= 273 else max(min(cells, 3), cells // 3 * 3))
    assert len(set(form.cells[form.valid].tolist())) == form.valid.sum()
    slots = form.token_of_cell.ravel()
    assert set(slots.tolist()) == set(np.flatnonzero(form.valid).tolist())
    np.testing.assert_array_equal(slots // 3, form.atlas.regions.member)
    np.testing.assert_array_equal(slots[form.cells[form.valid]], np.flatnonzero(form.valid))
    assert (np.diff(form.atlas.importance) <= 0).all()
    again = canonical(_atlas(hw, seed))
    np.testing.assert_array_equal(again.cells, form.cells)


@given(GRIDS, SEEDS, st.integers(1, 100), st.integers(1, 4))
@settings(deadline=None, max_examples=80)
def test_division_gives_as_many_regions_as_can_have_their_share(
    hw: tuple[int, int], seed: int, count: int, each: int
) -> None:
    atlas = _atlas(hw, seed)
    sizes = np.bincount(divide(atlas.member, atlas.importance, count, each).ravel())
    cells = hw[0] * hw[1]
    assert len(sizes) == min(count, max(1, cells // each))
    assert sizes.min() >= min(each, cells)
