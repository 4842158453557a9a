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


@pytest.fixture(scope="module")
def loaded(tiny_qwen: Path) -> tuple[Any, Any]:
    return load_tiny(tiny_qwen)


def _inputs(processor: Any, rgb: np.ndarray) -> Any:
    text = processor.apply_chat_template(QUESTION, add_generation_prompt=True, tokenize=False)
    return processor(text=[text], images=[rgb], return_tensors="pt")


@torch.no_grad()
def _last_logits(model: Any, inputs: Any, **changed: Any) -> torch.Tensor:
    logits: torch.Tensor = model(**{**inputs, **changed}).logits
    return logits[0, -1]


def test_special_tokens_are_one_id_each_and_the_configuration_names_them(loaded: tuple[Any, Any]) -> None:
    model, processor = loaded
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


def test_any_text_comes_back(loaded: tuple[Any, Any]) -> None:
    tokenizer = loaded[1].tokenizer
    for text in ("Where is the red car?", "<12.5 seconds>", "Größe 日本 🙂\n\t  x", ""):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode("Where is the red car?")) == 6


def test_the_chat_template_lays_out_as_the_true_one_does(loaded: tuple[Any, Any]) -> None:
    processor = loaded[1]
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


def test_pictures_become_rows_of_sixteen_pixels_in_blocks_of_two_by_two(loaded: tuple[Any, Any]) -> None:
    model, processor = loaded
    rgb = picture(320, 256)
    inputs = _inputs(processor, rgb)
    assert inputs["image_grid_thw"].tolist() == [[1, 16, 20]]
    assert (inputs["input_ids"] == model.config.image_token_id).sum() == 80
    rows = inputs["pixel_values"].reshape(8, 10, 2, 2, 3, 2, 16, 16)
    patch = rgb[2 * 32 + 16 : 2 * 32 + 32, 5 * 32 : 5 * 32 + 16].transpose(2, 0, 1)
    for frame in (0, 1):
        np.testing.assert_allclose(rows[2, 5, 1, 0, :, frame], patch / 127.5 - 1, atol=1e-6)


def test_it_answers_on_a_picture_and_repeats_itself(loaded: tuple[Any, Any]) -> None:
    model, processor = loaded
    answers = []
    for seed in (0, 0, 1):
        inputs = _inputs(processor, picture(seed=seed))
        tokens = model.generate(**inputs, max_new_tokens=12, do_sample=False)[0, inputs["input_ids"].shape[1] :]
        answers.append(processor.decode(tokens))
    assert answers[0] == answers[1] != answers[2]


def test_it_answers_on_a_video_and_repeats_itself(loaded: tuple[Any, Any]) -> None:
    model, processor = loaded
    messages = [{"role": "user", "content": [{"type": "video"}, {"type": "text", "text": "What happens?"}]}]
    text = processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    frames = np.stack([picture(128, 96, seed) for seed in range(5)])
    inputs = processor(
        text=[text],
        videos=[frames],
        video_metadata=[{"fps": 4.0, "total_num_frames": 5, "frames_indices": [0, 1, 2, 3, 4]}],
        do_sample_frames=False,
        return_tensors="pt",
    )
    assert inputs["video_grid_thw"].tolist() == [[3, 6, 8]]
    shown = processor.decode(inputs["input_ids"][0]).replace("<|video_pad|>" * 12, "CELLS")
    # A video is wrapped twice by the library: once by the chat template, once around each pair of frames.
    pairs = "".join(f"<{at} seconds><|vision_start|>CELLS<|vision_end|>" for at in ("0.1", "0.6", "1.0"))
    assert shown.startswith(f"<|im_start|>user\n<|vision_start|>{pairs}<|vision_end|>What happens?<|im_end|>\n")
    first, second = (model.generate(**inputs, max_new_tokens=8, do_sample=False) for _ in range(2))
    assert torch.equal(first, second) and first.shape[1] > inputs["input_ids"].shape[1]


def test_it_minds_what_every_cell_shows_and_where_it_is(loaded: tuple[Any, Any]) -> None:
    model, processor = loaded
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


def test_attention_implementations_agree(loaded: tuple[Any, Any], tiny_qwen: Path) -> None:
    model, processor = loaded
    assert model.config._attn_implementation == "sdpa"
    eager, _ = load_tiny(tiny_qwen, attn_implementation="eager")
    inputs = _inputs(processor, picture())
    assert (_last_logits(model, inputs) - _last_logits(eager, inputs)).abs().max() <= 1e-5


def test_one_seed_gives_one_model(tiny_qwen: Path, tmp_path: Path) -> None:
    same, other = (maker().make_tiny_qwen3_vl(tmp_path / str(seed), seed=seed) for seed in (0, 1))
    for path in sorted(tiny_qwen.iterdir()):
        assert (same / path.name).read_bytes() == path.read_bytes(), path.name
    weights = "model.safetensors"
    assert (other / weights).read_bytes() != (tiny_qwen / weights).read_bytes()
    assert (other / "tokenizer.json").read_bytes() == (tiny_qwen / "tokenizer.json").read_bytes()


def test_sizes_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    for wrong in ({"vision_layers": 1}, {"vision_layers": 5, "text_layers": 1}, {"hidden": 40}):
        with pytest.raises(ValueError, match=r"vision layers \d+"):
            maker().make_tiny_qwen3_vl(tmp_path / "wrong", **wrong)
    assert not (tmp_path / "wrong").exists()
