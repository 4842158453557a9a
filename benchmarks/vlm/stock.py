"""The model as its makers ship it: the processor's pixels, every cell encoded, every cell read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from arr_stream.types import ByteArray, Frame
from benchmarks.vlm.model import Timed

_PIXEL_LIMIT = 1 << 40


class StockModel:
    """Runs a model with its own processor and its own forward pass.

    Args:
        model: What to run.
    """

    def __init__(self, model: Timed) -> None:
        self._model = model.loaded.model
        self._processor = model.processor
        self._device = model.loaded.device
        self._rows_a_token = int(model.loaded.model.config.vision_config.spatial_merge_size) ** 2

    def picture_inputs(self, rgb: ByteArray, question: str) -> dict[str, Any]:
        """One picture and a question, at the picture's own size."""
        size = {"shortest_edge": 1024, "longest_edge": _PIXEL_LIMIT}
        inputs = self._processor(
            text=[self._prompt("image", question)], images=[rgb], images_kwargs={"size": size}, return_tensors="pt"
        )
        return self._placed(inputs)

    def video_inputs(
        self, frames: Sequence[Frame], fps: float, question: str, *, capped: bool = False
    ) -> dict[str, Any]:
        """Frames in pairs and a question.

        Args:
            frames: All of one size.
            fps: How many of them there are a second, for the timestamps.
            question: About them.
            capped: Leave the frames' size to the processor's own limit (768 tokens a pair); otherwise they stay whole.
        """
        size = {"shortest_edge": 1024, "longest_edge": _PIXEL_LIMIT}
        metadata = {"fps": fps, "total_num_frames": len(frames), "frames_indices": list(range(len(frames)))}
        inputs = self._processor(
            text=[self._prompt("video", question)],
            videos=[np.stack([frame.rgb for frame in frames])],
            videos_kwargs={
                "do_sample_frames": False,
                "video_metadata": [metadata],
                "cap_pixels_per_frame": capped,
                **({} if capped else {"size": size}),
            },
            return_tensors="pt",
        )
        return self._placed(inputs)

    def visual_tokens(self, inputs: dict[str, Any]) -> int:
        """Cells among the inputs."""
        grids = inputs["image_grid_thw"] if "image_grid_thw" in inputs else inputs["video_grid_thw"]
        return int(grids.prod(dim=1).sum()) // self._rows_a_token

    @torch.inference_mode()
    def encode(self, inputs: dict[str, Any]) -> Any:
        """The vision tower over a whole picture."""
        return self._model.get_image_features(inputs["pixel_values"], inputs["image_grid_thw"], return_dict=True)

    @torch.inference_mode()
    def prefill(self, inputs: dict[str, Any], encoded: Any) -> tuple[Tensor, Any]:
        """The language model over the whole prompt; `[vocabulary]` scores of the next token, and the cache."""
        rest = {name: value for name, value in inputs.items() if name != "pixel_values"}
        output = self._model(**rest, mm_encoder_outputs={"image": encoded}, use_cache=True, logits_to_keep=1)
        scores: Tensor = output.logits[0, -1]
        return scores, output.past_key_values

    @torch.inference_mode()
    def decode(self, cache: Any, token: int) -> Tensor:
        """One token more; `[vocabulary]` scores of the next."""
        ids = torch.tensor([[token]], device=self._device)
        output = self._model(input_ids=ids, past_key_values=cache, use_cache=True)
        scores: Tensor = output.logits[0, -1]
        return scores

    @torch.inference_mode()
    def answer(self, inputs: dict[str, Any], tokens: int) -> int:
        """Generate exactly so many tokens, the likeliest each; how many there were."""
        ids = self._model.generate(**inputs, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False)
        return int(ids.shape[1] - inputs["input_ids"].shape[1])

    def _prompt(self, kind: str, question: str) -> str:
        messages = [{"role": "user", "content": [{"type": kind}, {"type": "text", "text": question}]}]
        text: str = self._processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        return text

    def _placed(self, inputs: Any) -> dict[str, Any]:
        return {
            name: value.to(self._device) if isinstance(value, torch.Tensor) else value
            for name, value in inputs.items()
            if name != "video_metadata"
        }
