"""The line that starts vLLM."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from arr_stream.cli import app
from arr_stream.vlm.vllm_plugin import ARCHITECTURES


def flags(*arguments: str) -> tuple[list[str], dict[str, str]]:
    said = CliRunner().invoke(app, ["vllm-args", *arguments])
    assert said.exit_code == 0 and said.stdout.count("\n") == 1
    words = shlex.split(said.stdout)
    return words, {word: words[place + 1] for place, word in enumerate(words[:-1]) if word.startswith("--")}


def test_the_line_is_one_that_a_shell_takes() -> None:
    words, given = flags("--context", "8192", "--pictures", "64")
    assert words[:3] == ["vllm", "serve", "Qwen/Qwen3-VL-8B-Instruct"] and given["--host"] == "127.0.0.1"
    assert given["--max-model-len"] == "8192" and json.loads(given["--limit-mm-per-prompt"]) == {
        "image": 64,
        "video": 0,
    }


@pytest.mark.parametrize(
    ("model", "architecture"),
    [
        ("Qwen/Qwen3-VL-2B-Instruct", "ArrStreamQwen3VL"),
        ("Qwen/Qwen3-VL-30B-A3B-Instruct", "ArrStreamQwen3VLMoe"),
        ("Qwen/Qwen3-VL-235B-A22B-Thinking", "ArrStreamQwen3VLMoe"),
    ],
)
def test_mixtures_of_experts_have_an_architecture_of_their_own(model: str, architecture: str, tmp_path: Path) -> None:
    assert json.loads(flags(model)[1]["--hf-overrides"]) == {"architectures": [architecture]}
    assert architecture in ARCHITECTURES
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3_vl_moe" if "Moe" in architecture else "x"}))
    assert json.loads(flags(str(tmp_path))[1]["--hf-overrides"]) == {"architectures": [architecture]}
