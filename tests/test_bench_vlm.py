"""`bench vlm` compares like with like and counts what it says."""

from __future__ import annotations

import json

import pytest
import torch
import typer
from typer.testing import CliRunner

from arr_stream.config import Settings
from tests.tiny_qwen import tiny_qwen

pytest.importorskip("transformers")


from arr_stream.types import Grid
from arr_stream.vlm.qwen3_vl.adapter import Adapter
from arr_stream.vlm.qwen3_vl.cells import Cells
from arr_stream.vlm.qwen3_vl.encoding import Feeder
from arr_stream.vlm.qwen3_vl.entries import FrameEntry
from arr_stream.vlm.qwen3_vl.families import FAMILIES
from arr_stream.vlm.qwen3_vl.memory import Memory
from arr_stream.vlm.qwen3_vl.prompt import Prompt
from benchmarks.commands.speed import vlm as command
from benchmarks.scenes.clips import panning as frames
from benchmarks.vlm import sizes
from benchmarks.vlm.bench import bench_vlm
from benchmarks.vlm.model import RELEASED, Shape, Timed, bytes_tokenizer, random_model, shape_config
from benchmarks.vlm.passes import QUESTION, chosen_cells
from benchmarks.vlm.stock import StockModel

__all__ = ["tiny_qwen"]

SMALL = Shape(vision_layers=2, text_layers=2, vision_width=64, text_width=256)
QUICK = Settings().with_values({"keyframes.text": "none", "keyframes.clusters": "grid"})


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def small() -> Timed:
    return random_model(SMALL, Settings())


def _first_scores(model: Timed, tokens: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores of the answer's first token, ours and the stock model's, on one frame of 128x128."""
    (frame,) = frames((128, 128), 1)
    grid = Grid.for_size(frame.size_wh)
    adapter = Adapter(model.loaded.model)
    prompt = Prompt(model.loaded.tokenizer, model.loaded.model.config)
    cells = Cells.whole((4, 4)) if tokens is None else chosen_cells(QUICK, frame, tokens)
    memory = Memory(adapter, prompt)
    with torch.inference_mode():
        block = Feeder(adapter, model.loaded.normalisation).feed(frame.rgb, frame.rgb, cells)
        memory.append([FrameEntry(block, grid, 0, 0.0, "image")])
        ours = adapter.logits(memory.read(prompt.question(QUESTION), memory.position))
    stock = StockModel(model)
    inputs = stock.picture_inputs(frame.rgb, QUESTION)
    scores, cache = stock.prefill(inputs, stock.encode(inputs))
    assert memory.tokens - len(cells) == adapter.cached_tokens(cache) - stock.visual_tokens(inputs)
    return ours, scores


def test_with_every_cell_both_sides_do_the_same_work(small: Timed) -> None:
    ours, stock = _first_scores(small, None)
    assert torch.allclose(ours, stock, atol=1e-4)
    fewer, _ = _first_scores(small, 5)
    assert not torch.allclose(fewer, stock, atol=1e-2)


def test_a_clip_is_counted_from_pixels_to_answer() -> None:
    report = bench_vlm(
        QUICK, parts=["end-to-end"], shape=SMALL, tokens=16, size_wh=(256, 256), seconds=1.5, runs=1, threads=1
    )
    clip = report.end_to_end
    assert clip is not None
    assert (clip.frames, clip.shown, clip.answer_tokens) == (45, 3, 16)
    assert clip.keyframes >= 2, "a clip of more than one interval has its share of keyframes"
    # Two frames and one that stands alone make two blocks; each is given the budget of one.
    assert clip.stock_tokens == 2 * 64 and 16 <= clip.sent <= 2 * 16
    ours = ("perception", "vision", "prefill", "beside them", "question", "decode")
    assert clip.ours.median == pytest.approx(sum(clip.parts[name].median for name in ours))
    assert clip.stock.median == pytest.approx(clip.parts["processor"].median + clip.parts["generate"].median)
    assert clip.first_token["ours"] == clip.parts["question"] and set(clip.first_token) == {"ours", "stock", "capped"}


@pytest.mark.parametrize("name", [name for name, shape in RELEASED.items() if shape.linear_heads])
def test_sizes_are_those_of_the_model(name: str) -> None:
    shape = RELEASED[name]
    with torch.device("meta"):
        model = FAMILIES["qwen3_5"].class_of("ForConditionalGeneration")(shape_config(shape, bytes_tokenizer()))
    weights = 2 * sum(parameter.numel() for parameter in model.parameters())
    assert sizes.weight_bytes(shape) == pytest.approx(weights, rel=2e-3)


def test_a_quarter_of_the_cells_is_about_four_times_sooner() -> None:
    whole, quarter = (sum(sizes.operations(RELEASED["Qwen3.5-4B"], cells)) for cells in (1024, 256))
    assert 4 < whole / quarter < 4.5


def test_the_command_prints_json_and_tables() -> None:
    app = typer.Typer()
    app.command()(command)
    shape = ["--layers", "2,2", "--width", "64,256"]
    small = [*shape, "--size", "128x128", "--tokens", "4", "--runs", "1", "--threads", "1"]
    result = CliRunner().invoke(app, [*small, "--part", "vision", "--set", "keyframes.text=none", "--json"])
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert printed["vision"]["cells"] == 16 and printed["vision"]["ratios"]["vision, stock / ours"] > 0
    result = CliRunner().invoke(app, [*small, "--part", "modes", "--set", "keyframes.text=none"])
    assert result.exit_code == 0, result.output
    assert "One frame of 128x128" in result.stdout and "weight" in result.stdout
