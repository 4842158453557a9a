"""`arr-stream vllm-args`: the command line that starts vLLM with the plugin."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Annotated

import typer

from arr_stream.cli.console import print_line
from arr_stream.vlm.vllm_plugin import ARCHITECTURES

_DENSE, _MIXTURE = ARCHITECTURES


def vllm_args(
    model: Annotated[str, typer.Argument(help="Qwen3-VL: a hub name or a folder.")] = "Qwen/Qwen3-VL-8B-Instruct",
    context: Annotated[int, typer.Option(min=256, help="Tokens of the context, for all of a stream's memory.")] = 16384,
    pictures: Annotated[int, typer.Option(min=1, help="Most pictures (frames or pairs) in one question.")] = 512,
) -> None:
    """Print how vLLM is started so that it takes cells at their true places.

    It answers `ask`, `serve`, `webcam` and `stream` with `--endpoint http://127.0.0.1:8000/v1`.
    """
    values = {
        "--max-model-len": str(context),
        "--limit-mm-per-prompt": json.dumps({"image": pictures, "video": 0}),
        "--hf-overrides": json.dumps({"architectures": [_MIXTURE if _is_mixture(model) else _DENSE]}),
    }
    said = " ".join(f"{flag} {shlex.quote(value)}" for flag, value in values.items())
    print_line(f"vllm serve {shlex.quote(model)} --host 127.0.0.1 {said} --enable-prompt-tokens-details")


def _is_mixture(model: str) -> bool:
    """Return True if the model's config, or a name like `Qwen3-VL-30B-A3B-Instruct`, indicates a mixture of experts."""
    config = Path(model) / "config.json"
    if config.is_file():
        return "moe" in config.read_text().lower()
    return re.search(r"-A\d+B", model) is not None
