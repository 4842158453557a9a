"""A vLLM plugin: Qwen3-VL that receives only the chosen cells, each at its true position.

    vllm serve Qwen/Qwen3-VL-8B-Instruct --hf-overrides '{"architectures": ["ArrStreamQwen3VL"]}'

Pictures that carry cells (`arr_stream.vlm.qwen3_vl.carrier`) become one visual token a cell; vLLM handles all other
pictures, videos and text as before. The plugin needs vLLM, NumPy and Pillow, and no other dependency of arr-stream.
"""

from __future__ import annotations

import logging
from typing import Any

TRIED = ("0.32",)
"""Releases of vLLM, by their first two numbers, that the plugin was tested with."""

ARCHITECTURES = {
    "ArrStreamQwen3VL": "arr_stream.vlm.vllm_plugin.model:SparseQwen3VL",
    "ArrStreamQwen3VLMoe": "arr_stream.vlm.vllm_plugin.model:SparseQwen3VLMoe",
}

_logger = logging.getLogger("vllm.arr_stream")


def register() -> None:
    """Register the architectures by name, without importing them; vLLM calls this in each of its processes."""
    import vllm
    from vllm import ModelRegistry

    if not vllm.__version__.startswith(tuple(f"{release}." for release in TRIED)):
        _logger.error(
            "arr-stream: vLLM %s was not tried, %s was: chosen cells are not available. Install a release that was "
            "tried, or a newer arr-stream.",
            vllm.__version__,
            " or ".join(f"{release}.*" for release in TRIED),
        )
        return
    for name, place in ARCHITECTURES.items():
        ModelRegistry.register_model(name, place)
    _blame_the_sender()


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
