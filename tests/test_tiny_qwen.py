"""The tiny Qwen3-VL is one in every respect but its weights: it loads, runs, repeats itself, and minds what it sees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.tiny_qwen import load_tiny, maker, picture

pytest.importorskip("transformers")

QUESTION = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is it?"}]}]


def _inputs(processor: Any, rgb: np.ndarray) -> Any:
    text = processor.apply_chat_template(QUESTION, add_generation_prompt=True, tokenize=False)
    return processor(text=[text], images=[rgb], return_tensors="pt")


@torch.no_grad()
def _last_logits(model: Any, inputs: Any, **changed: Any) -> torch.Tensor:
    logits: torch.Tensor = model(**{**inputs, **changed}).logits
    return logits[0, -1]


def test_special_tokens_are_one_id_each_and_the_configuration_names_them(tiny: tuple[Any, Any]) -> None:
    model, processor = tiny
    tokenizer, config = processor.tokenizer, model.config
    assert type(tokenizer).__name__ == "Qwen2Tokenizer" and len(tokenizer) == config.text_config.vocab_size
    ids = [tokenizer.encode(token) for token in maker().SPECIAL_TOKENS]
    assert [i for (i,) in ids] == list(range(len(tokenizer) - len(ids), len(tokenizer)))
    named = {
        config.image_token_id: "<|image_pad|>",
        config.video_token_id: "<|video_pad|>",
        config.vision_start_token_id: "<|vision_start|>",
        config.vision_end_token_id: "<|vision_end|>",
        config.text_config.eos_token_id: tokenizer.eos_token,
        config.text_config.pad_token_id: tokenizer.pad_token,
    }
    assert {tokenizer.convert_ids_to_tokens(i): token for i, token in named.items()} == {t: t for t in named.values()}
    assert model.generation_config.eos_token_id == [tokenizer.eos_token_id, tokenizer.pad_token_id]


def test_the_chat_template_lays_out_as_the_true_one_does(tiny: tuple[Any, Any]) -> None:
    processor = tiny[1]
    picture_part = {"type": "image_url", "image_url": {"url": "file.png"}}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [picture_part, {"type": "video"}, {"type": "text", "text": " Hello {x} "}]},
        {"role": "assistant", "content": [{"type": "text", "text": "Yes."}]},
        {"role": "user", "content": "And\nnow?"},
    ]
    expected = (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>"
        "<|vision_start|><|video_pad|><|vision_end|> Hello {x} <|im_end|>\n<|im_start|>assistant\nYes.<|im_end|>\n"
        "<|im_start|>user\nAnd\nnow?<|im_end|>\n"
    )
    assert processor.apply_chat_template(messages, tokenize=False) == expected
    prompt = processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert prompt == expected + "<|im_start|>assistant\n"


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


@pytest.mark.parametrize(
    "part", ["visual.pos_embed", "visual.deepstack_merger_list.0", "visual.deepstack_merger_list.1"]
)
def test_places_and_deepstack_reach_the_logits(tiny_qwen: Path, part: str) -> None:
    model, processor = load_tiny(tiny_qwen)
    inputs = _inputs(processor, picture())
    stock = _last_logits(model, inputs)
    for parameter in model.model.get_submodule(part).parameters():
        torch.nn.init.zeros_(parameter)
    assert (_last_logits(model, inputs) - stock).abs().max() > 0.1


def test_one_seed_gives_one_model(tiny_qwen: Path, tmp_path: Path) -> None:
    same, other = (maker().make_tiny_qwen3_vl(tmp_path / str(seed), seed=seed) for seed in (0, 1))
    for path in sorted(tiny_qwen.iterdir()):
        assert (same / path.name).read_bytes() == path.read_bytes(), path.name
    weights = "model.safetensors"
    assert (other / weights).read_bytes() != (tiny_qwen / weights).read_bytes()
    assert (other / "tokenizer.json").read_bytes() == (tiny_qwen / "tokenizer.json").read_bytes()
