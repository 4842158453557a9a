"""Weights fitted to answers: the likelihood is the product's, gradients reach the weights, a preset comes of it."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from arr_stream.config import Settings
from arr_stream.evaluation.questions import Question, read_questions
from arr_stream.stream import Models
from arr_stream.tuning.parameters import Parameters
from arr_stream.tuning.through_model import AskedPicture, Reader
from arr_stream.types import Grid
from arr_stream.vlm.qwen3_vl.adapter import Adapter
from arr_stream.vlm.qwen3_vl.cells import Cells, texture_picture
from arr_stream.vlm.qwen3_vl.decoding import likelihoods
from arr_stream.vlm.qwen3_vl.encoding import Feeder
from arr_stream.vlm.qwen3_vl.entries import FrameEntry
from arr_stream.vlm.qwen3_vl.loading import LoadedModel, load
from arr_stream.vlm.qwen3_vl.memory import Memory
from arr_stream.vlm.qwen3_vl.prompt import Prompt
from tests.conftest import Refused, Run

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"
QUICK = ["keyframes.text=none", "selection.budget=20%", "vlm.model=tiny", "vlm.device=cpu"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Drawn pictures and questions about them."""
    made = tmp_path_factory.mktemp("drawn")
    sys.path.insert(0, str(SCRIPTS))
    try:
        from make_lmms_eval_task import make_task

        make_task(made, questions=24, cells=(8, 6))
    finally:
        sys.path.remove(str(SCRIPTS))
    return made


@pytest.fixture(scope="module")
def settings() -> Settings:
    return Settings.load(None, QUICK)


@pytest.fixture(scope="module")
def tiny(settings: Settings) -> LoadedModel:
    return load(settings.vlm, settings.models)


@pytest.fixture(scope="module")
def asked(folder: Path) -> list[Question]:
    found, left_out = read_questions(folder)
    assert len(found) == 24 and not left_out
    return found


def pixels(one: Question) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    return np.array(Image.open(one.source).convert("RGB"))


Prepared = tuple[Reader, list[AskedPicture]]


@pytest.fixture(scope="module")
def prepared(settings: Settings, tiny: LoadedModel, asked: list[Question]) -> Prepared:
    reader, models = Reader(tiny), Models.load(settings)
    return reader, [reader.prepared(one, pixels(one), settings, models) for one in asked[:8]]


def test_the_likelihood_is_that_of_mode_weight(prepared: Prepared, tiny: LoadedModel, asked: list[Question]) -> None:
    reader, pictures = prepared
    adapter = Adapter(tiny.model)
    prompt, feeder = Prompt(tiny.tokenizer, adapter.config), Feeder(adapter, tiny.normalisation, "weight")
    for one, known in zip(asked[:3], pictures, strict=False):
        grid = Grid.for_size((256, 192))
        share = np.random.default_rng(0).uniform(0.05, 1, (grid.rows, grid.columns)).astype(np.float32)
        picture = texture_picture(pixels(one), grid.texture_wh)
        block = feeder.feed(picture, picture, Cells.whole((grid.rows, grid.columns)), share)
        memory = Memory(adapter, prompt)
        memory.append([FrameEntry(block, grid, 0, 0.0, "image")])
        [product] = likelihoods(memory, prompt.question(one.text), [prompt.text(one.answers[0])])
        ours = float(reader.log_likelihood(known, torch.from_numpy(share).flatten().log())) * len(known.answer)
        # The product counts every token that ends an answer, of which one is ever said.
        assert ours == pytest.approx(product.log, abs=0.02)


def test_gradients_reach_the_weights(prepared: Prepared, settings: Settings) -> None:
    reader, pictures = prepared
    parameters = Parameters(settings.scoring)
    reader.objective.soft(pictures, parameters.weights(), 0.5).backward()  # type: ignore[no-untyped-call]
    assert parameters.values.grad is not None and int((parameters.values.grad != 0).sum()) >= 5


def test_more_of_what_is_asked_is_worth_more_than_nothing(prepared: Prepared) -> None:
    reader, pictures = prepared
    nothing = [float(reader.log_likelihood(one, torch.full((48,), -1e4))) for one in pictures]
    everything = [float(reader.log_likelihood(one, torch.zeros(48))) for one in pictures]
    assert np.mean(everything) > np.mean(nothing) + 0.3


def test_a_preset_comes_of_it(run: Run, folder: Path, tmp_path: Path) -> None:
    preset = tmp_path / "tuned.toml"
    quick = ("--weight", "commitment", "--weight", "text", "--minutes", 0.1, "--set", "keyframes.text=none")
    code, out, err = run("tune", folder, "--through-model", "tiny", "--budget", "20%", "-o", preset, *quick)
    assert "Right answers of tiny at 20% of the tokens" in out and "before" in out
    assert "held-out questions" in out
    if code == 83:
        assert "not beyond its noise" in err and not preset.exists()
        return
    assert code == 0, err
    text = preset.read_text()
    assert text.startswith("# Weights that `arr-stream tune` fitted to tiny's answers") and Settings.load(preset)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--ask", "region"), 51, "--ask beside --through-model"),
        (("--budget", "100%"), 51, "the whole picture"),
    ],
)
def test_what_cannot_be_fitted_is_said(
    refused: Refused, folder: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    refused(code, said, "tune", folder, "--through-model", "tiny", "--set", "keyframes.text=none", *arguments)


def test_too_few_questions_are_refused(refused: Refused, folder: Path, tmp_path: Path) -> None:
    few = tmp_path / "questions.jsonl"
    lines = (folder / "questions.jsonl").read_text().splitlines()[:2]
    few.write_text("\n".join(line.replace('"0', f'"{folder}/0') for line in lines))
    refused(80, "to fit to", "tune", few, "--through-model", "tiny")
