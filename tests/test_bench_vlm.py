"""`bench vlm` compares like with like, counts what it says, and refuses sizes that do not fit together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner

from arr_stream.config import Settings, VlmSettings
from arr_stream.errors import BackendUnavailable, InvalidSetting
from tests.tiny_qwen import tiny_qwen

pytest.importorskip("transformers")


from arr_stream.types import Grid
from arr_stream.vlm.qwen3_vl.adapter import Adapter
from arr_stream.vlm.qwen3_vl.cells import Cells, Normalisation
from arr_stream.vlm.qwen3_vl.checkpoint import Checkpoint, Entry
from arr_stream.vlm.qwen3_vl.encoding import Feeder
from arr_stream.vlm.qwen3_vl.entries import FrameEntry
from arr_stream.vlm.qwen3_vl.families import FAMILIES
from arr_stream.vlm.qwen3_vl.loading import memory_need
from arr_stream.vlm.qwen3_vl.memory import Memory
from arr_stream.vlm.qwen3_vl.prompt import Prompt
from benchmarks.commands.speed import vlm as command
from benchmarks.scenes.clips import panning as frames
from benchmarks.vlm import sizes
from benchmarks.vlm.bench import bench_vlm
from benchmarks.vlm.model import RELEASED, Shape, Timed, bytes_tokenizer, random_model, shape_config, timed_model
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


def test_the_stock_model_gets_video_frames_whole_unless_capped(small: Timed) -> None:
    stock, clip = StockModel(small), list(frames((1024, 1024), 4))
    whole, capped = (stock.video_inputs(clip, 2.0, QUESTION, capped=each) for each in (False, True))
    assert whole["video_grid_thw"].tolist() == [[2, 64, 64]] and stock.visual_tokens(whole) == 2048
    assert 1300 < stock.visual_tokens(capped) <= 2 * 768
    text = small.loaded.tokenizer.decode(whole["input_ids"][0])
    assert "<0.2 seconds>" in text and "<1.2 seconds>" in text and text.count("<|vision_start|>") == 2
    assert stock.answer(stock.video_inputs(list(frames((64, 64), 4)), 2.0, QUESTION), 6) == 6


def test_less_is_computed_for_fewer_cells() -> None:
    report = bench_vlm(QUICK, parts=["vision"], shape=SMALL, tokens=16, size_wh=(256, 256), runs=1, threads=1)
    passes = report.vision
    assert passes is not None and report.end_to_end is None and report.modes is None
    assert (passes.tokens, passes.cells) == (16, 64)
    assert passes.stock_prompt_tokens - passes.prompt_tokens == 64 - 16
    # A quarter of the rows: a quarter of the linear layers' work, and a sixteenth of the attention's.
    assert 4.0 < passes.operations["vision"] < 16.0
    assert 1.0 < passes.operations["prefill"] < passes.stock_prompt_tokens / passes.prompt_tokens + 0.5
    assert min(passes.vision.median, passes.stock_vision.median, passes.prefill.median) > 0


def test_each_mode_keeps_what_it_says() -> None:
    report = bench_vlm(QUICK, parts=["modes"], shape=SMALL, tokens=16, size_wh=(256, 256), runs=1, threads=1)
    assert report.modes is not None
    rows = {(row.mode, row.chosen): row for row in report.modes}
    for mode in ("sparse", "prune"):
        assert [rows[mode, chosen].kept for chosen in (6, 16, 32, 64)] == [6, 16, 32, 64]
        assert rows[mode, 6].cache_mb < rows[mode, 64].cache_mb == pytest.approx(rows["stock", 64].cache_mb)
    assert rows["weight", 64].kept == 64


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


def test_a_model_from_disk_is_timed_like_any_other(tiny_qwen: Path) -> None:
    settings = QUICK.with_values({"vlm.model": str(tiny_qwen), "vlm.device": "cpu"})
    model = timed_model(settings, SMALL)
    ours, stock = _first_scores(model, None)
    assert torch.allclose(ours, stock, atol=1e-4)
    report = bench_vlm(settings, parts=["end-to-end"], tokens=8, size_wh=(128, 128), seconds=1, runs=1, threads=1)
    assert report.model == str(tiny_qwen) and report.end_to_end is not None and report.end_to_end.stock_tokens == 16


@pytest.mark.parametrize("name", [name for name, shape in RELEASED.items() if shape.linear_heads])
def test_sizes_are_those_of_the_model(name: str) -> None:
    shape = RELEASED[name]
    with torch.device("meta"):
        model = FAMILIES["qwen3_5"].class_of("ForConditionalGeneration")(shape_config(shape, bytes_tokenizer()))
    weights = 2 * sum(parameter.numel() for parameter in model.parameters())
    assert sizes.weight_bytes(shape) == pytest.approx(weights, rel=2e-3)
    tensors = {key: Entry("BF16", tuple(value.shape), Path()) for key, value in model.named_parameters()}
    half = Normalisation((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    checkpoint = Checkpoint(name, Path(), FAMILIES["qwen3_5"], model.config, tensors, half)
    need = memory_need(checkpoint, "bfloat16", VlmSettings(context_tokens=7680))
    # While a memory is rebuilt, kept features are there twice.
    assert sizes.stream_bytes(shape, 7680) == need["cache"] + need["kept features"] // 2


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


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_frame_loop_on_a_gpu_that_is_not_there_is_refused_before_anything_is_made() -> None:
    app = typer.Typer()
    app.command()(command)
    result = CliRunner().invoke(app, ["--set", "loop.device=cuda"])
    assert isinstance(result.exception, BackendUnavailable) and "no NVIDIA GPU" in str(result.exception)


@pytest.mark.parametrize(
    "options",
    [
        ["--layers", "12"],
        ["--layers", "0,8"],
        ["--layers", "12,2"],
        ["--width", "100,1024"],
        ["--width", "512,1000"],
        ["--size", "16x16"],
        ["--like", "5B"],
        ["--tokens", "2000"],
    ],
)
def test_sizes_that_do_not_fit_are_refused_before_anything_is_made(options: list[str]) -> None:
    app = typer.Typer()
    app.command()(command)
    result = CliRunner().invoke(app, options)
    assert isinstance(result.exception, InvalidSetting)
    assert options[0] in str(result.exception) and ";" in str(result.exception)
