"""Where cells are told to be: the library's own numbers for fine ones, means of what they cover for coarse ones."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from arr_stream.selection.allocation import Allocation
from arr_stream.texture.pictures import finer_pictures
from arr_stream.types import FINER, Grid
from arr_stream.vlm.qwen3_vl.cells import (
    Cells,
    Normalisation,
    block_extent,
    cell_pictures,
    interpolation,
    merged,
    patch_positions,
    patch_rows,
    texture_picture,
    token_positions,
)
from tests.tiny_qwen import picture

pytest.importorskip("transformers")

from tests.qwen_stock import Bench, seen, some_cells

GRIDS = st.tuples(st.integers(1, 9), st.integers(1, 12))
SIDE = 48
FEW = settings(deadline=None, max_examples=30)


def _cells(grid_hw: tuple[int, int], places: list[tuple[int, int, int]], score: list[float] | None = None) -> Cells:
    """Cells from row, column and level of each."""
    rows, columns, level = np.array(places, np.int32).T
    return Cells(grid_hw, rows, columns, level, np.array(score or [1.0] * len(places), np.float32))


@st.composite
def any_cells(draw: st.DrawFn, grids: st.SearchStrategy[tuple[int, int]] = GRIDS) -> Cells:
    """Cells of any level, some of them cut off by the border of the grid."""
    grid_hw = draw(grids)
    cell = st.tuples(
        st.integers(0, grid_hw[0] - 1), st.integers(0, grid_hw[1] - 1), st.integers(0, 2), st.floats(0, 1, width=32)
    )
    table = draw(st.lists(cell, min_size=1, max_size=12, unique_by=lambda drawn: drawn[:3]))
    return _cells(grid_hw, [drawn[:3] for drawn in table], [drawn[3] for drawn in table])


def _covered(cells: Cells, index: int) -> list[tuple[int, int]]:
    """The fine cells under one cell, from what a level means alone."""
    span = 2 ** int(cells.level[index])
    row, column = int(cells.rows[index]), int(cells.columns[index])
    return [
        (r, c)
        for r in range(row, row + span)
        for c in range(column, column + span)
        if r < cells.grid_hw[0] and c < cells.grid_hw[1]
    ]


def _listed(cells: Cells) -> list[tuple[float, ...]]:
    """Row, column, level and score of each."""
    table = cells.rows.tolist(), cells.columns.tolist(), cells.level.tolist(), cells.score.tolist()
    return list(zip(*table, strict=True))


def _assert_in_order(cells: Cells) -> None:
    middles = [tuple(np.mean(_covered(cells, index), axis=0)) for index in range(len(cells))]
    assert middles == sorted(middles)


@given(GRIDS)
@FEW
def test_of_fine_cells_patch_positions_and_weights_are_the_librarys(grid_hw: tuple[int, int]) -> None:
    from transformers.vision_utils import get_vision_interpolation_indices_and_weights, get_vision_position_ids

    grid = torch.tensor([[1, 2 * grid_hw[0], 2 * grid_hw[1]]])
    places = patch_positions(Cells.whole(grid_hw))
    assert torch.equal(places, get_vision_position_ids(grid, 2).float())
    indices, weights = get_vision_interpolation_indices_and_weights(
        grid, num_grid_per_side=SIDE, mode="bilinear", align_corners=True, spatial_merge_size=2
    )
    table = torch.randn(SIDE * SIDE, generator=torch.Generator().manual_seed(0))
    mine, mine_weights = interpolation(places, grid_hw, SIDE)
    theirs = (table[indices] * weights).sum(1)
    torch.testing.assert_close((table[mine] * mine_weights).sum(1), theirs, rtol=0, atol=1e-4)


@given(any_cells())
@FEW
def test_a_cell_is_at_the_mean_of_what_it_covers(cells: Cells) -> None:
    tokens = token_positions(cells, 100.0)
    patches = patch_positions(cells).reshape(len(cells), 2, 2, 2)
    for index in range(len(cells)):
        covered = np.array(_covered(cells, index), np.float64)
        np.testing.assert_allclose(tokens[:, index], [100.0, *(100 + covered.mean(0))])
        # Of the 16-px patches under the block each quarter stands for those that lie in it.
        (top, left), (bottom, right) = 2 * covered.min(0), 2 * covered.max(0) + 2
        for down in (0, 1):
            for across in (0, 1):
                height, width = (bottom - top) / 2, (right - left) / 2
                rows = np.arange(top + down * height, top + (down + 1) * height)
                columns = np.arange(left + across * width, left + (across + 1) * width)
                np.testing.assert_allclose(patches[index, down, across], [rows.mean(), columns.mean()])


@given(any_cells())
@FEW
def test_interpolation_between_patches_is_the_mean_of_linear_tables(cells: Cells) -> None:
    """A table that is linear in row and column is read exactly at any position, halves and corners included."""
    places = patch_positions(cells)
    indices, weights = interpolation(places, cells.grid_hw, SIDE)
    assert ((indices >= 0) & (indices < SIDE * SIDE)).all()
    assert ((weights >= -1e-6) & (weights <= 1 + 1e-6)).all()
    torch.testing.assert_close(weights.sum(1), torch.ones(len(places)))
    rows, columns = (axis.reshape(-1).double() for axis in torch.meshgrid(*[torch.arange(SIDE)] * 2, indexing="ij"))
    last = 2 * torch.tensor(cells.grid_hw, dtype=torch.float64) - 1
    for axis, table in enumerate((rows, columns)):
        read = (table[indices] * weights.double()).sum(1)
        torch.testing.assert_close(read, places[:, axis].double() / last[axis] * (SIDE - 1), rtol=0, atol=1e-4)


@given(any_cells())
@FEW
def test_blocks_stay_within_the_grid_and_text_goes_on_behind_them(cells: Cells) -> None:
    extent = block_extent(cells.grid_hw)
    assert extent == max(cells.grid_hw)
    positions = token_positions(cells, 7.0)
    assert positions.min() >= 7 and positions.max() < 7 + extent
    places = patch_positions(cells)
    assert (places >= 0).all() and (places <= 2 * torch.tensor(cells.grid_hw) - 1).all()


@given(any_cells())
@FEW
def test_reading_order_goes_by_lines_and_keeps_every_cell(cells: Cells) -> None:
    ordered = cells.in_reading_order()
    assert sorted(_listed(cells)) == sorted(_listed(ordered))
    _assert_in_order(ordered)


@given(any_cells())
@FEW
def test_covered_is_every_fine_cell_below_a_chosen_one(cells: Cells) -> None:
    own = {place for index in range(len(cells)) for place in _covered(cells, index)}
    assert set(map(tuple, np.argwhere(cells.covered()).tolist())) == own


@given(any_cells(), st.integers(1, 12))
@FEW
def test_the_best_are_the_highest_scores_in_reading_order(cells: Cells, most: int) -> None:
    best = cells.best(most)
    assert len(best) == min(most, len(cells))
    np.testing.assert_array_equal(np.sort(best.score), np.sort(cells.score)[-len(best) :])
    if len(cells) > most:
        _assert_in_order(best)


@given(st.data())
@FEW
def test_frames_of_a_pair_are_merged_without_doubles(data: st.DataObject) -> None:
    grid_hw = data.draw(GRIDS)
    parts = [data.draw(any_cells(st.just(grid_hw))) for _ in range(2)]
    best: dict[tuple[float, ...], float] = {}
    for *place, score in itertools.chain(*map(_listed, parts)):
        best[tuple(place)] = max(score, best.get(tuple(place), 0.0))
    both = merged(parts)
    assert sorted(_listed(both)) == sorted((*place, score) for place, score in best.items())
    _assert_in_order(both)


def test_a_coarse_cell_is_the_block_scaled_down_whole_or_cut_off() -> None:
    rgb = texture_picture(picture(160, 128), (160, 128))
    cells = _cells((4, 5), [(0, 0, 1), (0, 0, 2), (2, 4, 1), (1, 3, 2), (3, 4, 2), (2, 2, 0)])
    cut = cell_pictures(rgb, cells)
    for index in range(len(cells)):
        covered = np.array(_covered(cells, index))
        (top, left), (bottom, right) = 32 * covered.min(0), 32 * covered.max(0) + 32
        block = rgb[top:bottom, left:right].astype(np.float64)
        down, across = block.shape[0] // 32, block.shape[1] // 32
        if block.shape[0] % 32 == block.shape[1] % 32 == 0:
            mean = block.reshape(32, down, 32, across, 3).mean(axis=(1, 3))
            assert np.abs(cut[index] - mean).max() <= 1, index


@pytest.fixture(scope="module")
def bench(tiny: tuple[Any, Any]) -> Bench:
    return Bench.of(*tiny)


def test_mixed_levels_run_and_a_coarse_cell_that_moves_counts(bench: Bench) -> None:
    rgb = np.full((256, 320, 3), 120, np.uint8)
    few = some_cells((8, 10), 6, seed=1)
    fine = [(int(row), int(column), 0) for row, column in zip(few.rows, few.columns, strict=True)]

    def logits(row: int, column: int, level: int) -> torch.Tensor:
        cells = _cells((8, 10), [*fine, (row, column, level)])
        return bench.run([seen(bench.block("sparse", rgb, rgb, cells))]).logits[-1]

    # The picture is of one colour, so that nothing but the place differs; the last is cut off by the border.
    runs = [logits(*place) for place in ((2, 2, 1), (2, 4, 1), (4, 2, 1), (2, 2, 2), (7, 9, 2))]
    assert all(torch.isfinite(run).all() for run in runs)
    for one in range(len(runs)):
        for other in range(one):
            assert (runs[one] - runs[other]).abs().max() > 1e-3, (one, other)


def test_the_whole_frame_of_two_by_two_cells_as_one_coarse_cell_lies_in_their_middle(bench: Bench) -> None:
    """Half positions are rotated by, not rounded: the angle is the mean of those on either side."""
    coarse = _cells((2, 2), [(0, 0, 1)])
    assert token_positions(coarse, 0.0)[:, 0].tolist() == [0.0, 0.5, 0.5]
    rgb = np.full((64, 64, 3), 90, np.uint8)
    block = bench.block("sparse", rgb, rgb, coarse)
    memory = bench.memory()
    memory.append([seen(block)])
    at, key = memory.places[0], memory.keys(0)[0]
    state = bench.adapter._language.layers[0].self_attn
    hidden = bench.adapter._language.layers[0].input_layernorm(block.tokens.features)
    bare = state.k_norm(state.k_proj(hidden).view(1, -1, state.head_dim))[0, 0]
    frequencies = 1 / 5_000_000.0 ** (torch.arange(0, 32, 2) / 32)
    start = float(at)
    angles = start * frequencies
    for axis in (1, 2):
        places = torch.arange(axis, 15, 3)
        angles[places] = (start + 0.5) * frequencies[places]
    cosine, sine = angles.cos().repeat(2), angles.sin().repeat(2)
    turned = bare * cosine + torch.cat([-bare[16:], bare[:16]]) * sine
    torch.testing.assert_close(key[at], turned.detach(), rtol=1e-5, atol=1e-5)


# ---- finer


def _allocated(grid: Grid, places: list[tuple[int, int, int]], score: list[float] | None = None) -> Cells:
    rows, columns, level = np.array(places, np.int32).T
    return Cells.allocated(Allocation(rows, columns, level, np.array(score or [1.0] * len(places), np.float32)), grid)


def test_a_finer_cell_is_four_tokens_a_quarter_off_its_place() -> None:
    cells = _allocated(Grid((256, 256), 4, 4), [(1, 2, FINER), (1, 0, 0), (2, 2, 1)])
    assert len(cells) == 6 and cells.level.tolist() == [-1, -1, 0, -1, -1, 1]
    places = (token_positions(cells, 10.0) - 10).T.tolist()
    assert places[:2] == [[0, 0.75, 1.75], [0, 0.75, 2.25]] and places[2] == [0, 1, 0]
    assert places[3:5] == [[0, 1.25, 1.75], [0, 1.25, 2.25]] and places[5] == [0, 2.5, 2.5]
    # In the tower, patches of half the size tile the cell's two by two.
    patches = patch_positions(cells).reshape(6, 4, 2)[[0, 1, 3, 4]].reshape(-1, 2)
    assert sorted({row for row, _ in patches.tolist()}) == [1.75, 2.25, 2.75, 3.25]
    assert sorted({column for _, column in patches.tolist()}) == [3.75, 4.25, 4.75, 5.25]
    np.testing.assert_allclose(patches.mean(0), [2.5, 4.5])


def test_beyond_the_corner_patches_the_table_is_read_at_its_border() -> None:
    grid = Grid((256, 256), 4, 4)
    corners = _allocated(grid, [(0, 0, FINER), (3, 3, FINER)])
    index, weight = interpolation(patch_positions(corners), (4, 4), SIDE)
    assert (weight >= 0).all() and torch.allclose(weight.sum(1), torch.ones(len(weight)))
    assert index[0][weight[0] > 0].tolist() == [0]
    assert index[-1][weight[-1] > 0].unique().tolist() == [SIDE * SIDE - 1]


@pytest.mark.parametrize("size_wh", [(320, 256), (229, 187), (640, 512)])
def test_quarters_are_cut_from_the_frame_itself(size_wh: tuple[int, int]) -> None:
    grid, rgb = Grid(size_wh, 4, 5), picture(*size_wh)
    cells = _allocated(grid, [(r, c, FINER if (r + c) % 2 else 0) for r in range(4) for c in range(5)])
    texture = texture_picture(rgb, grid.texture_wh)
    cut = cell_pictures(texture, cells, rgb)
    for index in range(len(cells)):
        row, column = int(cells.rows[index]), int(cells.columns[index])
        if cells.level[index] == 0:
            expected = texture[32 * row : 32 * row + 32, 32 * column : 32 * column + 32]
        else:
            down, across = divmod(int(cells.quarter[index]), 2)
            whole = finer_pictures(rgb, grid, cells.rows[index, None], cells.columns[index, None])[0]
            expected = whole[32 * down : 32 * down + 32, 32 * across : 32 * across + 32]
        np.testing.assert_array_equal(cut[index], expected)
    with pytest.raises(ValueError, match="source"):
        cell_pictures(texture, cells)


@given(any_cells(), st.data())
@FEW
def test_the_best_tokens_hold_whole_finer_cells(cells: Cells, data: st.DataObject) -> None:
    level = np.where((cells.level == 0) & (cells.columns % 2 == 0), FINER, cells.level).astype(np.int32)
    grid = Grid((cells.grid_hw[1] * 64, cells.grid_hw[0] * 64), *cells.grid_hw)
    finer = Cells.allocated(Allocation(cells.rows, cells.columns, level, cells.score), grid)
    most = data.draw(st.integers(0, len(finer)))
    best = finer.best(most)
    assert len(best) <= most
    _, quarters = np.unique(np.stack([best.rows, best.columns], 1)[best.level == FINER], axis=0, return_counts=True)
    assert (quarters == 4).all()
    if most - len(best) >= 4:
        assert len(best) == len(finer)


def test_a_cell_that_one_of_two_frames_gives_finer_is_given_so_alone() -> None:
    grid = Grid((256, 256), 4, 4)
    one, other = _allocated(grid, [(0, 0, FINER), (1, 1, 0)]), _allocated(grid, [(0, 0, 0), (2, 2, 0), (0, 0, 2)])
    both = merged([one, other])
    assert sorted(zip(both.rows, both.columns, both.level, both.quarter, strict=True)) == [
        *((0, 0, -1, quarter) for quarter in range(4)), (0, 0, 2, 0), (1, 1, 0, 0), (2, 2, 0, 0),
    ]  # fmt: skip


def test_a_frame_given_finer_throughout_has_the_rows_of_one_twice_its_size() -> None:
    rgb = picture(256, 192)
    finer = _allocated(Grid((256, 192), 3, 4), [(r, c, FINER) for r in range(3) for c in range(4)])
    whole = Cells.whole((6, 8))
    small = texture_picture(rgb, (128, 96))
    half = Normalisation((0.5,) * 3, (0.5,) * 3)
    torch.testing.assert_close(
        patch_rows(small, small, finer, half, (rgb, rgb)), patch_rows(rgb, rgb, whole, half), rtol=0, atol=0
    )
    # Places are those of the larger frame at half the scale, about the same middle.
    larger = token_positions(whole, 0.0)[1:]
    torch.testing.assert_close(token_positions(finer, 0.0)[1:], (larger + 0.5) / 2 - 0.5)
