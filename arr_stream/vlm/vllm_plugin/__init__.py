"""A vLLM plugin: Qwen3-VL or Qwen3.5 that receives only the chosen cells, each at its true position.

    vllm serve Qwen/Qwen3-VL-8B-Instruct --hf-overrides '{"architectures": ["ArrStreamQwen3VL"]}'

Pictures that carry cells (`arr_stream.vlm.qwen3_vl.carrier`) become one visual token a cell; vLLM handles all other
pictures, videos and text as before. The plugin needs vLLM, NumPy and Pillow, and no other dependency of arr-stream.
"""

from __future__ import annotations

import logging
import os
from typing import Any

TRIED = ("0.32", "0.33")
"""Releases of vLLM, by their first two numbers, that the plugin was tested with."""

ARCHITECTURES = {
    "qwen3_vl": "ArrStreamQwen3VL",
    "qwen3_vl_moe": "ArrStreamQwen3VLMoe",
    "qwen3_5": "ArrStreamQwen3_5",
    "qwen3_5_moe": "ArrStreamQwen3_5Moe",
}
"""By `model_type`. vLLM's own architecture has `ForConditionalGeneration` at its end and no `ArrStream` before it."""

_logger = logging.getLogger("vllm.arr_stream")


def register() -> None:
    """Register the architectures by name, without importing them; vLLM calls this in each of its processes."""
    import vllm
    from vllm import ModelRegistry
    from vllm.model_executor.models.config import MODELS_CONFIG_MAP

    if not is_tried(vllm.__version__):
        tried = " and ".join(f"{release}.*" for release in TRIED)
        _logger.error(
            "arr-stream: chosen cells are not available: vLLM %s was not tried, %s were: install one of these, or a "
            "newer arr-stream",
            vllm.__version__,
            tried,
        )
        return
    for name in ARCHITECTURES.values():
        family = name.removeprefix("ArrStream")
        ModelRegistry.register_model(name, f"{__name__}.model:Sparse{family}")
        # Defaults that vLLM keeps by architecture, such as the precision of Qwen3.5's states.
        stock = f"{family}ForConditionalGeneration"
        if stock in MODELS_CONFIG_MAP:
            MODELS_CONFIG_MAP[name] = MODELS_CONFIG_MAP[stock]
    _blame_the_sender()


def is_tried(version: str) -> bool:
    """Return whether the plugin was tested with a release of vLLM; `ARR_STREAM_TRY_VLLM` adds a release to try."""
    tried = *TRIED, os.environ.get("ARR_STREAM_TRY_VLLM") or TRIED[0]
    return any(f"{version}.".startswith(f"{release}.") for release in tried)


def _blame_the_sender() -> None:
    """Report an unreadable picture as the sender's fault (400), even if Pillow raises its own kind of error."""
    from vllm.multimodal.media.image import ImageMediaIO

    load = ImageMediaIO.load_bytes
    if getattr(load, "blames_the_sender", False):
        return

    def load_bytes(self: Any, data: bytes) -> Any:
        try:
            return load(self, data)
        except ValueError:
            raise
        except Exception as exc:
            raise ValueError(f"Failed to load image: {exc}") from exc

    load_bytes.blames_the_sender = True  # type: ignore[attr-defined]
    ImageMediaIO.load_bytes = load_bytes
