"""The tiny Qwen3-VL is one in every respect but its weights: it loads, runs, repeats itself, and minds what it sees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.tiny_qwen import maker, picture

pytest.importorskip("transformers")

QUESTION = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is it?"}]}]


def _inputs(processor: Any, rgb: np.ndarray) -> Any:
    text = processor.apply_chat_template(QUESTION, add_generation_prompt=True, tokenize=False)
    return processor(text=[text], images=[rgb], return_tensors="pt")


@torch.no_grad()
def _last_logits(model: Any, inputs: Any, **changed: Any) -> torch.Tensor:
    logits: torch.Tensor = model(**{**inputs, **changed}).logits
    return logits[0, -1]


def test_it_minds_what_every_cell_shows_and_where_it_is(tiny: tuple[Any, Any]) -> None:
    model, processor = tiny
    inputs = _inputs(processor, picture())
    ids, types = inputs["input_ids"], inputs["mm_token_type_ids"]
    positions, _ = model.model.get_rope_index(ids, types, image_grid_thw=inputs["image_grid_thw"])
    stock = _last_logits(model, inputs)
    assert 0.5 < stock.std() < 2
    cells = (ids[0] == model.config.image_token_id).nonzero()[:, 0].tolist()
    for cell in cells[::26]:
        mask = inputs["attention_mask"].clone()
        mask[0, cell] = 0
        assert (_last_logits(model, inputs, attention_mask=mask, position_ids=positions) - stock).abs().max() > 5e-3
        for axis in (1, 2):
            moved = positions.clone()
            moved[axis, 0, cell] += 3
            assert (_last_logits(model, inputs, position_ids=moved) - stock).abs().max() > 5e-3


def test_one_seed_gives_one_model(tiny_qwen: Path, tmp_path: Path) -> None:
    same, other = (maker().make_tiny_qwen3_vl(tmp_path / str(seed), seed=seed) for seed in (0, 1))
    for path in sorted(tiny_qwen.iterdir()):
        assert (same / path.name).read_bytes() == path.read_bytes(), path.name
    weights = "model.safetensors"
    assert (other / weights).read_bytes() != (tiny_qwen / weights).read_bytes()
    assert (other / "tokenizer.json").read_bytes() == (tiny_qwen / "tokenizer.json").read_bytes()
