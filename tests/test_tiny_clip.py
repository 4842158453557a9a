"""The small dual encoder that ships with the package: it reads and sees as open_clip does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("open_clip")

import open_clip
import torch
from open_clip.tokenizer import SimpleTokenizer

from arr_stream import weights
from arr_stream.config import ClipSettings, ModelSettings
from arr_stream.keyframes.base import KeyframeInput
from arr_stream.keyframes.embeddings.clip import ClipEmbedder, ClipTextEncoder, dense_features
from arr_stream.keyframes.embeddings.openclip import load_clip
from arr_stream.types import Frame, Grid
from benchmarks.localisation import LocalisationRow, evaluate_localisation
from benchmarks.scenes.shapes import make_scene

FOLDER = weights.shipped_folder("tiny")
SCRIPT = Path(__file__).parents[1] / "scripts" / "train_tiny_clip.py"


@pytest.fixture(scope="module")
def model() -> Any:
    return open_clip.create_model(f"local-dir:{FOLDER}").eval()


@pytest.fixture(scope="module")
def tokenizer() -> SimpleTokenizer:
    config = json.loads((FOLDER / "open_clip_config.json").read_text(encoding="utf-8"))
    made = SimpleTokenizer(str(FOLDER / "bpe.txt.gz"), context_length=config["model_cfg"]["text_cfg"]["context_length"])
    assert made.vocab_size == config["model_cfg"]["text_cfg"]["vocab_size"]
    return made


@pytest.mark.parametrize(
    "text",
    [
        "",
        "red circle",
        "The sign says 'STOP' twice!",
        "isn’t it “blue”?",
        "café 42",
        "红色的圆 🟥",
        "small blue star " * 20,
    ],
)
def test_the_product_reads_texts_as_open_clip_does(text: str, model: Any, tokenizer: SimpleTokenizer) -> None:
    encoder = ClipTextEncoder(ClipSettings(), ModelSettings())
    with torch.no_grad():
        expected = model.encode_text(tokenizer([text]), normalize=True)[0].numpy()
    np.testing.assert_allclose(encoder.encode([text])[0], expected, atol=1e-6)


def test_the_product_sees_places_as_open_clip_does(model: Any) -> None:
    pixels = torch.from_numpy(np.random.default_rng(4).standard_normal((1, 3, 192, 320)).astype(np.float32))
    ours = load_clip(ClipSettings(), ModelSettings()).model.visual
    with torch.inference_mode():
        seen, expected = (dense_features(tower, pixels) for tower in (ours, model.visual))
    np.testing.assert_allclose(seen.numpy(), expected.numpy(), atol=1e-5)


def test_the_product_runs_it_without_open_clip(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("open_clip", "torchvision", "timm", "transformers"):
        monkeypatch.setitem(sys.modules, name, None)
    frame = Frame(0, 0.0, np.zeros((96, 160, 3), np.uint8))
    embedding = ClipEmbedder(ClipSettings(), ModelSettings()).embed(KeyframeInput(frame, Grid.for_size((160, 96))))
    texts = ClipTextEncoder(ClipSettings(), ModelSettings()).encode(["red circle"])
    assert embedding.values.shape[0] == texts.shape[1]


@pytest.fixture(scope="module")
def rows() -> dict[str, LocalisationRow]:
    """Figures on 20 held-out scenes with the default way of making dense features."""
    rng = np.random.default_rng(123_456)
    scenes = [make_scene(rng) for _ in range(20)]
    encoder = ClipTextEncoder(ClipSettings(), ModelSettings())
    report = evaluate_localisation(scenes, [ClipEmbedder(ClipSettings(), ModelSettings(), threads=1)], encoder)
    return {row.kind: row for row in report.rows}


def test_colour_and_shape_find_their_cells(rows: dict[str, LocalisationRow]) -> None:
    row = rows["colour and shape"]
    assert row.auc_all >= 0.98
    assert row.auc_things >= 0.95
    assert row.coverage_share >= 0.9


@pytest.mark.slow
def test_the_script_trains_a_model_that_loads(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "-o", str(tmp_path), "--steps", "2", "--tokens", "500", "--scenes", "2"]
    done = subprocess.run([*command, "--processes", "1"], capture_output=True, text=True, check=True)
    assert "whole picture" in done.stdout
    made = open_clip.create_model(f"local-dir:{tmp_path}")
    assert all(torch.isfinite(p).all() for p in made.parameters())
