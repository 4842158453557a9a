"""Where an answer looked, against the weights that the stock model forms when it is told to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from arr_stream.selection.allocation import Allocation
from arr_stream.types import FINER, Frame, Grid
from arr_stream.vlm.qwen3_vl.cells import Cells, texture_picture
from arr_stream.vlm.qwen3_vl.decoding import AttentionGatherer, Response, respond
from arr_stream.vlm.qwen3_vl.entries import FrameEntry, SentCells, token_map
from tests.tiny_qwen import EVERY_FAMILY, load_tiny, picture

pytest.importorskip("transformers")

from tests.qwen_stock import (
    QUESTION,
    Bench,
    exact,
    image_inputs,
    left_out,
    patches_of,
    recurrent,
    seen,
    session_of,
    skip_if_refused,
    some_cells,
    visual,
)


@pytest.fixture(scope="module")
def eager(tiny_qwen: Path) -> tuple[Any, Any]:
    return load_tiny(tiny_qwen, attn_implementation="eager")


@torch.inference_mode()
def _stock_weights(
    model: Any, inputs: dict[str, Any], answer: list[int], layer: int, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """`[queries, tokens]`: mean over heads, for the places that the answer's tokens are predicted from.

    Args:
        layer: Among those with attention.
        bias: Added to the attention to each token of the prompt; without those of -inf, a recurrent model reads on.
    """
    ids = torch.cat([inputs["input_ids"], torch.tensor([answer], dtype=torch.long)], dim=1)
    given = inputs | {"input_ids": ids, "mm_token_type_ids": (ids == model.config.image_token_id).int()}
    del given["attention_mask"]
    model.model.rope_deltas = None
    given["position_ids"], _ = model.model.get_rope_index(
        ids, given["mm_token_type_ids"], image_grid_thw=given["image_grid_thw"]
    )
    row = torch.zeros(ids.shape[1])
    if bias is not None:
        row[: len(bias)] = bias
    there = torch.isfinite(row)
    if bias is not None and recurrent(model):
        embeddings = model.get_input_embeddings()(ids)
        features = model.model.get_image_features(given["pixel_values"], given["image_grid_thw"]).pooler_output
        embeddings[:, visual(given)] = torch.cat(list(features))
        given = {"inputs_embeds": embeddings[:, there], "position_ids": given["position_ids"][:, :, there]}
    elif bias is not None:
        mask = torch.full((len(row), len(row)), -torch.inf).triu(1) + row
        given["attention_mask"] = mask.clamp(min=torch.finfo(torch.float32).min)[None, None]
    weights: torch.Tensor = model(**given, output_attentions=True).attentions[layer][0].mean(0)
    return weights[-1 - len(answer) :, there] if weights.shape[1] == len(there) else weights[-1 - len(answer) :]


def _answer(bench: Bench, blocks: list[Any], layer: int, most: int) -> tuple[Response, AttentionGatherer, list[int]]:
    memory = bench.memory()
    memory.append([seen(block) for block in blocks])
    gatherer = AttentionGatherer(memory, layer)
    question = bench.prompt.question(QUESTION)
    made = respond(memory, question, most_tokens=most, gatherer=gatherer)
    return made, gatherer, memory.places


@EVERY_FAMILY
@pytest.mark.parametrize(("ours", "layer", "most"), [("sdpa", 0, 1), ("sdpa", -1, 6), ("eager", 1, 6)])
def test_it_is_the_mean_of_the_stock_models_weights(
    tiny: tuple[Any, Any], eager: tuple[Any, Any], ours: str, layer: int, most: int
) -> None:
    rgb = picture()
    bench = Bench.of(*(tiny if ours == "sdpa" else eager))
    number = bench.adapter.attention_layers[layer]
    response, gatherer, places = _answer(bench, [bench.block("sparse", rgb, rgb)], number, most)
    inputs = image_inputs(eager[1], [rgb])
    # The token after the last one is not asked for when the answer is cut off at its longest.
    read = list(response.ids if response.finish == "stop" else response.ids[:-1])
    weights = _stock_weights(eager[0], inputs, read, layer)
    assert len(weights) == len(read) + 1
    mean = gatherer.mean
    assert (mean - weights.mean(0)[: len(mean)]).abs().max() <= bench.exact
    # All of the attention goes to the memory, the question and the answer before each token.
    rest = weights[:, len(mean) :].sum(1).mean()
    torch.testing.assert_close(mean.sum() + rest, torch.tensor(1.0), rtol=0, atol=bench.exact)
    assert 0 < rest < 1
    cells = visual(inputs)[: len(mean)]
    assert places == [int(cells.nonzero()[0])]
    # It says where: cells differ by far more than the error.
    assert mean[cells].std() > 20 * bench.exact
    assert not bench.adapter._language.layers[number].self_attn._forward_pre_hooks, "left behind"


@EVERY_FAMILY
@pytest.mark.parametrize("mode", ["prune", "weight"])
def test_of_some_cells_and_with_weights_it_is_the_masked_stock_models(
    tiny: tuple[Any, Any], eager: tuple[Any, Any], mode: Any
) -> None:
    skip_if_refused(tiny[0], mode)
    rgb, layer = picture(), 1
    bench, inputs = Bench.of(*tiny), image_inputs(eager[1], [rgb])
    bias = torch.zeros(inputs["input_ids"].shape[1])
    cells, relevance = some_cells((8, 10), 20).in_reading_order(), None
    if mode == "prune":
        bias[left_out(inputs, [cells])] = -torch.inf
    else:
        relevance = np.random.default_rng(0).uniform(0.02, 1, (8, 10)).astype(np.float32)
        bias[visual(inputs)] = torch.from_numpy(relevance.reshape(-1)).log()
    block = bench.block(mode, rgb, rgb, cells, relevance=relevance)
    response, gatherer, _ = _answer(bench, [block], bench.adapter.attention_layers[layer], 5)
    read = list(response.ids if response.finish == "stop" else response.ids[:-1])
    weights = _stock_weights(eager[0], inputs, read, layer, bias).mean(0)
    assert (gatherer.mean - weights[: len(gatherer.mean)]).abs().max() <= bench.exact


@EVERY_FAMILY
def test_the_session_maps_it_to_the_newest_frame(tiny: tuple[Any, Any], eager: tuple[Any, Any]) -> None:
    pictures = [picture(256, 256, seed) for seed in (0, 1)]
    session = session_of(*tiny, answer_tokens=1, novelty="off")
    assert session.attention is None
    for index, rgb in enumerate(pictures):
        frame = Frame(index, index / 2, rgb)
        session.see(frame, patches_of(frame))
    answer = session.ask(QUESTION)
    inputs = image_inputs(eager[1], pictures)
    layers = session._adapter.attention_layers
    weights = _stock_weights(eager[0], inputs, [], layers.index(session._layer))[0]
    first, second = weights[visual(inputs)].reshape(2, 8, 8)
    assert session.attention is not None
    # Both frames show every place; the later one stands.
    np.testing.assert_allclose(session.attention, second / second.max(), atol=1e-4)
    share = torch.stack([first, second]) / (first + second).sum()
    assert answer.cells.shape == (128, 5) and (np.diff(answer.cells[:, 4]) <= 0).all()
    np.testing.assert_allclose(answer.cells[:, 4].sum(), 1.0, atol=1e-5)
    for (x0, y0, x1, y1, value), index in zip(answer.cells, answer.cell_frames, strict=True):
        assert (x1 - x0, y1 - y0) == (32, 32)
        assert abs(value - share[index, int(y0) // 32, int(x0) // 32]) <= exact(tiny[0])


def test_what_has_changed_since_it_was_shown_gets_none(tiny: tuple[Any, Any]) -> None:
    session = session_of(*tiny)
    still = picture(256, 256)
    changed = still.copy()
    changed[:32, :32] = 255 - changed[:32, :32].mean(dtype=np.float64).astype(np.uint8)
    changed[:32, :32] = 255 if still[:32, :32].mean() < 128 else 0
    session.see(Frame(0, 0.0, still), patches_of(Frame(0, 0.0, still)))
    session.ask(QUESTION)
    assert session.attention is not None and session.attention[0, 0] > 0 and session.attention.max() == 1
    some = some_cells((8, 8), 3)
    some.rows[:], some.columns[:] = (5, 6, 7), (5, 6, 7)
    session.see(Frame(1, 0.5, changed), patches_of(Frame(1, 0.5, changed), some))
    session.ask(QUESTION)
    assert session.attention[0, 0] == 0 and (session.attention > 0).sum() == 63


def test_attention_to_a_finer_cell_is_that_of_its_four_tokens(tiny: tuple[Any, Any]) -> None:
    frame, grid = Frame(0, 0.0, picture(256, 256)), Grid((256, 256), 4, 4)
    rows = columns = np.arange(3, dtype=np.int32)
    chosen = Cells((4, 4), rows, columns, np.array([FINER, 0, 0], np.int32), np.ones(3, np.float32))
    session = session_of(*tiny)
    assert session.see(frame, patches_of(frame, chosen, grid=grid)).sent == session.memory.visual_tokens == 6
    answer = session.ask(QUESTION)
    x0, y0, x1, y1, share = answer.cells.T
    quarters = (x1 <= 64) & (y1 <= 64)
    assert quarters.sum() == 4 and (x1 - x0)[quarters].tolist() == (y1 - y0)[quarters].tolist() == [32] * 4
    attention = session.attention
    assert attention is not None and (attention > 0).sum() == 3
    whole = share[(x0 == 64) & (y0 == 64)][0]
    assert attention[0, 0] / attention[1, 1] == pytest.approx(share[quarters].sum() / whole, rel=1e-4)
    # The model has it in more detail than one token: nothing is new. Of another, which it has as one, all four are.
    again = Frame(1, 0.5, frame.rgb)
    chosen.level[:] = (0, FINER, 0)
    fed = session.see(again, patches_of(again, chosen, grid=grid))
    assert (fed.sent, fed.held) == (4, 2)


@pytest.mark.parametrize("mode", ["prune", "weight"])
def test_every_mode_takes_finer_cells(tiny: tuple[Any, Any], mode: str) -> None:
    frame, grid = Frame(0, 0.0, picture(256, 256)), Grid((256, 256), 4, 4)
    rows = columns = np.arange(3, dtype=np.int32)
    chosen = Cells((4, 4), rows, columns, np.array([FINER, 0, 2], np.int32), np.ones(3, np.float32))
    session = session_of(*tiny, mode=mode, media="video")
    assert session.see(frame, patches_of(frame, chosen, grid=grid)).sent == 0
    later = Frame(1, 0.5, picture(256, 256, 1))
    assert session.see(later, patches_of(later, chosen, grid=grid)).sent == (16 if mode == "weight" else 6)
    assert session.ask(QUESTION).finish in ("stop", "length")


def test_a_finer_cell_that_lost_a_quarter_is_sent_again(tiny: tuple[Any, Any]) -> None:
    bench, rgb, grid = Bench.of(*tiny), picture(256, 256), Grid((256, 256), 4, 4)
    rows, columns, level = np.array([[0, 0, FINER], [2, 1, FINER], [3, 3, 0]], np.int32).T
    cells = Cells.allocated(Allocation(rows, columns, level, np.ones(3, np.float32)), grid)
    small, grey = texture_picture(rgb, grid.texture_wh), np.zeros((16, 16), np.uint8)
    memory = bench.memory()
    sent = SentCells(memory, grid, since=0)
    assert len(sent.take_new(cells, grey)) == 9
    block = bench.feeder("sparse").feed(small, small, cells, sources=(rgb, rgb))
    memory.append([FrameEntry(block, grid, 0, 0.0, "image")])
    with sent.through_rebuild():
        memory.restart()
        memory.append([FrameEntry(block.select(np.arange(9) != 1), grid, 0, 0.0, "image")])
    new = sent.take_new(cells, grey)
    assert set(zip(new.rows.tolist(), new.columns.tolist(), strict=True)) == {(0, 0)} and len(new) == 4


def test_the_newest_view_stands_but_a_coarse_one_not_before_a_finer(tiny: tuple[Any, Any]) -> None:
    bench, rgb = Bench.of(*tiny), picture(128, 128)
    grid = Grid((128, 128), 4, 4)

    def shown(index: int, *places: tuple[int, int, int]) -> FrameEntry:
        rows, columns, level = np.array(places, np.int32).T
        cells = Cells((4, 4), rows, columns, level, np.ones(len(places), np.float32))
        return seen(bench.block("sparse", rgb, rgb, cells), index=index)

    views = [shown(0, (0, 0, 2)), shown(1, (0, 0, 1), (3, 3, 0)), shown(2, (0, 0, 2)), shown(3, (2, 2, 1), (0, 0, 1))]
    expected = np.full((4, 4), 2)
    expected[:2, :2] = expected[2:, 2:] = 3
    expected[3, 3] = 1
    np.testing.assert_array_equal(token_map(views, grid, 0)[0], expected)
    np.testing.assert_array_equal(token_map(views, grid, 3)[0] >= 0, expected != 2)
    assert (token_map(views, Grid((129, 128), 4, 4), 0)[0] == -1).all()
