"""Properties of choosing under a budget, for every strategy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arr_stream.budget import budget_tokens
from arr_stream.errors import BudgetError
from arr_stream.relevance.query_scorers import QueryRelevance
from arr_stream.selection.allocation import Allocation, allocate_tokens, with_finer
from arr_stream.selection.atlas import QUOTAS, choose_by_region
from arr_stream.selection.cascade import CULL_EDGE_DISTANCE, best_of_region, candidates, regions_of_cells
from arr_stream.selection.novelty import SeenCells
from arr_stream.selection.selector import share_among_queries
from arr_stream.types import FINER, FINER_TOKENS, Grid

GRIDS = st.tuples(st.integers(1, 9), st.integers(1, 12))


def _scene(hw: tuple[int, int], seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, max(1, min(hw[0] * hw[1] // 3, 20)), hw).astype(np.int32)
    return labels, rng.random(hw, np.float32)


@pytest.mark.parametrize("strategy", ["topk", *sorted(QUOTAS)])
@given(hw=GRIDS, seed=st.integers(0, 99), data=st.data())
@settings(deadline=None)
def test_every_strategy_fills_the_budget_with_distinct_cells(
    strategy: str, hw: tuple[int, int], seed: int, data: st.DataObject
) -> None:
    labels, score = _scene(hw, seed)
    tokens = data.draw(st.integers(1, score.size))
    coarse = data.draw(st.integers(0, tokens)) if strategy == "topk" else 0
    # Cells that may not be chosen leave their tokens to others.
    eligible = np.random.default_rng(seed).random(hw) < data.draw(st.sampled_from((0.5, 1.0)))
    chosen = _chosen(strategy, labels, score, tokens, eligible, coarse)
    assert len(chosen) == min(tokens, eligible.sum())
    assert len(set(zip(chosen.rows, chosen.columns, chosen.level, strict=True))) == len(chosen)
    assert (chosen.level > 0).sum() <= coarse
    assert eligible[chosen.rows, chosen.columns][chosen.level == 0].all()
    assert (np.diff(chosen.score) <= 0).all()


def _chosen(
    strategy: str, labels: np.ndarray, score: np.ndarray, tokens: int, eligible: np.ndarray, coarse: int
) -> Allocation:
    if strategy == "topk":
        return allocate_tokens(score, eligible, tokens, coarse)
    regions = regions_of_cells(labels)
    importance = best_of_region(score.ravel(), regions)
    return choose_by_region(strategy, score, regions, importance, tokens, eligible)


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


@pytest.mark.parametrize(("text", "tokens"), [("auto", 273), ("40", 40), ("10%", 100), ("100%", 1000), ("0.01%", 1)])
def test_budgets(text: str, tokens: int) -> None:
    assert budget_tokens(text, 1000) == tokens


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


def test_a_cell_is_new_when_it_is_given_finer_and_not_when_it_no_longer_is() -> None:
    seen, picture = SeenCells(Grid.for_size((64, 64))), np.zeros((8, 8), np.uint8)
    rows, columns = np.divmod(np.arange(4, dtype=np.int32), np.int32(2))
    fine = Allocation(rows, columns, np.zeros(4, np.int32), np.ones(4, np.float32))
    finer = Allocation(rows, columns, np.array([FINER, 0, 0, 0], np.int32), fine.score)
    assert seen.send(fine, picture).all()
    assert seen.send(finer, picture).tolist() == [True, False, False, False]
    assert not seen.send(finer, picture).any() and not seen.send(fine, picture).any()
    assert seen.known(picture).all()
