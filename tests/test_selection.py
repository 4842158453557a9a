"""Properties of choosing under a budget, for every strategy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from arr_stream.errors import BudgetError
from arr_stream.relevance.query_scorers import QueryRelevance
from arr_stream.selection.allocation import Allocation, allocate_tokens
from arr_stream.selection.budget import budget_tokens
from arr_stream.selection.cascade import (
    CULL_EDGE_DISTANCE,
    best_of_region,
    candidates,
    mean_of_region,
    regions_of_cells,
    scored_most,
)
from arr_stream.selection.division import divide
from arr_stream.selection.finer import with_finer
from arr_stream.selection.novelty import SeenCells
from arr_stream.selection.selector import share_among_queries
from arr_stream.selection.strategies import QUOTAS, choose_by_region, choose_hybrid
from arr_stream.types import FINER, FINER_TOKENS, Grid

GRIDS = st.tuples(st.integers(1, 9), st.integers(1, 12))


def _scene(hw: tuple[int, int], seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, max(1, min(hw[0] * hw[1] // 3, 20)), hw).astype(np.int32)
    return labels, rng.random(hw, np.float32)


@given(GRIDS, st.integers(0, 99), st.data())
@settings(deadline=None)
def test_topk_fills_the_budget_with_distinct_cells(hw: tuple[int, int], seed: int, data: st.DataObject) -> None:
    _, score = _scene(hw, seed)
    tokens = data.draw(st.integers(1, score.size))
    coarse = data.draw(st.integers(0, tokens))
    chosen = allocate_tokens(score, np.ones(hw, bool), tokens, coarse)
    assert len(chosen) == tokens
    assert len({(r, c, v) for r, c, v in zip(chosen.rows, chosen.columns, chosen.level, strict=True)}) == tokens
    assert (chosen.level > 0).sum() <= coarse
    assert (np.diff(chosen.score) <= 0).all()


def test_topk_without_coarse_cells_takes_the_best() -> None:
    _, score = _scene((6, 8), 3)
    chosen = allocate_tokens(score, np.ones(score.shape, bool), 10, 0)
    np.testing.assert_array_equal(chosen.score, np.sort(score.ravel())[::-1][:10])


def test_a_question_answered_in_few_cells_leaves_tokens_for_context() -> None:
    score = np.full((8, 12), 0.05, np.float32)
    score[2:4, 3:6] = 0.9
    chosen = allocate_tokens(score, np.ones(score.shape, bool), 20, 4)
    fine = chosen.level == 0
    assert {(2, 3), (3, 5)} <= set(zip(chosen.rows[fine].tolist(), chosen.columns[fine].tolist(), strict=True))
    assert 0 < (~fine).sum() <= 4
    peaked = np.where(score > 0.5, score, 0.0).astype(np.float32)
    assert (allocate_tokens(peaked, np.ones(score.shape, bool), 6, 4).level == 0).all()


@pytest.mark.parametrize("strategy", sorted(QUOTAS))
@given(hw=GRIDS, seed=st.integers(0, 99), share=st.floats(0.01, 1))
@settings(deadline=None)
def test_strategies_by_region_fill_the_budget(strategy: str, hw: tuple[int, int], seed: int, share: float) -> None:
    labels, score = _scene(hw, seed)
    tokens = max(1, int(share * score.size))
    regions = regions_of_cells(labels)
    importance = best_of_region(score.ravel(), regions)
    chosen = choose_by_region(strategy, score, regions, importance, tokens)
    assert len(chosen) == tokens
    assert len(set(zip(chosen.rows.tolist(), chosen.columns.tolist(), strict=True))) == tokens


@pytest.mark.parametrize("strategy", sorted(QUOTAS))
@given(hw=GRIDS, seed=st.integers(0, 99), share=st.floats(0.01, 1))
@settings(deadline=None)
def test_with_one_region_a_cell_every_strategy_is_topk(
    strategy: str, hw: tuple[int, int], seed: int, share: float
) -> None:
    _, score = _scene(hw, seed)
    tokens = max(1, int(share * score.size))
    regions = regions_of_cells(np.arange(score.size, dtype=np.int32).reshape(hw))
    chosen = choose_by_region(strategy, score, regions, score.ravel(), tokens)
    best = allocate_tokens(score, np.ones(hw, bool), tokens, 0)
    np.testing.assert_array_equal(chosen.rows, best.rows)
    np.testing.assert_array_equal(chosen.columns, best.columns)


@pytest.mark.parametrize("strategy", [*sorted(QUOTAS), "hybrid"])
@given(hw=GRIDS, seed=st.integers(0, 99), share=st.floats(0.01, 1))
@settings(deadline=None)
def test_cells_that_may_not_be_chosen_leave_their_tokens_to_others(
    strategy: str, hw: tuple[int, int], seed: int, share: float
) -> None:
    labels, score = _scene(hw, seed)
    tokens = max(1, int(share * score.size))
    eligible = np.random.default_rng(seed).random(hw) < 0.5
    regions = regions_of_cells(labels)
    importance = best_of_region(score.ravel(), regions)
    if strategy == "hybrid":
        chosen = choose_hybrid(score, regions, importance, tokens, eligible)
    else:
        chosen = choose_by_region(strategy, score, regions, importance, tokens, eligible)
    assert len(chosen) == min(tokens, eligible.sum())
    assert eligible[chosen.rows, chosen.columns].all()


def _relevance(of_queries: np.ndarray) -> QueryRelevance:
    combined = of_queries.max(0)
    best = of_queries.reshape(len(of_queries), -1).max(1)
    return QueryRelevance(best, combined, np.where(combined > 0, of_queries.argmax(0), -1), combined < 0)


@given(GRIDS, st.integers(1, 4), st.integers(0, 99), st.data())
@settings(deadline=None)
def test_each_of_several_queries_gets_the_cell_that_it_wants_most(
    hw: tuple[int, int], queries: int, seed: int, data: st.DataObject
) -> None:
    rng = np.random.default_rng(seed)
    score = rng.random(hw, np.float32)
    relevance = _relevance(rng.random((queries, *hw), np.float32) ** 4 * rng.random((queries, 1, 1), np.float32))
    allowed = rng.random(hw) < 0.8
    tokens = data.draw(st.integers(1, score.size))
    shared, raised = share_among_queries(score, relevance, allowed, tokens)
    assert raised.sum() <= tokens or tokens < queries
    assert (shared == score)[~raised].all() and (shared >= score).all() and (shared <= 1).all()
    if (relevance.best >= 0.1).sum() < 2:
        np.testing.assert_array_equal(shared, score)
    elif tokens >= queries:
        chosen = allocate_tokens(shared, allowed, min(tokens, int(allowed.sum())), 0)
        for query in range(queries):
            wanted = np.where((relevance.query == query) & allowed, relevance.combined, 0)
            if wanted.max() >= max(0.1, 0.3 * relevance.best[query]):
                row, column = np.unravel_index(wanted.argmax(), hw)
                assert (row, column) in zip(chosen.rows, chosen.columns, strict=True)


def test_a_large_thing_found_surely_leaves_tokens_to_a_small_one_that_is_not() -> None:
    wanted = np.zeros((2, 8, 12), np.float32)
    wanted[0, 1:6, 1:6], wanted[1, 6:8, 10:12] = 0.9, 0.3
    relevance, everywhere = _relevance(wanted), np.ones((8, 12), bool)
    score = relevance.combined
    for scores, of_the_small in ((score, 0), (share_among_queries(score, relevance, everywhere, 10)[0], 4)):
        chosen = allocate_tokens(scores, everywhere, 10, 0)
        assert (chosen.columns >= 10).sum() == of_the_small


def test_what_another_query_finds_better_leaves_no_part_for_faint_places() -> None:
    wanted = np.zeros((2, 8, 12), np.float32)
    wanted[0, 1:4, 1:4], wanted[1, 1:4, 1:4], wanted[1, 6:8, 6:12] = 0.9, 0.8, 0.12
    relevance, everywhere = _relevance(wanted), np.ones((8, 12), bool)
    _, raised = share_among_queries(relevance.combined, relevance, everywhere, 8)
    assert raised.sum() == 4
    assert raised[1:4, 1:4].sum() == 4


@given(GRIDS, st.integers(0, 99), st.data())
@settings(deadline=None)
def test_a_hybrid_fills_the_budget_with_distinct_cells(hw: tuple[int, int], seed: int, data: st.DataObject) -> None:
    labels, score = _scene(hw, seed)
    tokens = data.draw(st.integers(1, score.size))
    regions = regions_of_cells(labels)
    importance = best_of_region(score.ravel(), regions)
    chosen = choose_hybrid(
        score,
        regions,
        importance,
        tokens,
        np.ones(hw, bool),
        importance_share=data.draw(st.floats(0, 1)),
        grid_share=data.draw(st.floats(0, 1)),
        coarse_most=tokens // 4,
    )
    assert len(chosen) == tokens
    assert len({(r, c, v) for r, c, v in zip(chosen.rows, chosen.columns, chosen.level, strict=True)}) == tokens
    assert (chosen.level > 0).sum() <= tokens // 4
    assert (np.diff(chosen.score) <= 0).all()


def test_a_hybrid_shows_the_weak_cells_of_what_matters_and_the_strong_ones_elsewhere() -> None:
    labels = np.zeros((8, 8), np.int32)
    labels[2:4, 2:4] = 1
    score = np.where(labels == 1, 0.1, 0.5).astype(np.float32)
    score[7, 7] = 0.9
    regions = regions_of_cells(labels)
    everywhere = np.ones(labels.shape, bool)
    chosen = choose_hybrid(score, regions, np.array([0.1, 1.0], np.float32), 6, everywhere, grid_share=0.3)
    cells = set(zip(chosen.rows.tolist(), chosen.columns.tolist(), strict=True))
    assert {(2, 2), (2, 3), (3, 2), (3, 3), (7, 7)} <= cells
    only_topk = choose_hybrid(score, regions, np.array([0.1, 1.0], np.float32), 6, everywhere, grid_share=1.0)
    assert (only_topk.score >= 0.5).all()


def test_tiers_show_every_region_while_tokens_last() -> None:
    labels = np.arange(20, dtype=np.int32).reshape(4, 5).repeat(2, axis=0).repeat(2, axis=1)
    score = np.random.default_rng(0).random(labels.shape, np.float32)
    regions = regions_of_cells(labels)
    chosen = choose_by_region("tiers", score, regions, best_of_region(score.ravel(), regions), 25)
    assert len(set(labels[chosen.rows, chosen.columns].tolist())) == 20


def test_canonical_splits_regions_until_each_has_its_share() -> None:
    labels = np.zeros((20, 20), np.int32)
    split = divide(labels, np.ones(1, np.float32), 91, 3)
    assert len(np.unique(split)) == 91
    regions = regions_of_cells(split)
    chosen = choose_by_region("canonical", np.ones((20, 20), np.float32), regions, np.ones(91, np.float32), 273)
    assert len(chosen) == 273
    assert set(np.bincount(regions.member[chosen.rows * 20 + chosen.columns]).tolist()) == {3}


@given(GRIDS, st.integers(0, 99), st.data())
@settings(deadline=None)
def test_cascade_gives_enough_candidates_and_keeps_what_is_relevant(
    hw: tuple[int, int], seed: int, data: st.DataObject
) -> None:
    labels, relevance = _scene(hw, seed)
    relevance = np.where(relevance > 0.8, relevance, 0.0).astype(np.float32).ravel()
    tokens = data.draw(st.integers(1, labels.size))
    regions = regions_of_cells(labels)
    region_score = best_of_region(relevance, regions)
    edge_distance = np.random.default_rng(seed).random(labels.size).astype(np.float32) * 0.1
    chosen = candidates(regions, region_score, relevance, edge_distance, tokens=tokens, most=labels.size)
    assert len(chosen) >= tokens
    assert (np.diff(chosen) > 0).all()
    assert set(np.flatnonzero(relevance > 0).tolist()) <= set(chosen.tolist())


@given(GRIDS, st.integers(0, 99), st.data())
@settings(deadline=None)
def test_cascade_scores_no_more_than_it_may_and_the_most_relevant_first(
    hw: tuple[int, int], seed: int, data: st.DataObject
) -> None:
    labels, relevance = _scene(hw, seed)
    relevance = relevance.ravel()
    tokens = data.draw(st.integers(1, labels.size))
    most = data.draw(st.integers(tokens, labels.size))
    skip = np.random.default_rng(seed + 1).random(labels.size) < 0.3
    regions = regions_of_cells(labels)
    region_score = best_of_region(relevance, regions)
    flat = np.full(labels.size, 2 * CULL_EDGE_DISTANCE, np.float32)
    chosen = candidates(regions, region_score, relevance, flat, tokens=tokens, most=most, skip=skip)
    open_cells = np.flatnonzero(~skip)
    assert min(tokens, len(open_cells)) <= len(chosen) <= most
    assert not skip[chosen].any()
    best = open_cells[np.argsort(-relevance[open_cells])][:tokens]
    assert set(best[relevance[best] > 0.03].tolist()) <= set(chosen.tolist())


def test_without_a_query_the_best_regions_are_scored_whole_and_flat_cells_are_not() -> None:
    labels = np.repeat(np.arange(4, dtype=np.int32), 16).reshape(8, 8)
    edge_distance = np.zeros(64, np.float32)
    edge_distance[32:40] = 2 * CULL_EDGE_DISTANCE
    region_score = np.array([0.1, 0.2, 0.9, 0.5], np.float32)
    nothing = np.zeros(64, np.float32)
    chosen = candidates(regions_of_cells(labels), region_score, nothing, edge_distance, tokens=8, most=24)
    assert chosen.tolist() == list(range(40, 64))
    few = candidates(regions_of_cells(labels), region_score, nothing, edge_distance, tokens=4, most=9)
    # Eight cells of the best region, and of the next the one nearest to its middle.
    assert set(range(40, 48)) < set(few.tolist())
    assert len(few) == 9


def test_an_eighth_is_scored_where_that_is_enough() -> None:
    assert scored_most(4096, 50, 273) + 50 == 512
    assert scored_most(4096, 50, 40) + 50 == 512
    assert scored_most(1024, 50, 273) == 273 + 136
    assert scored_most(300, 50, 273) == 300


def test_means_of_regions() -> None:
    labels = np.array([[0, 2, 2], [0, 0, 2]], np.int32)
    values = torch.arange(12, dtype=torch.float32).reshape(6, 2)
    means = mean_of_region(values, regions_of_cells(labels))
    expected = [values[[0, 3, 4]].mean(dim=0).tolist(), values[[1, 2, 5]].mean(dim=0).tolist()]
    assert means.tolist() == [pytest.approx(row) for row in expected]


def test_the_seat_of_a_ring_lies_on_the_ring() -> None:
    labels = np.zeros((5, 5), np.int32)
    labels[1:4, 1:4] = 1
    regions = regions_of_cells(labels)
    assert labels.ravel()[regions.seat].tolist() == [0, 1]
    assert regions.seat[1] == 12


@pytest.mark.parametrize(("text", "tokens"), [("auto", 273), ("40", 40), ("10%", 100), ("100%", 1000), ("0.01%", 1)])
def test_budgets(text: str, tokens: int) -> None:
    assert budget_tokens(text, 1000) == tokens


def test_the_default_budget_fits_a_small_grid() -> None:
    assert budget_tokens("auto", 6) == 6


def test_a_grid_that_is_smaller_than_the_budget_is_chosen_whole() -> None:
    assert budget_tokens("1001", 1000) == 1000


@pytest.mark.parametrize("text", ["0", "-3", "0%", "101%", "many", "", "nan%", "1e3"])
def test_impossible_budgets_are_refused(text: str) -> None:
    with pytest.raises(BudgetError, match="budget"):
        budget_tokens(text, 1000)


def test_a_cell_is_new_until_sent_and_again_when_it_changes() -> None:
    seen = SeenCells(Grid.for_size((128, 64)))
    picture = np.random.default_rng(0).integers(0, 255, (8, 16), np.uint8)
    everything = allocate_tokens(np.ones((2, 4), np.float32), np.ones((2, 4), bool), 8, 0)
    assert seen.send(everything, picture).all()
    assert not seen.send(everything, picture).any()
    changed = picture.copy()
    changed[:4, 4:8] = 255 - changed[:4, 4:8]
    fresh = seen.send(everything, changed)
    assert list(zip(everything.rows[fresh], everything.columns[fresh], strict=True)) == [(0, 1)]
    seen.forget()
    assert seen.send(everything, changed).all()


def test_a_cell_seen_coarsely_is_new_in_detail() -> None:
    seen = SeenCells(Grid.for_size((128, 128)))
    picture = np.zeros((16, 16), np.uint8)
    score = np.full((4, 4), 0.5, np.float32)
    score[0, 0] = 1
    mixed = allocate_tokens(score, np.ones((4, 4), bool), 2, 1)
    assert sorted(mixed.level.tolist()) == [0, 2]
    assert seen.send(mixed, picture).all()
    assert not seen.send(mixed, picture).any()
    fine = allocate_tokens(score, np.ones((4, 4), bool), 3, 0)
    assert seen.send(fine, picture).tolist() == [False, True, True]


def test_a_coarse_cell_over_one_that_has_changed_since_it_was_sent_is_new() -> None:
    seen, picture = SeenCells(Grid.for_size((128, 128))), np.zeros((16, 16), np.uint8)
    rows, columns = np.divmod(np.arange(16, dtype=np.int32), np.int32(4))
    fine = Allocation(rows, columns, np.zeros(16, np.int32), np.ones(16, np.float32))
    block = Allocation(*(np.array([value], np.int32) for value in (0, 0, 2)), np.ones(1, np.float32))
    seen.send(fine, picture)
    assert not seen.send(block, picture).any()
    changed = picture.copy()
    changed[:4, :4] = 200
    assert seen.send(block, changed).all() and not seen.send(block, changed).any()
    # The other cells of the block are still known as they are.
    assert seen.known(changed).sum() == 15


def _places(chosen: Allocation, level: int) -> set[tuple[int, int]]:
    there = chosen.level == level
    return set(zip(chosen.rows[there].tolist(), chosen.columns[there].tolist(), strict=True))


@given(GRIDS, st.integers(0, 99), st.floats(0, 1), st.data())
@settings(deadline=None)
def test_finer_cells_never_exceed_the_budget_or_their_share(
    hw: tuple[int, int], seed: int, share: float, data: st.DataObject
) -> None:
    _, score = _scene(hw, seed)
    small = np.random.default_rng(seed + 1).random(hw, np.float32) * (score > 0.4)
    tokens = data.draw(st.integers(1, score.size))
    eligible = np.random.default_rng(seed + 2).random(hw) < data.draw(st.sampled_from((0.3, 1.0)))
    before = allocate_tokens(score, eligible, tokens, data.draw(st.integers(0, tokens)))
    chosen = with_finer(before, small, tokens, share)
    finer = _places(chosen, FINER)
    assert chosen.tokens <= tokens and FINER_TOKENS * len(finer) <= share * tokens
    assert finer <= _places(before, 0) and all(small[place] > 0 for place in finer)
    assert _places(chosen, 0) | finer <= _places(before, 0) and _places(chosen, 2) == _places(before, 2)
    assert (np.diff(chosen.score) <= 0).all()
    if not finer:
        np.testing.assert_array_equal(chosen.score, before.score)


def test_small_text_is_made_finer_word_by_word_and_the_lowest_cells_pay() -> None:
    score = np.linspace(0.4, 0.3, 48, dtype=np.float32).reshape(4, 12)
    small = np.zeros_like(score)
    low, high = [(3, 1), (3, 2)], [(0, 5), (0, 6), (0, 7)]
    for place in (*low, *high):
        small[place], score[place] = 0.5, 0.8 if place in high else 0.7
    before = allocate_tokens(score, np.ones(score.shape, bool), 40, 0)
    # Room for four finer cells: the better word as a whole, then the beginning of the other.
    chosen = with_finer(before, small, 40, 0.4)
    assert _places(chosen, FINER) == {*high, low[0]}
    assert chosen.tokens == 40 and chosen.score.min() > before.score.min()
    np.testing.assert_array_equal(chosen.score, before.score[: len(chosen)])


def test_small_text_that_nobody_asked_for_stays_as_it_is() -> None:
    score = np.full((4, 8), 0.1, np.float32)
    score[0, 0] = 0.9
    chosen = allocate_tokens(score, np.ones(score.shape, bool), 20, 0)
    assert not (with_finer(chosen, np.ones_like(score), 20, 1.0).level == FINER).any()


def test_a_cell_is_new_when_it_is_given_finer_and_not_when_it_no_longer_is() -> None:
    seen, picture = SeenCells(Grid.for_size((64, 64))), np.zeros((8, 8), np.uint8)
    rows, columns = np.divmod(np.arange(4, dtype=np.int32), np.int32(2))
    fine = Allocation(rows, columns, np.zeros(4, np.int32), np.ones(4, np.float32))
    finer = Allocation(rows, columns, np.array([FINER, 0, 0, 0], np.int32), fine.score)
    assert seen.send(fine, picture).all()
    assert seen.send(finer, picture).tolist() == [True, False, False, False]
    assert not seen.send(finer, picture).any() and not seen.send(fine, picture).any()
    assert seen.known(picture).all()
