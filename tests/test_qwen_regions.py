"""Summaries of what was not chosen: means by hand, places, an exact budget, attention that is conserved."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from arr_stream.config import Settings
from arr_stream.errors import InvalidSetting
from arr_stream.patch_set import PatchSet
from arr_stream.selection.novelty import SeenCells
from arr_stream.texture.array import Plane, Texture
from arr_stream.texture.pictures import Pictures
from arr_stream.types import Frame, Grid
from arr_stream.vlm import make_viewer
from arr_stream.vlm.qwen3_vl.cells import Cells
from arr_stream.vlm.qwen3_vl.encoding import Block
from arr_stream.vlm.qwen3_vl.entries import FrameEntry, survivors
from arr_stream.vlm.qwen3_vl.regions import Summaries, summarised
from arr_stream.vlm.qwen3_vl.sent_cells import TokenMap
from tests.tiny_qwen import picture

pytest.importorskip("transformers")

from tests.qwen_stock import EXACT, QUESTION, Bench, patches_of, seen, some_cells, viewer_of

HW = (4, 5)
CELLS = Cells.whole(HW, np.linspace(0.9, 0.8, 20, dtype=np.float32)).take(np.array([0, 19], np.int32))


def _two() -> Summaries:
    """One of six cells in the upper rows, one of a column of three."""
    of_cell = np.full(HW, -1, np.int32)
    of_cell[:2, 1:4] = 0
    of_cell[1:, 0] = 1
    return Summaries(of_cell, np.array([0.5, 0.25], np.float32))


@pytest.fixture(scope="module")
def bench(tiny: tuple[Any, Any]) -> Bench:
    return Bench.of(*tiny)


def _block(bench: Bench, summaries: Summaries | None) -> Block:
    rgb = picture(160, 128)
    return bench.feeder("prune").feed(rgb, rgb, CELLS, summaries=summaries)


# ---- the tokens


def test_a_summary_is_the_mean_of_the_towers_output_level_by_level(bench: Bench) -> None:
    rgb = picture(160, 128)
    every = bench.feeder("prune").feed(rgb, rgb, Cells.whole(HW)).tokens
    block = _block(bench, _two())
    assert len(block) == 4 and len(block.cells) == 2
    members = [[0 * 5 + 1, 2, 3, 5 + 1, 7, 8], [5, 10, 15]]
    levels = zip([every.features, *every.deepstack], [block.tokens.features, *block.tokens.deepstack], strict=True)
    for of_cells, of_tokens in levels:
        for number, cells in enumerate(members):
            expected = of_cells[cells].double().sum(0) / len(cells)
            torch.testing.assert_close(of_tokens[2 + number].double(), expected, rtol=0, atol=EXACT)
        torch.testing.assert_close(of_tokens[:2], of_cells[[0, 19]], rtol=0, atol=EXACT)
    assert block.bias is not None
    np.testing.assert_allclose(block.bias, np.log([1, 1, 6, 3]), rtol=1e-6)


def test_it_stands_at_the_centroid_and_after_the_cells(bench: Bench) -> None:
    block = _block(bench, _two())
    expected = [[7, 7, 7, 7], [7, 10, 7.5, 9], [7, 11, 9, 7]]
    np.testing.assert_allclose(block.positions(7.0), np.array(expected))
    np.testing.assert_allclose(block.score, [0.9, 0.8, 0.5, 0.25])


def test_of_single_cells_it_is_those_cells(bench: Bench) -> None:
    of_cell = np.full(HW, -1, np.int32)
    of_cell[1, 2], of_cell[2, 3] = 0, 1
    block = _block(bench, Summaries(of_cell, np.array([0.5, 0.25], np.float32)))
    rgb = picture(160, 128)
    plain = bench.feeder("prune").feed(rgb, rgb, Cells.whole(HW).take(np.array([0, 7, 13, 19], np.int32)))
    order = torch.tensor([0, 2, 3, 1])
    assert block.bias is not None and not block.bias.any()
    torch.testing.assert_close(block.tokens.features[order], plain.tokens.features, rtol=0, atol=EXACT)
    torch.testing.assert_close(block.positions(3.0)[:, order], plain.positions(3.0))


def test_what_is_taken_out_of_a_block_is_gone_from_its_map(bench: Bench) -> None:
    block = _block(bench, _two())
    kept = block.take(np.array([False, True, False, True]))
    assert len(kept) == 2 and kept.summaries is not None and kept.cells.rows.tolist() == [3]
    np.testing.assert_array_equal(kept.summaries.of_cell, np.where(_two().of_cell == 1, 0, -1))
    np.testing.assert_array_equal(kept.tokens.features, block.tokens.features[[1, 3]])
    np.testing.assert_array_equal(kept.positions(1.0), block.positions(1.0)[:, [1, 3]])
    assert kept.bias is not None and kept.bias.tolist() == [0, float(np.float32(np.log(3)))]
    assert block.take(np.array([True, True, False, False])).summaries is None


@given(st.integers(0, 10_000), st.integers(1, 12), st.integers(1, 12), st.integers(1, 20), st.integers(0, 30))
@settings(deadline=None, max_examples=80)
def test_every_cell_that_is_left_is_in_one_summary(seed: int, rows: int, columns: int, count: int, chosen: int) -> None:
    draw = np.random.default_rng(seed)
    clusters = draw.integers(0, 9, (rows // 2 + 1, columns // 2 + 1), np.int32).repeat(2, 0).repeat(2, 1)
    clusters = clusters[:rows, :columns]
    left = np.ones((rows, columns), bool)
    left.flat[draw.permutation(rows * columns)[:chosen]] = False
    relevance = draw.random((rows, columns), np.float32)
    made = summarised(clusters, relevance, left, count)
    np.testing.assert_array_equal(made.of_cell >= 0, left)
    assert len(made) == min(count, int(left.sum()))
    assert (made.sizes > 0).all() and made.sizes.sum() == left.sum()
    for number in range(len(made)):
        np.testing.assert_allclose(made.score[number], relevance[made.of_cell == number].mean(), rtol=1e-5)


def test_a_cluster_keeps_a_summary_of_its_own_where_there_are_enough() -> None:
    clusters = np.zeros((6, 8), np.int32)
    clusters[:, 5:] = 1
    left = np.ones((6, 8), bool)
    left[0, 0] = False
    made = summarised(clusters, np.zeros((6, 8), np.float32), left, 2)
    np.testing.assert_array_equal(made.of_cell[:, 5:], np.full((6, 3), made.of_cell[0, 5]))
    assert (made.of_cell[:, :5] != made.of_cell[0, 5]).all()


# ---- the viewer


def _patches(frame: Frame, cells: Cells | None = None) -> PatchSet:
    """These cells, or all, of a frame of a few clusters."""
    wh = Grid.for_size(frame.size_wh).texture_wh
    ids = torch.arange(wh[1] // 16)[:, None] // 3 + 3 * (torch.arange(wh[0] // 16)[None] // 4)
    texture = Texture(wh, {13: Plane(13, ids[None].to(torch.int32))})
    return patches_of(frame, cells, texture=texture)


def _stream(viewer: Any, frames: int = 3, budget: int = 12) -> list[Any]:
    return [
        viewer.see(frame, _patches(frame, some_cells(HW, budget, seed=index)))
        for index, frame in ((index, Frame(index, index / 2, picture(160, 128, seed=index))) for index in range(frames))
    ]


@pytest.mark.parametrize("media", ["image", "video"])
def test_they_replace_the_cells_with_the_lowest_scores(tiny: tuple[Any, Any], media: str) -> None:
    viewer = viewer_of(*tiny, mode="prune", media=media, region_tokens=3)
    without = viewer_of(*tiny, mode="prune", media=media)
    fed, plain = _stream(viewer, 4), _stream(without, 4)
    assert [each.sent for each in fed] == [each.sent for each in plain]
    assert viewer.memory.tokens == without.memory.tokens and fed[-1].memory_tokens == viewer.memory.tokens
    for mine, theirs in zip(viewer.memory.frames, without.memory.frames, strict=True):
        assert len(mine.block) == len(theirs.block) == 12
        lowest = np.sort(theirs.block.score)[:3]
        np.testing.assert_array_equal(np.sort(mine.block.cells.score), np.sort(theirs.block.score)[3:])
        assert mine.block.cells.score.min() >= lowest.max()
        assert mine.block.summaries is not None and mine.block.summaries.sizes.sum() == 20 - 9


def test_one_cell_stays_and_a_summary_of_nothing_is_not_made(tiny: tuple[Any, Any]) -> None:
    viewer = viewer_of(*tiny, mode="prune", region_tokens=40)
    assert [each.sent for each in _stream(viewer, 1, budget=5)] == [5]
    assert len(viewer.memory.frames[0].block.cells) == 1
    frame = Frame(0, 0.0, picture(32, 32))
    small = viewer_of(*tiny, mode="prune", region_tokens=4)
    assert small.see(frame, _patches(frame)).sent == 1 and small.memory.frames[0].block.summaries is None


def test_a_frame_without_anything_new_sends_none(tiny: tuple[Any, Any]) -> None:
    viewer, frame = viewer_of(*tiny, mode="prune", region_tokens=3), Frame(0, 0.0, picture(160, 128))
    assert viewer.see(frame, _patches(frame, some_cells(HW, 8))).sent == 8
    again = Frame(1, 0.5, frame.rgb)
    fed = viewer.see(again, _patches(again, some_cells(HW, 8)))
    # Nothing is left to sum up, so that those whose places the summaries had are sent now; and then nothing.
    assert (fed.sent, fed.held) == (3, 5)
    assert viewer.see(again, _patches(again, some_cells(HW, 8))).sent == 0
    # One cell changes, and neither what was chosen nor what was summed up is sent again.
    changed = frame.rgb.copy()
    changed[:32, :32] = np.where(changed[:32, :32].mean() < 128, 255, 0)
    spot = Frame(1, 0.5, changed)
    chosen = some_cells(HW, 8)
    chosen.rows[0] = chosen.columns[0] = 0
    chosen.score[0] = 1
    assert viewer.see(spot, _patches(spot, chosen)).sent == 1
    # What the model has in summary alone is new when it is chosen.
    last = Frame(2, 1.0, frame.rgb)
    summed = viewer.memory.frames[0].block.summaries
    assert summed is not None
    cells = Cells.whole(HW).take((summed.of_cell >= 0).ravel())
    fed = viewer.see(last, _patches(last, cells))
    assert (fed.sent, fed.held) == (len(cells) - 3, 3)


def test_attention_to_a_summary_goes_to_its_cells(tiny: tuple[Any, Any]) -> None:
    viewer = viewer_of(*tiny, mode="prune", region_tokens=4, attention_layer=1)
    frame = Frame(0, 0.0, picture(160, 128))
    viewer.see(frame, _patches(frame, some_cells(HW, 10)))
    answer = viewer.ask(QUESTION)
    # Each cell once, in all what the tokens got.
    assert answer.cells.shape == (20, 5) and answer.visual_tokens == 10
    np.testing.assert_allclose(answer.cells[:, 4].sum(), 1, atol=1e-5)
    share = np.zeros(HW)
    share[(answer.cells[:, 1] // 32).astype(int), (answer.cells[:, 0] // 32).astype(int)] = answer.cells[:, 4]
    summed = viewer.memory.frames[0].block.summaries
    assert summed is not None
    for number in range(4):
        assert np.ptp(share[summed.of_cell == number]) < 1e-7
    assert viewer.attention is not None
    np.testing.assert_allclose(viewer.attention, share / share.max(), atol=1e-5)


def test_the_memory_loses_the_summaries_of_what_mattered_least_first(tiny: tuple[Any, Any], bench: Bench) -> None:
    viewer = viewer_of(*tiny, mode="prune", region_tokens=4, context_tokens=100, keep_share=0.4)
    fed = _stream(viewer, 8)
    assert any(each.rebuilt for each in fed) and viewer.memory.tokens <= 100
    once = bench.memory()
    once.append(viewer.memory.entries)
    for layer in range(4):
        torch.testing.assert_close(once.keys(layer), viewer.memory.keys(layer), rtol=EXACT, atol=2 * EXACT)
    entries = [FrameEntry(_block(bench, _two()), Grid((160, 128), *HW), 0, 0.0)]
    for room, cells, summaries in ((4, 2, 2), (3, 2, 1), (2, 2, 0), (1, 1, 0)):
        (kept,) = survivors(entries, room, lambda _: 0, 30.0)
        assert isinstance(kept, FrameEntry) and len(kept.block.cells) == cells
        assert len(kept.block) == cells + summaries


def test_a_summary_hides_older_views_and_is_hidden_by_newer_ones(bench: Bench) -> None:
    grid = Grid((160, 128), *HW)
    rgb = picture(160, 128)
    older, newer = (seen(bench.block("prune", rgb, rgb, some)) for some in (Cells.whole(HW), CELLS))
    painted = TokenMap.of([older, seen(_block(bench, _two())), newer], grid, 0)
    np.testing.assert_array_equal(
        painted.entry, np.where(_two().of_cell >= 0, 1, [[2] + [0] * 4, *[[0] * 5] * 2, [0] * 4 + [2]])
    )
    np.testing.assert_array_equal(painted.cell[:2, 1:4], np.full((2, 3), 2))
    np.testing.assert_array_equal(painted.cell[1:, 0], [3] * 3)
    held, frame = SeenCells(grid), Frame(0, 0.0, picture(160, 128))
    grey = Pictures(frame, grid).eighth_grey
    held.summarise(_two().of_cell >= 0, grey)
    np.testing.assert_array_equal(held.unchanged(grey), _two().of_cell >= 0)
    assert not held.known(grey).any()


def test_off_nothing_is_added(tiny: tuple[Any, Any]) -> None:
    viewer = viewer_of(*tiny, mode="prune")
    _stream(viewer)
    assert viewer.memory.bias() is None and all(entry.block.summaries is None for entry in viewer.memory.frames)


@pytest.mark.parametrize("values", [{"mode": "sparse"}, {"mode": "weight"}, {"endpoint": "http://x"}])
def test_without_the_towers_output_they_are_refused(tiny: tuple[Any, Any], values: dict[str, str]) -> None:
    chosen = {"mode": "prune", "model": "nowhere", "region_tokens": 8, **values}
    with pytest.raises(InvalidSetting, match=r"vlm.region_tokens=8 with .*only `prune`.* set it to 0, or") as caught:
        make_viewer(Settings.checked({"vlm": chosen}))
    assert "\n" not in str(caught.value)
    if "endpoint" not in values:
        with pytest.raises(InvalidSetting, match="region_tokens"):
            viewer_of(*tiny, region_tokens=8, **values)
