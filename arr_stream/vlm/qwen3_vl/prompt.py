"""The prompt text around the pictures, as tokens, in the layout that Qwen3-VL was trained on.

    <|im_start|>user <0.5 seconds><|vision_start|> cells <|vision_end|><1.5 seconds><|vision_start|> cells
    <|vision_end|> question<|im_end|> <|im_start|>assistant answer

Pictures have no timestamp.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from arr_stream.errors import ModelUnsupported
from arr_stream.vlm.qwen3_vl.families import FAMILIES

Media = Literal["video", "image"]


def time_text(seconds: float) -> str:
    """Return the timestamp before the frames of a video."""
    return f"<{seconds:.1f} seconds>"


@dataclass(frozen=True)
class Prompt:
    """Tokenizer of the parts of a conversation; `config` is the model's and names the ids of markers."""

    tokenizer: Any
    config: Any

    def text(self, text: str) -> list[int]:
        """Tokenize plain text; markers in it become plain letters, so that no text can forge a turn or a picture."""
        ids: list[int] = self.tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        return ids

    def opening(self, instruction: str = "") -> list[int]:
        """Return the start of the conversation, up to the first frame."""
        system = self._turn("system", instruction) + self._end_of_turn if instruction else []
        return [*system, *self._turn("user", "")]

    def before_cells(self, media: Media, seconds: float) -> list[int]:
        """Return the tokens before the cells of a block."""
        time = self.text(time_text(seconds)) if media == "video" else []
        return [*time, self.config.vision_start_token_id]

    def cell(self, media: Media) -> int:
        """Return the placeholder token for a cell's embedding."""
        return int(self.config.video_token_id if media == "video" else self.config.image_token_id)

    @property
    def after_cells(self) -> list[int]:
        return [self.config.vision_end_token_id]

    def question(self, question: str) -> list[int]:
        """Return a question and the start of the answer's turn."""
        return [*self.text(question), *self._end_of_turn, *self._turn("assistant", ""), *self._answer_start]

    @cached_property
    def end_tokens(self) -> frozenset[int]:
        """Tokens that end an answer."""
        names = ("<|im_end|>", "<|endoftext|>")
        known = [self.tokenizer.convert_tokens_to_ids(name) for name in names]
        return frozenset(token for token in [*known, self.tokenizer.eos_token_id] if token is not None)

    @cached_property
    def _answer_start(self) -> list[int]:
        parts = FAMILIES[self.config.model_type].answer_start
        return [token for part in parts for token in (self.text(part) if part.isspace() else [self._marker(part)])]

    @cached_property
    def _end_of_turn(self) -> list[int]:
        return [self._marker("<|im_end|>"), *self.text("\n")]

    def _turn(self, role: str, text: str) -> list[int]:
        return [self._marker("<|im_start|>"), *self.text(f"{role}\n{text}")]

    def _marker(self, name: str) -> int:
        token = self.tokenizer.convert_tokens_to_ids(name)
        if token is None or token == self.tokenizer.unk_token_id:
            raise ModelUnsupported(f"the tokenizer has no {name}", remedy="use the tokenizer that came with the model")
        return int(token)
