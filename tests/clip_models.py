"""Dual encoders of true architecture with random weights, saved as open_clip's `local-dir:` form has them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import open_clip
import pytest
import torch
from safetensors.torch import save_file

from arr_stream.threads import one_torch_thread

VOCABULARY = 2 * 256 + 1 + 2
"""Bytes, bytes that end a word, one merge, start and end."""

TEXT = {"context_length": 12, "vocab_size": VOCABULARY, "width": 32, "heads": 2, "layers": 2}

CONFIGS: dict[str, dict[str, Any]] = {
    "vit16": {
        "embed_dim": 24,
        "vision_cfg": {"image_size": 64, "layers": 3, "width": 32, "head_width": 16, "patch_size": 16},
        "text_cfg": TEXT,
    },
    "vit32": {
        "embed_dim": 24,
        "quick_gelu": True,
        "vision_cfg": {"image_size": 64, "layers": 2, "width": 32, "head_width": 16, "patch_size": 32},
        "text_cfg": TEXT,
    },
}


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Models this small are slower on several threads, and on a busy machine much slower."""
    with one_torch_thread():
        yield


def save_model(folder: Path, kind: str) -> Path:
    """Write configuration, random weights and a tokeniser."""
    folder.mkdir(parents=True, exist_ok=True)
    config = CONFIGS[kind]
    preprocess = {"mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4]}
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": config, "preprocess_cfg": preprocess}))
    (folder / "bpe.txt.gz").write_bytes(gzip.compress(b"#version: 1\nr e"))
    save_file(built(kind).state_dict(), folder / "open_clip_model.safetensors")
    return folder


def built(kind: str) -> Any:
    """The model as open_clip's classes make it, with weights that are not at their starting values."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = open_clip.CLIP(**json.loads(json.dumps(CONFIGS[kind]))).eval()
        for parameter in model.parameters():
            parameter.data += 0.05 * torch.randn_like(parameter)
    return model.requires_grad_(False)
