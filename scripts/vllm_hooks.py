#!/usr/bin/env python3
"""Prints which hooks of the plugin moved in the installed vLLM: each by name, and what was found instead.

    PYTHON_WITH_VLLM scripts/vllm_hooks.py

Ends with 1 if any moved. `scripts/test --vllm VERSION` runs it before the tests of the plugin.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PLUGIN = Path(__file__).resolve().parent.parent / "arr_stream" / "vlm" / "vllm_plugin"
MODELS, LAYERS = "vllm.model_executor.models", "vllm.model_executor.layers"

OVERRIDDEN = {
    f"{MODELS}.qwen3_vl:Qwen3VLMultiModalProcessor._get_mm_hashes": "self inputs",
    f"{MODELS}.qwen3_vl:Qwen3VLMultiModalProcessor._apply_hf_processor_main": "self mm_items hf_kwargs",
    f"{MODELS}.qwen3_vl:Qwen3VLMultiModalProcessor._get_mm_fields_config": "self hf_inputs hf_processor_mm_kwargs",
    f"{MODELS}.qwen3_vl:Qwen3VLMultiModalProcessor._get_prompt_updates": (
        "self mm_items hf_processor_mm_kwargs out_mm_kwargs"
    ),
    **{
        f"{MODELS}.{module}:{name}ForConditionalGeneration.{method}": parameters
        for module, name in [
            ("qwen3_vl", "Qwen3VL"),
            ("qwen3_vl_moe", "Qwen3VLMoe"),
            ("qwen3_5", "Qwen3_5"),
            ("qwen3_5", "Qwen3_5Moe"),
        ]
        for method, parameters in {
            "__init__": "self vllm_config prefix",
            "_parse_and_validate_image_input": "self kwargs",
            "_process_image_input": "self image_input",
            "get_mrope_input_positions": "self input_tokens mm_features",
        }.items()
    },
    "vllm.multimodal.media.image:ImageMediaIO.load_bytes": "self data",
}
"""Functions that the plugin replaces, with exactly these parameters."""

CALLED = {
    "vllm:ModelRegistry.register_model": "model_arch model_cls",
    "vllm.multimodal:MULTIMODAL_REGISTRY.register_processor": "processor info dummy_inputs",
    "vllm.multimodal.inputs:MultiModalFieldConfig.flat_from_sizes": "modality size_per_item keep_on_cpu",
    "vllm.multimodal.inputs:MultiModalFieldConfig.batched": "modality keep_on_cpu",
    f"{MODELS}.qwen3_vl:Qwen3VLForConditionalGeneration._iter_mm_grid_hw": (
        "input_tokens mm_features video_token_id vision_start_token_id vision_end_token_id spatial_merge_size"
    ),
    f"{MODELS}.qwen3_vl:Qwen3_VisionTransformer.forward": "self x grid_thw encoder_metadata",
    f"{LAYERS}.attention:MMEncoderAttention.maybe_compute_seq_lens": "attn_backend cu_seqlens device",
    f"{LAYERS}.attention:MMEncoderAttention.compute_max_seqlen": "attn_backend cu_seqlens",
    f"{LAYERS}.attention:MMEncoderAttention.maybe_recompute_cu_seqlens": (
        "attn_backend cu_seqlens hidden_size tp_size device fp8_padded_hidden_size"
    ),
    f"{LAYERS}.rotary_embedding.mrope:MRotaryEmbedding._compute_cos_sin_cache": "self",
    f"{LAYERS}.rotary_embedding.mrope:MRotaryEmbedding._compute_inv_freq": "self base",
}
"""Functions that the plugin calls: they have these parameters, and need no others."""

ATTRIBUTES = {
    f"{MODELS}.qwen3_vl:Qwen3_VisionTransformer": (
        "attn_backend device dtype fp8_padded_hidden_size hidden_size num_grid_per_side patch_embed pos_embed "
        "rotary_pos_emb tp_size"
    ),
    f"{LAYERS}.rotary_embedding.mrope:MRotaryEmbedding": (
        "base cache_max_position_num cos_sin_cache max_position_embeddings mrope_section"
    ),
    "vllm.config:VllmConfig": "compilation_config model_config speculative_config",
    "vllm.config:CompilationConfig": "cudagraph_mm_encoder",
    "vllm.config:ModelConfig": "get_multimodal_config hf_config max_model_len",
    "vllm.config:MultiModalConfig": "is_multimodal_pruning_enabled mm_device_do_normalize mm_encoder_tp_mode",
    "vllm.multimodal.inputs:MultiModalFeatureSpec": "data mm_position modality",
    "vllm.multimodal.processing:PromptReplacement": "modality replacement",
    f"{MODELS}.config": "MODELS_CONFIG_MAP",
}
"""Attributes that the plugin reads or sets, in objects of these classes and in modules."""


def moved() -> Iterator[str]:
    """Give a line for each hook that is not as the plugin needs it."""
    for place in sorted(_imports()):
        yield from _missing(place)
    for place, names in OVERRIDDEN.items():
        yield from _missing(place) or _differing(place, names.split(), exactly=True)
    for place, names in CALLED.items():
        yield from _missing(place) or _differing(place, names.split(), exactly=False)
    for place, names in ATTRIBUTES.items():
        yield from _missing(place) or _lacking(place, names.split())


def _imports() -> set[str]:
    """Return what the plugin's files import from vLLM, as `module:name`."""
    found = set()
    for file in PLUGIN.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "vllm":
                found |= {f"{node.module}:{alias.name}" for alias in node.names}
    return found


def _resolve(place: str) -> Any:
    module, _, path = place.partition(":")
    found = importlib.import_module(module)
    for name in path.split(".") if path else ():
        found = getattr(found, name)
    return found


def _missing(place: str) -> list[str]:
    """Return a line if there is nothing at a place, with similar names beside it."""
    try:
        _resolve(place)
    except ImportError as exc:
        return [f"{place}: {exc}"]
    except AttributeError:
        parent = place.rpartition("." if "." in place.partition(":")[2] else ":")[0]
        return [f"{place}: missing; {_similar(place, parent)}"]
    return []


def _similar(place: str, parent: str) -> str:
    if _missing(parent):
        return f"{parent} is missing, too"
    name = re.split("[.:]", place)[-1]
    close = difflib.get_close_matches(name, dir(_resolve(parent)), n=3)
    return f"similar in {parent}: {', '.join(close)}" if close else f"nothing similar in {parent}"


def _differing(place: str, names: list[str], *, exactly: bool) -> list[str]:
    """Return a line if a function lacks parameters, or (if `exactly`, or without a default) has others."""
    signature = inspect.signature(_resolve(place))
    parameters = signature.parameters
    others = [
        each
        for each in parameters.values()
        if each.name not in names
        and (exactly or (each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)))
    ]
    absent = [name for name in names if name not in parameters]
    if not others and not absent:
        return []
    return [f"{place}: expected ({', '.join(names)}), found {signature}"]


def _lacking(place: str, names: list[str]) -> list[str]:
    """Return a line for each attribute that neither a class, nor its fields, nor assignments in its code have."""
    owner = _resolve(place)
    classes = [each for each in getattr(owner, "__mro__", ()) if each.__module__.startswith("vllm")]
    code = "\n".join(inspect.getsource(each) for each in classes)
    fields = {name for each in classes for name in vars(each).get("__annotations__", {})}
    known = fields | set(dir(owner)) | set(re.findall(r"self\.(\w+)\s*(?::[^=\n]+)?=[^=]", code))
    known |= set(re.findall(r"register_buffer\(\s*\"(\w+)\"", code))
    lines = []
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=3)
            lines.append(f"{place}.{name}: missing; similar: {', '.join(close) or 'nothing'}")
    return lines


def main() -> int:
    """Print what moved; return 1 if anything did."""
    import vllm

    lines = list(moved())
    for line in lines:
        print(f"moved: {line}")
    count = len(_imports()) + len(OVERRIDDEN) + len(CALLED) + sum(len(names.split()) for names in ATTRIBUTES.values())
    print(f"vLLM {vllm.__version__}: {len(lines)} of {count} hooks moved")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
