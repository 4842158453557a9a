"""The supported families of models, and the differences between them.

All of them share the cells of 32x32 pixels, the vision tower's rotation and table of positions, and interleaved M-RoPE.
Three of four layers of a Qwen3.5 or 3.6 are Gated DeltaNet (Yang et al., 2024), which keeps one state of fixed size
instead of keys and values: no token can be taken out, and attention to a token cannot be biased. A question is
undone by restoring a copy of the states.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from arr_stream.errors import ModelUnsupported

_TEXT_KEYS = (
    "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim "
    "hidden_act max_position_embeddings initializer_range rms_norm_eps rope_parameters rope_scaling rope_theta "
    "attention_bias attention_dropout pad_token_id bos_token_id eos_token_id tie_word_embeddings"
)
_LINEAR_KEYS = (
    " layer_types full_attention_interval partial_rotary_factor linear_conv_kernel_dim linear_key_head_dim "
    "linear_value_head_dim linear_num_key_heads linear_num_value_heads"
)
_EXPERT_KEYS = " num_experts num_experts_per_tok moe_intermediate_size"
NOT_THINKING = ("<think>", "\n\n", "</think>", "\n\n")
"""Prefix that Qwen3.5's chat template puts before an answer without thoughts."""


@dataclass(frozen=True, slots=True)
class Family:
    """Common properties of the models of one `model_type`.

    Args:
        classes: Prefix of its class names in transformers.
        text_keys: Keys of `text_config` that describe the language model.
        experts: Other layout of a layer's experts in a checkpoint; None without experts.
        unused: Prefixes of tensors in checkpoints that the model does not use.
        answer_start: Markers and text at the start of an answer.
    """

    name: str
    classes: str
    text_keys: str = _TEXT_KEYS
    deepstack: bool = True
    recurrent: bool = False
    experts: Literal["transposed", "separate"] | None = None
    unused: tuple[str, ...] = ()
    answer_start: tuple[str, ...] = ()

    def class_of(self, kind: str) -> Any:
        """Return transformers' class for `Config` or `ForConditionalGeneration`."""
        import transformers

        try:
            return getattr(transformers, self.classes + kind)
        except AttributeError as exc:
            raise ModelUnsupported(
                f"transformers {transformers.__version__} has no {self.name}", remedy="pip install -U transformers"
            ) from exc


_QWEN3_5 = Family(
    "Qwen3.5",
    "Qwen3_5",
    _TEXT_KEYS + _LINEAR_KEYS,
    deepstack=False,
    recurrent=True,
    unused=("mtp.",),
    answer_start=NOT_THINKING,
)
FAMILIES = {
    "qwen3_vl": Family("Qwen3-VL", "Qwen3VL"),
    "qwen3_vl_moe": Family(
        "Qwen3-VL MoE",
        "Qwen3VLMoe",
        _TEXT_KEYS + _EXPERT_KEYS + " num_local_experts decoder_sparse_step mlp_only_layers",
        experts="transposed",
    ),
    "qwen3_5": _QWEN3_5,
    "qwen3_5_moe": replace(
        _QWEN3_5,
        name="Qwen3.5 MoE",
        classes="Qwen3_5Moe",
        text_keys=_QWEN3_5.text_keys + _EXPERT_KEYS + " shared_expert_intermediate_size",
        experts="separate",
    ),
}
"""By `model_type`."""
