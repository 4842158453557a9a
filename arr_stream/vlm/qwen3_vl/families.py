"""The supported families of models, and the differences between them.

All of them share the cells of 32x32 pixels, the vision tower's rotation and table of positions, and interleaved M-RoPE.
Three of four layers of a Qwen3.5 or 3.6 are Gated DeltaNet (Yang et al., 2024), which keeps one state of fixed size
instead of keys and values: no token can be taken out, and attention to a token cannot be biased. A question is
undone by restoring a copy of the states.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

NOT_THINKING = ("<think>", "\n\n", "</think>", "\n\n")
"""Prefix that Qwen3.5's chat template puts before an answer without thoughts."""


@dataclass(frozen=True, slots=True)
class Family:
    """Common properties of the models of one `model_type`.

    Args:
        classes: Prefix of its class names in transformers.
        answer_start: Markers and text at the start of an answer.
    """

    name: str
    classes: str
    deepstack: bool = True
    recurrent: bool = False
    answer_start: tuple[str, ...] = ()

    def class_of(self, kind: str) -> Any:
        """Return transformers' class for `Config` or `ForConditionalGeneration`."""
        import transformers

        return getattr(transformers, self.classes + kind)


_QWEN3_5 = Family("Qwen3.5", "Qwen3_5", deepstack=False, recurrent=True, answer_start=NOT_THINKING)
FAMILIES = {
    "qwen3_vl": Family("Qwen3-VL", "Qwen3VL"),
    "qwen3_vl_moe": Family("Qwen3-VL MoE", "Qwen3VLMoe"),
    "qwen3_5": _QWEN3_5,
    "qwen3_5_moe": replace(_QWEN3_5, name="Qwen3.5 MoE", classes="Qwen3_5Moe"),
}
"""By `model_type`."""
