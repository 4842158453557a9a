"""The line that starts vLLM."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from arr_stream.cli import app
from arr_stream.vlm.vllm_plugin import ARCHITECTURES, is_tried


def flags(*arguments: str) -> tuple[list[str], dict[str, str]]:
    said = CliRunner().invoke(app, ["vllm-args", *arguments])
    assert said.exit_code == 0 and said.stdout.count("\n") == 1
    words = shlex.split(said.stdout)
    return words, {word: words[place + 1] for place, word in enumerate(words[:-1]) if word.startswith("--")}


def test_the_line_is_one_that_a_shell_takes() -> None:
    words, given = flags("--context", "8192", "--pictures", "600")
    assert words[:3] == ["vllm", "serve", "Qwen/Qwen3-VL-8B-Instruct"] and given["--host"] == "127.0.0.1"
    assert given["--max-model-len"] == "8192" and json.loads(given["--limit-mm-per-prompt"]) == {
        "image": 600,
        "video": 0,
    }


@pytest.mark.parametrize(
    ("model", "family"),
    [
        ("Qwen/Qwen3-VL-2B-Instruct", "qwen3_vl"),
        ("Qwen/Qwen3-VL-30B-A3B-Instruct", "qwen3_vl_moe"),
        ("Qwen/Qwen3-VL-235B-A22B-Thinking", "qwen3_vl_moe"),
        ("Qwen/Qwen3.5-9B", "qwen3_5"),
        ("Qwen/Qwen3.6-27B", "qwen3_5"),
        ("Qwen/Qwen3.6-35B-A3B", "qwen3_5_moe"),
    ],
)
def test_every_family_has_an_architecture_of_its_own(model: str, family: str, tmp_path: Path) -> None:
    architectures = {"architectures": [ARCHITECTURES[family]]}
    assert json.loads(flags(model)[1]["--hf-overrides"]) == architectures
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family, "vision_config": {}}))
    assert json.loads(flags(str(tmp_path))[1]["--hf-overrides"]) == architectures


@pytest.mark.parametrize(
    ("version", "tried"),
    [("0.32.0+cpu", True), ("0.33.1", True), ("0.3.0", False), ("0.330.0", False), ("1.33.0", False)],
)
def test_releases_are_told_apart(version: str, tried: bool) -> None:
    assert is_tried(version) is tried
