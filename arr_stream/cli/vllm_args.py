"""`arr-stream vllm-args`: the command line that starts vLLM with the plugin."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Annotated

import typer

from arr_stream.cli.console import print_line
from arr_stream.errors import ModelUnsupported
from arr_stream.vlm.vllm_plugin import ARCHITECTURES


def vllm_args(
    model: Annotated[
        str, typer.Argument(help="Qwen3-VL, Qwen3.5 or 3.6: a hub name or a folder.")
    ] = "Qwen/Qwen3-VL-8B-Instruct",
    context: Annotated[int, typer.Option(min=256, help="Tokens of the context, for all of a stream's memory.")] = 16384,
    pictures: Annotated[int, typer.Option(min=512, help="Most pictures (frames or pairs) in one question.")] = 512,
) -> None:
    """Print the command that starts vLLM with the plugin for cells at their true places.

    It answers `ask`, `serve`, `webcam` and `stream` with `--endpoint http://127.0.0.1:8000/v1`.
    """
    family = _family(model)
    values = {
        "--max-model-len": str(context),
        "--limit-mm-per-prompt": json.dumps({"image": pictures, "video": 0}),
        "--hf-overrides": json.dumps({"architectures": [ARCHITECTURES[family]]}),
    }
    if family.startswith("qwen3_5"):
        # Prefixes end with a question's frames, hardly ever at a block of a recurrent state, about 1,000 tokens.
        values["--prefix-match-unit"] = "16"
        values["--default-chat-template-kwargs"] = json.dumps({"enable_thinking": False})
    said = " ".join(f"{flag} {shlex.quote(value)}" for flag, value in values.items())
    print_line(f"vllm serve {shlex.quote(model)} --host 127.0.0.1 {said} --enable-prompt-tokens-details")


def _family(model: str) -> str:
    """Return the `model_type` of a folder's config, or that of models with a name like `Qwen3-VL-30B-A3B-Instruct`.

    Raises:
        ModelUnsupported: The folder holds another model, or one without a vision tower.
    """
    config = Path(model) / "config.json"
    if not config.is_file():
        if config.parent.is_dir():
            raise ModelUnsupported(f"{model}: the folder has no config.json", remedy="name a folder with a checkpoint")
        mixture = "_moe" if re.search(r"-A\d+B", model) else ""
        return ("qwen3_5" if re.search(r"Qwen3\.[56]", model) else "qwen3_vl") + mixture
    try:
        found = json.loads(config.read_text())
        family, sees = str(found.get("model_type")), "vision_config" in found
    except (ValueError, AttributeError, OSError) as exc:
        raise ModelUnsupported(f"{config}: not a model's configuration ({exc})") from exc
    if family not in ARCHITECTURES or not sees:
        what = f"model_type {family}" + ("" if sees else ", no vision tower")
        raise ModelUnsupported(f"{model}: {what}; the plugin takes {', '.join(ARCHITECTURES)}, with a vision tower")
    return family
