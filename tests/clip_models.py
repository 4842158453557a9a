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
from timm.models import register_model
from timm.models.vision_transformer import VisionTransformer, _create_vision_transformer

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
    # As in SigLIP: attention pool, no class token, sigmoid bias, text without a causal mask.
    "siglip": {
        "embed_dim": 96,
        "init_logit_bias": -10,
        "custom_text": True,
        "vision_cfg": {
            "image_size": 160,
            "timm_model_name": "vit_small_with_map",
            "timm_model_pretrained": True,
            "timm_pool": "map",
            "timm_proj": "none",
        },
        "text_cfg": {**TEXT, "no_causal_mask": True, "proj_bias": True, "pool_type": "last"},
    },
    # As in MobileCLIP-S0 to S2.
    "fastvit": {
        "embed_dim": 24,
        "custom_text": True,
        "vision_cfg": {
            "image_size": 128,
            "timm_model_name": "fastvit_t8",
            "timm_model_pretrained": False,
            "timm_pool": "avg",
            "timm_proj": None,
        },
        "text_cfg": TEXT,
    },
    "resnet": {
        "embed_dim": 24,
        "vision_cfg": {"image_size": 64, "layers": [1, 1, 1, 1], "width": 16, "patch_size": None},
        "text_cfg": TEXT,
    },
}


@register_model
def vit_small_with_map(pretrained: bool = False, **options: Any) -> VisionTransformer:
    """timm's `test_vit3`, whose weights are on the hub, without its register."""
    shape = {"patch_size": 16, "embed_dim": 96, "depth": 3, "num_heads": 3, "class_token": False, "init_values": 1e-5}
    return _create_vision_transformer("test_vit3", pretrained=pretrained, **shape, **options)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Models this small are slower on several threads, and on a busy machine much slower."""
    with one_torch_thread():
        yield


def save_model(folder: Path, kind: str, **written: Any) -> Path:
    """Write configuration, random weights and a tokeniser; `written` goes into the configuration's top level."""
    folder.mkdir(parents=True, exist_ok=True)
    config = CONFIGS[kind]
    preprocess = {"mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4]}
    content = {"model_cfg": config, "preprocess_cfg": preprocess, **written}
    (folder / "open_clip_config.json").write_text(json.dumps(content))
    write_vocabulary(folder / "bpe.txt.gz")
    save_file(built(kind).state_dict(), folder / "open_clip_model.safetensors")
    return folder


def write_vocabulary(path: Path) -> None:
    path.write_bytes(gzip.compress(b"#version: 1\nr e"))


def built(kind: str, seed: int = 0) -> Any:
    """The model as open_clip's classes make it, with weights that are not at their starting values."""
    config = json.loads(json.dumps(CONFIGS[kind]))
    config["vision_cfg"]["timm_model_pretrained"] = False
    make = open_clip.CustomTextCLIP if config.pop("custom_text", False) else open_clip.CLIP
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = make(**config).eval()
        # Layer scales and class tokens that begin near zero would hide whole branches from a comparison.
        for parameter in model.parameters():
            parameter.data += 0.05 * torch.randn_like(parameter)
    return model.requires_grad_(False)
