"""What the model is given is what the stock model would have been given: to rounding, for every mode and any size."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import pytest
import torch

from arr_stream.errors import InvalidSetting
from arr_stream.plain_text import plain
from arr_stream.types import Grid
from arr_stream.vlm.qwen3_vl.cells import Cells, Normalisation, patch_rows, texture_picture
from arr_stream.vlm.qwen3_vl.decoding import respond
from arr_stream.vlm.qwen3_vl.encoding import LEAST_WEIGHT, Mode
from tests.tiny_qwen import EVERY_FAMILY, picture

pytest.importorskip("transformers")

from tests.qwen_stock import (
    HALF,
    QUESTION,
    Bench,
    hidden_patches,
    image_inputs,
    left_out,
    recurrent,
    seen,
    session_of,
    shown,
    skip_if_refused,
    some_cells,
    stock_answer,
    stock_run,
    stock_run_without,
    video_inputs,
    visual,
)

pytestmark = EVERY_FAMILY

ODD = (330, 270)
"""Scaled to 8x10 cells."""


@pytest.fixture(scope="module")
def bench(tiny: tuple[Any, Any]) -> Bench:
    return Bench.of(*tiny)


def _video(size_wh: tuple[int, int] = (128, 96), count: int = 4) -> np.ndarray[Any, Any]:
    return np.stack([picture(*size_wh, seed=seed) for seed in range(count)])


# ---- all cells


@pytest.mark.parametrize("size", [(320, 256), (289, 431), (640, 360), (257, 259)])
def test_pixel_rows_are_the_processors(tiny: tuple[Any, Any], size: tuple[int, int]) -> None:
    rgb = picture(*size)
    theirs = image_inputs(tiny[1], [rgb])
    grid = Grid.for_size(size)
    assert theirs["image_grid_thw"].tolist() == [[1, 2 * grid.rows, 2 * grid.columns]]
    resized = texture_picture(rgb, grid.texture_wh)
    ours = patch_rows(resized, resized, Cells.whole((grid.rows, grid.columns)), HALF)
    assert (ours - theirs["pixel_values"]).abs().max() <= 1e-6


@pytest.mark.parametrize("size", [(128, 96), (150, 110)])
def test_pixel_rows_of_pairs_are_the_processors(tiny: tuple[Any, Any], size: tuple[int, int]) -> None:
    frames = _video(size)
    theirs = video_inputs(tiny[1], frames, fps=2.0)["pixel_values_videos"]
    grid = Grid.for_size(size)
    resized = [texture_picture(rgb, grid.texture_wh) for rgb in frames]
    whole = Cells.whole((grid.rows, grid.columns))
    ours = torch.cat([patch_rows(resized[at], resized[at + 1], whole, HALF) for at in (0, 2)])
    assert (ours - theirs).abs().max() <= 1e-6


def test_the_processors_mean_and_deviation_are_used(tiny: tuple[Any, Any]) -> None:
    mean, std = (0.48, 0.46, 0.41), (0.27, 0.26, 0.28)
    rgb = picture()
    theirs = tiny[1].image_processor(images=[rgb], image_mean=mean, image_std=std, return_tensors="pt")
    ours = patch_rows(rgb, rgb, Cells.whole((8, 10)), Normalisation(mean, std))
    assert (ours - theirs["pixel_values"]).abs().max() <= 1e-6


@pytest.mark.parametrize(("mode", "size"), [("sparse", ODD), ("prune", ODD), ("weight", ODD), ("sparse", (289, 431))])
def test_all_cells_of_a_picture_give_the_stock_logits(
    tiny: tuple[Any, Any], bench: Bench, mode: Mode, size: tuple[int, int]
) -> None:
    skip_if_refused(tiny[0], mode)
    rgb = picture(*size)
    theirs = stock_run(tiny[0], image_inputs(tiny[1], [rgb]))
    grid = Grid.for_size(size)
    block = bench.block(mode, rgb, rgb, relevance=np.ones((grid.rows, grid.columns), np.float32))
    ours = bench.run([seen(block)])
    assert ours.equals(theirs)
    assert 0.5 < theirs.logits.std() < 2


@pytest.mark.parametrize("piecewise", [False, True], ids=["at once", "one by one"])
def test_all_cells_of_several_pictures_give_the_stock_logits(
    tiny: tuple[Any, Any], bench: Bench, piecewise: bool
) -> None:
    pictures = [picture(288, 256, 1), picture(*ODD, 2)]
    theirs = stock_run(tiny[0], image_inputs(tiny[1], pictures))
    ours = bench.run([seen(bench.block("sparse", rgb, rgb)) for rgb in pictures], piecewise=piecewise)
    assert ours.equals(theirs)


@pytest.mark.parametrize(
    ("mode", "piecewise", "count"), [("sparse", True, 4), ("sparse", False, 5), ("prune", True, 5)]
)
def test_all_cells_of_a_video_give_the_stock_logits(
    tiny: tuple[Any, Any], bench: Bench, mode: Mode, piecewise: bool, count: int
) -> None:
    frames, fps = _video((150, 110), count), 4.0
    theirs = stock_run(tiny[0], video_inputs(tiny[1], frames, fps))
    entries = []
    for at in range(0, count, 2):
        first, second = frames[at], frames[min(at + 1, count - 1)]
        first = second if at + 1 == count else first
        seconds = (at / fps + min(at + 1, count - 1) / fps) / 2
        entries.append(seen(bench.block(mode, first, second), seconds, "video"))
    assert bench.run(entries, piecewise=piecewise).equals(theirs)


def test_text_and_markers_are_the_processors(tiny: tuple[Any, Any], bench: Bench) -> None:
    rgb = picture()
    inputs = image_inputs(tiny[1], [rgb])
    memory = bench.memory()
    question = bench.prompt.question(QUESTION)
    cost = memory.cost([seen(bench.block("sparse", rgb, rgb))])
    assert cost + len(question) == inputs["input_ids"].shape[1]
    assert question == inputs["input_ids"][0, cost:].tolist()
    opening = [*bench.prompt.opening(), *bench.prompt.before_cells("image", 0.0)]
    assert opening == inputs["input_ids"][0, : len(opening)].tolist()


def test_greedy_answers_are_those_of_generate(tiny: tuple[Any, Any], bench: Bench) -> None:
    different = set()
    for seed in range(2):
        rgb = picture(256, 256, seed)
        theirs = stock_answer(tiny[0], image_inputs(tiny[1], [rgb]), 12)
        memory = bench.memory()
        memory.append([seen(bench.block("sparse", rgb, rgb))])
        response = respond(memory, bench.prompt.question(QUESTION), most_tokens=12)
        ended = theirs[-1] in bench.prompt.end_tokens
        assert list(response.ids) == (theirs[:-1] if ended else theirs)
        assert response.finish == ("stop" if ended else "length")
        # Bytes at the end that are no whole character are held back.
        whole = plain(tiny[1].tokenizer.decode(response.ids, skip_special_tokens=True))
        assert response.text == whole.rstrip("\ufffd")
        different.add(response.ids)
    assert len(different) > 1


# ---- some cells


def masked_tower(model: Any, mode: Mode, chosen: Sequence[Cells]) -> AbstractContextManager[None]:
    """In `sparse` the tower sees nothing but the chosen cells, in `prune` it sees all."""
    return hidden_patches(model, [shown(cells) for cells in chosen]) if mode == "sparse" else nullcontext()


@pytest.mark.parametrize("mode", ["prune", "sparse"])
@pytest.mark.parametrize("count", [1, 30])
def test_some_cells_are_the_stock_model_with_the_others_masked(
    tiny: tuple[Any, Any], bench: Bench, mode: Mode, count: int
) -> None:
    rgb = picture(*ODD)
    inputs = image_inputs(tiny[1], [rgb])
    cells = some_cells((8, 10), count).in_reading_order()
    hidden = left_out(inputs, [cells])
    with masked_tower(tiny[0], mode, [cells]):
        theirs = stock_run_without(tiny[0], inputs, hidden)
    assert bench.run([seen(bench.block(mode, rgb, rgb, cells))]).equals(theirs)


@pytest.mark.parametrize("mode", ["prune", "sparse"])
def test_some_cells_of_a_video_are_the_stock_model_with_the_others_masked(
    tiny: tuple[Any, Any], bench: Bench, mode: Mode
) -> None:
    frames = _video()
    inputs = video_inputs(tiny[1], frames, fps=2.0)
    chosen = [some_cells((3, 4), 5, seed).in_reading_order() for seed in (1, 2)]
    hidden = left_out(inputs, chosen)
    with masked_tower(tiny[0], mode, chosen):
        theirs = stock_run_without(tiny[0], inputs, hidden)
    entries = [
        seen(bench.block(mode, frames[2 * at], frames[2 * at + 1], cells), at + 0.25, "video")
        for at, cells in enumerate(chosen)
    ]
    assert bench.run(entries, piecewise=True).equals(theirs)


def test_weights_are_a_bias_on_the_attention_to_each_cell(tiny: tuple[Any, Any], bench: Bench) -> None:
    skip_if_refused(tiny[0])
    pictures = [picture(320, 256, 1), picture(256, 288, 2)]
    draw = np.random.default_rng(0)
    weights = [draw.random(hw).astype(np.float32) for hw in ((8, 10), (9, 8))]
    weights[0][0, :3] = 0.0
    inputs = image_inputs(tiny[1], pictures)
    bias = torch.zeros(inputs["input_ids"].shape[1])
    flat = torch.from_numpy(np.concatenate([weight.reshape(-1) for weight in weights]))
    bias[visual(inputs)] = flat.clamp(min=LEAST_WEIGHT).log()
    theirs = stock_run(tiny[0], inputs, bias)
    some = some_cells((8, 10), 3), some_cells((9, 8), 3)
    entries = [
        seen(bench.block("weight", rgb, rgb, cells, relevance=weight))
        for rgb, cells, weight in zip(pictures, some, weights, strict=True)
    ]
    assert bench.run(entries, piecewise=True).equals(theirs)
    assert (theirs.logits - stock_run(tiny[0], inputs).logits).abs().max() > 0.01


def test_without_a_map_the_scores_of_the_chosen_are_the_weights(tiny: tuple[Any, Any], bench: Bench) -> None:
    skip_if_refused(tiny[0])
    rgb = picture()
    cells = some_cells((8, 10), 9)
    inputs = image_inputs(tiny[1], [rgb])
    weights = torch.full((8, 10), LEAST_WEIGHT)
    weights[cells.rows, cells.columns] = torch.from_numpy(cells.score).clamp(min=LEAST_WEIGHT)
    bias = torch.zeros(inputs["input_ids"].shape[1])
    bias[visual(inputs)] = weights.reshape(-1).log()
    theirs = stock_run(tiny[0], inputs, bias)
    assert bench.run([seen(bench.block("weight", rgb, rgb, cells))]).equals(theirs)


def test_what_needs_biased_attention_is_refused(tiny: tuple[Any, Any]) -> None:
    if not recurrent(tiny[0]):
        session_of(*tiny, mode="weight")
        return
    with pytest.raises(InvalidSetting, match=r"no attention.*Qwen3-VL") as raised:
        session_of(*tiny, mode="weight")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("chunk", [5, 64])
def test_long_stretches_in_several_passes_give_the_same(
    tiny: tuple[Any, Any], bench: Bench, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rgb = picture(256, 256)
    modes: tuple[Mode, Mode] = ("sparse", "prune" if recurrent(tiny[0]) else "weight")
    entries = [seen(bench.block(mode, rgb, rgb, some_cells((8, 8), 30))) for mode in modes]
    whole = bench.run(entries)
    monkeypatch.setattr("arr_stream.vlm.qwen3_vl.memory.PREFILL_CHUNK_TOKENS", chunk)
    assert bench.run(entries).equals(whole)
