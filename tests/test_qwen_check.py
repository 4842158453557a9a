"""A Qwen3-VL that is built or called otherwise than expected is refused, before it can answer wrongly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from arr_stream.errors import ModelUnsupported
from arr_stream.vlm.qwen3_vl.adapter import Adapter
from arr_stream.vlm.qwen3_vl.families import Family
from tests.tiny_qwen import load_tiny

pytest.importorskip("transformers")

from transformers.models.qwen3_vl import modeling_qwen3_vl

library: Any = modeling_qwen3_vl

Change = Callable[[Any, pytest.MonkeyPatch], None]


def _wrap(patch: pytest.MonkeyPatch, home: Any, name: str, after: Callable[[Any], Any]) -> None:
    before = getattr(home, name)
    patch.setattr(home, name, lambda *args, **kwargs: after(before(*args, **kwargs)))


def _new_step_in_the_tower(model: Any, patch: pytest.MonkeyPatch) -> None:
    def scaled(output: Any) -> Any:
        output.pooler_output = output.pooler_output * 1.01
        return output

    _wrap(patch, model.model.visual, "forward", scaled)


def _deepstack_without_the_first(model: Any, patch: pytest.MonkeyPatch) -> None:
    def fewer(output: Any) -> Any:
        output.deepstack_features = output.deepstack_features[1:]
        return output

    _wrap(patch, model.model.visual, "forward", fewer)


def _other_order_of_patches(_: Any, patch: pytest.MonkeyPatch) -> None:
    _wrap(patch, library, "get_vision_position_ids", lambda positions: positions.flip(1))


def _other_interpolation(_: Any, patch: pytest.MonkeyPatch) -> None:
    def corners_elsewhere(*args: Any, **kwargs: Any) -> Any:
        return before(*args, **(kwargs | {"align_corners": False}))

    before = library.get_vision_interpolation_indices_and_weights
    patch.setattr(library, "get_vision_interpolation_indices_and_weights", corners_elsewhere)


def _text_goes_on_elsewhere(model: Any, patch: pytest.MonkeyPatch) -> None:
    def later(output: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        positions = output[0].clone()
        positions[..., -1] += 1
        return positions, output[1]

    _wrap(patch, model.model, "get_rope_index", later)


def _rows_and_columns_swapped(model: Any, patch: pytest.MonkeyPatch) -> None:
    _wrap(patch, model.model, "get_rope_index", lambda output: (output[0][[0, 2, 1]], output[1]))


def _block_with_another_argument(model: Any, patch: pytest.MonkeyPatch) -> None:
    block = model.model.visual.blocks[0]
    before = block.forward

    def renamed(hidden_states: Tensor, cumulative: Tensor) -> Tensor:
        output: Tensor = before(hidden_states, cu_seqlens=cumulative)
        return output

    patch.setattr(block, "forward", renamed)


def _biases_ignored(_: Any, patch: pytest.MonkeyPatch) -> None:
    """A mask that comes with biases is dropped: `weight` rests on it."""
    before = library.create_causal_mask
    patch.setattr(library, "create_causal_mask", lambda **given: before(**(given | {"attention_mask": None})))


def _cached_tokens_unseen(_: Any, patch: pytest.MonkeyPatch) -> None:
    """What comes later does not see what is in the cache: streaming rests on it."""
    before = library.create_causal_mask

    def blind(**given: Any) -> Any:
        known = given["past_key_values"].get_seq_length() if given["past_key_values"] is not None else 0
        if not known:
            return before(**given)
        count = given["inputs_embeds"].shape[1]
        mask = torch.full((count, known + count), torch.finfo(torch.float32).min).triu(known + 1)
        mask[:, :known] = torch.finfo(torch.float32).min
        return mask[None, None]

    patch.setattr(library, "create_causal_mask", blind)


DIFFERENT: dict[str, Change] = {
    "a new step": _new_step_in_the_tower,
    "DeepStack": _deepstack_without_the_first,
    "patches": _other_order_of_patches,
    "interpolation": _other_interpolation,
    "text position": _text_goes_on_elsewhere,
    "rows and columns": _rows_and_columns_swapped,
    "arguments of a block": _block_with_another_argument,
    "biased mask": _biases_ignored,
    "cache": _cached_tokens_unseen,
}


@pytest.fixture(scope="module")
def model(tiny_qwen: Path) -> Any:
    """To be changed for the time of a test."""
    return load_tiny(tiny_qwen)[0]


@pytest.mark.parametrize("change", DIFFERENT.values(), ids=DIFFERENT.keys())
def test_a_model_that_works_otherwise_is_refused(model: Any, change: Change, monkeypatch: pytest.MonkeyPatch) -> None:
    change(model, monkeypatch)
    with pytest.raises(ModelUnsupported, match="not built as expected") as raised:
        Adapter(model).check()
    assert "\n" not in str(raised.value) and "pip install" in str(raised.value)


@pytest.mark.parametrize(
    ("home", "name"),
    [
        ("visual", "patch_embed"),
        ("visual", "deepstack_merger_list"),
        ("language_model", "rotary_emb"),
    ],
)
def test_a_part_with_another_name_is_refused(model: Any, home: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(getattr(model.model, home), name)
    with pytest.raises(ModelUnsupported, match=name):
        Adapter(model)


def test_a_family_that_this_transformers_lacks_is_refused() -> None:
    with pytest.raises(ModelUnsupported, match=r"transformers \S+ has no Qwen9; pip install -U"):
        Family("Qwen9", "Qwen9").class_of("Config")


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_the_model_as_it_is_passes_and_is_left_as_it_was(tiny_qwen: Path, implementation: str) -> None:
    model, _ = load_tiny(tiny_qwen, attn_implementation=implementation)
    Adapter(model).check()
    assert model.model.rope_deltas is None


def test_half_the_precision_passes_and_a_wrong_place_does_not(tiny_qwen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = load_tiny(tiny_qwen)
    adapter = Adapter(model.to(torch.bfloat16))
    adapter.check()
    _rows_and_columns_swapped(model, monkeypatch)
    with pytest.raises(ModelUnsupported):
        adapter.check()
