"""The atlas: from any regions to tokens, exactly as many as were paid for."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arr_stream.keyframes.base import KeyframeInput
from arr_stream.keyframes.clusters.slic import GridClusterer, SkimageSlic
from arr_stream.selection.allocation import allocate_tokens
from arr_stream.selection.atlas import (
    AtlasTokens,
    SemanticAtlas,
    build_atlas,
    canonical,
    cells_of_clusters,
    fixed,
    hybrid,
    lay_out,
    proportional,
    stack,
    tiers,
)
from arr_stream.selection.division import divide
from arr_stream.types import Frame, Grid
from tests.scenes import moving_square

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


ALLOCATIONS: dict[str, Callable[[SemanticAtlas, int], AtlasTokens]] = {
    "proportional": proportional,
    "fixed": lambda atlas, tokens: fixed(atlas, 3, tokens),
    "tiers": tiers,
}


@pytest.mark.parametrize("name", ALLOCATIONS)
@given(GRIDS, SEEDS, st.floats(0, 1))
@settings(deadline=None, max_examples=40)
def test_tokens_belong_to_one_region_each(name: str, hw: tuple[int, int], seed: int, share: float) -> None:
    atlas = _atlas(hw, seed)
    budget = max(1, int(share * hw[0] * hw[1]))
    tokens = ALLOCATIONS[name](atlas, budget)
    _check(tokens, atlas.member)
    assert tokens.count <= budget
    assert name == "fixed" or tokens.count == budget


@given(GRIDS, SEEDS, st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
@settings(deadline=None, max_examples=60)
def test_a_hybrid_spends_its_budget_on_both(
    hw: tuple[int, int], seed: int, share: float, importance_share: float, grid_share: float
) -> None:
    atlas = _atlas(hw, seed)
    budget = max(1, int(share * hw[0] * hw[1]))
    tokens = hybrid(atlas, budget, importance_share=importance_share, grid_share=grid_share)
    assert tokens.count == budget
    flat = tokens.token_of_cell.ravel()
    assert np.unique(flat[flat >= 0]).tolist() == list(range(budget))
    matters = atlas.importance >= importance_share * atlas.importance.max()
    for number in range(budget):
        owners = np.unique(atlas.regions.member[flat == number])
        assert len(owners) == 1 or not matters[owners].any()


def test_a_hybrid_keeps_a_grid_where_nothing_matters() -> None:
    hw = (16, 16)
    labels = np.zeros(hw, np.int32)
    labels[:4, :4] = 1
    relevance = (labels == 1).astype(np.float32)
    tokens = hybrid(build_atlas(labels, _grid(hw), relevance=relevance), 32, grid_share=0.5)
    assert len(np.unique(tokens.token_of_cell[:4, :4])) == 16
    elsewhere = np.bincount(tokens.token_of_cell[labels == 0])[16:]
    assert len(elsewhere) == 16
    assert elsewhere.min() >= 8
    assert elsewhere.max() <= 16


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
    assert set(fixed(atlas, 1, budget).cells.tolist()) == expected
    assert set(tiers(atlas, budget).cells.tolist()) == expected
    assert set(proportional(atlas, budget).cells.tolist()) == expected
    features = rng.random((5, *hw), np.float32)
    chosen = fixed(atlas, 1, budget)
    np.testing.assert_allclose(chosen.pool(features), features.reshape(5, -1)[:, chosen.cells].T, rtol=1e-6)


def test_the_grid_clusterer_makes_the_grid() -> None:
    frame = moving_square(1)[0]
    grid = Grid.for_size(frame.size_wh)
    clusters = GridClusterer(grid.cells).cluster(KeyframeInput(frame, grid))
    atlas = build_atlas(clusters, grid)
    assert atlas.count == grid.cells
    assert np.unique(atlas.member).size == grid.cells


def test_a_region_of_n_tokens_is_pooled_over_a_grid_of_about_n() -> None:
    tokens = lay_out(build_atlas(np.zeros((12, 12), np.int32), _grid((12, 12))), np.array([9], np.int32))
    expected = np.arange(9).reshape(3, 3).repeat(4, axis=0).repeat(4, axis=1)
    np.testing.assert_array_equal(tokens.token_of_cell, expected)
    wide = lay_out(build_atlas(np.zeros((4, 16), np.int32), _grid((4, 16))), np.array([4], np.int32))
    np.testing.assert_array_equal(wide.token_of_cell, np.arange(4)[None].repeat(4, axis=1).repeat(4, axis=0))


def test_places_without_cells_go_to_the_fullest_others() -> None:
    labels = np.ones((6, 6), np.int32)
    labels[0, :] = labels[:, 0] = 0
    tokens = lay_out(build_atlas(labels, _grid((6, 6))), np.array([4, 0], np.int32))
    ring = tokens.token_of_cell[labels == 0]
    # One of the box's 2x2 places has no cell of the corner-shaped region; that with five cells is halved.
    assert sorted(np.bincount(ring).tolist()) == [2, 3, 3, 3]
    assert tokens.count == 4
    assert (tokens.token_of_cell[labels == 1] == -1).all()


def test_more_tokens_than_cells_are_refused() -> None:
    atlas = build_atlas(np.zeros((2, 2), np.int32), _grid((2, 2)))
    with pytest.raises(ValueError, match="more tokens than cells"):
        lay_out(atlas, np.array([5], np.int32))


def test_pooling_takes_means_of_own_cells() -> None:
    rng = np.random.default_rng(0)
    atlas, features = _atlas((9, 13), 0, 12), rng.random((7, 9, 13), np.float32)
    tokens = proportional(atlas, 40)
    pooled = tokens.pool(features)
    assert pooled.shape == (40, 7)
    for number in range(40):
        np.testing.assert_allclose(pooled[number], features[:, tokens.token_of_cell == number].mean(axis=1), rtol=1e-5)
    with pytest.raises(ValueError, match=r"features must be \[D, 9, 13\]"):
        tokens.pool(features[:, :8])


def test_importance_is_the_best_relevance_and_the_mean_saliency() -> None:
    labels = np.array([[0, 0, 1, 1]], np.int32)
    relevance, saliency = np.array([[0, 1, 0.5, 0]], np.float32), np.array([[0, 0.5, 1, 1]], np.float32)
    atlas = build_atlas(labels, _grid((1, 4)), relevance=relevance, saliency=saliency)
    np.testing.assert_allclose(atlas.importance, [0.6 + 0.4 * 0.25, 0.3 + 0.4])


def test_tiers_give_fifteen_five_and_one() -> None:
    labels = np.arange(10, dtype=np.int32).reshape(2, 5).repeat(5, axis=0).repeat(5, axis=1)
    relevance = (1 - labels / 10).astype(np.float32)
    atlas = build_atlas(labels, _grid((10, 25)), relevance=relevance)
    assert np.bincount(tiers(atlas).region).tolist() == [15, 15, 5, 5, 5, 1, 1, 1, 1, 1]
    assert tiers(atlas, 100).count == 100


def test_maps_that_are_not_one_value_a_cell_are_refused() -> None:
    with pytest.raises(ValueError, match="saliency must be one value a cell"):
        build_atlas(np.zeros((2, 3), np.int32), _grid((2, 3)), saliency=np.zeros((3, 2), np.float32))
    with pytest.raises(ValueError, match="regions must be one value a cell"):
        build_atlas(np.zeros((3, 3), np.int32), _grid((2, 3)))


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


def test_frames_of_different_sizes_make_one_batch() -> None:
    forms = [canonical(_atlas(hw, seed, 50)) for seed, hw in enumerate([(15, 27), (32, 32), (4, 5)])]
    batch = stack(forms)
    assert batch.cells.shape == batch.valid.shape == (3, 91, 3)
    assert batch.valid.sum(axis=(1, 2)).tolist() == [273, 273, 18]
    assert batch.importance.shape == (3, 91)
    assert (batch.importance[2, 6:] == 0).all()
    features = np.ones((8, 4, 5), np.float32)
    pooled = forms[2].pool(features)
    assert pooled.shape == (91, 3, 8)
    np.testing.assert_array_equal(pooled.any(axis=2), forms[2].valid)
    with pytest.raises(ValueError, match="one form"):
        stack([])
    with pytest.raises(ValueError, match="one form"):
        stack([forms[0], canonical(_atlas((9, 9), 0), regions=10)])


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


def test_division_keeps_what_matters_and_joins_what_does_not() -> None:
    hw = (20, 20)
    labels = np.arange(400, dtype=np.int32).reshape(20, 20) // 4
    relevance = np.zeros(hw, np.float32)
    relevance[8:12] = 1
    atlas = build_atlas(labels, _grid(hw), relevance=relevance)
    divided = divide(atlas.member, atlas.importance, 30, 3)
    for region in np.unique(labels[8:12]):
        inside = divided[labels == region]
        assert (inside == inside[0]).all()
        assert (divided == inside[0]).sum() == 4


def test_a_canonical_atlas_of_real_regions_leaves_none_out() -> None:
    frame = Frame(0, 0.0, np.random.default_rng(0).integers(0, 255, (480, 854, 3), np.uint8))
    grid = Grid.for_size(frame.size_wh)
    clusters = SkimageSlic(50).cluster(KeyframeInput(frame, grid))
    form = canonical(build_atlas(clusters, grid, saliency=np.full((grid.rows, grid.columns), 0.5, np.float32)))
    assert form.valid.all()
    assert cells_of_clusters(clusters, grid).shape == (grid.rows, grid.columns)
